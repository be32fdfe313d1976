"""Measure a model and leave it as it was."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from residual_hf.model.modeling_residual import ResidualLanguageModel

Batch = Mapping[str, Tensor]
Batches = Batch | Iterable[Batch]


def as_list(batches: Batches) -> list[Batch]:
    return [batches] if isinstance(batches, Mapping) else list(batches)


@contextmanager
def undisturbed(model: nn.Module, training: bool) -> Iterator[None]:
    """Set train or eval mode for a block; restore it for each module, and gradients, buffers and the random state.

    The loss is the mean over labels, without the criterion of a trainer: no label smoothing, and none of its sums.
    """
    owners = [module for module in model.modules() if isinstance(module, ResidualLanguageModel)]
    removed: list[tuple[Any, str, Any]] = [(p, "grad", p.grad) for p in model.parameters()]
    removed += [(owner, "criterion", owner.criterion) for owner in owners]
    modes = [(module, "training", module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()] if training else []  # such as running means
    for owner, name, _ in removed:
        setattr(owner, name, None)
    model.train(training)
    try:
        with torch.random.fork_rng({p.device.index for p in model.parameters() if p.is_cuda}):
            yield
    finally:
        for owner, name, value in (*removed, *modes):
            setattr(owner, name, value)
        for buffer, value in buffers:
            buffer.data.copy_(value)


def backward(model: nn.Module, batches: Batches) -> float:
    """Accumulate the gradients of the mean loss per target token over the batches; return that loss."""
    batches = as_list(batches)
    counts = [count_targets(model, batch) for batch in batches]
    total = 0.0
    for batch, count in zip(batches, counts, strict=True):
        loss = model(**batch).loss * (count / sum(counts))
        loss.backward()
        total += loss.item()
    return total


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Iterable[Batch]) -> float:
    total = tokens = 0.0
    for batch in batches:
        count = count_targets(model, batch)
        total += float(model(**batch, use_cache=False).loss) * count
        tokens += count
    return total / tokens


def count_targets(model: nn.Module, batch: Batch) -> int:
    """The labels that the loss of a batch is the mean of. A language model predicts all but the first token."""
    config: Any = getattr(getattr(model, "module", model), "config", None)
    labels = batch["labels"][:, 1:] if getattr(config, "is_decoder_only", False) else batch["labels"]
    return int(labels.ne(-100).sum())


def gradient(parameter: nn.Parameter) -> Tensor | None:
    """The gradient of a parameter in fp32, with the shards of all processes (FSDP2)."""
    found = parameter.grad
    if isinstance(found, DTensor):
        found = found.full_tensor()
    return None if found is None else found.float()
