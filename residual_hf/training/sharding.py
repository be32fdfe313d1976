"""Weights sharded over processes, by FSDP2 or by ZeRO-3 of DeepSpeed: training, gathering and saving them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import Seq2SeqTrainer

from residual_hf.base.files import set_usual_mode


class ShardedTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that trains under FSDP2 as it does under DDP, and saves full weights in every checkpoint."""

    model: Any

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*args, **kwargs)
        self.accelerator.state.fsdp_plugin.mixed_precision_policy = None  # autocast instead, as under DDP
        with embeddings_in_root_group(self.model):
            return super()._prepare_for_training(*args, **kwargs)

    def compute_loss_context_manager(self) -> Any:
        return self.accelerator.autocast()  # also before accelerate has prepared the model, and around `generate`

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if is_sharded(self.model):
            sharded, self.model = self.model, gather_full_model(self.model)
            try:
                if self.args.should_save:
                    self._save(output_dir)
            finally:
                self.model = sharded
        else:
            super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            set_usual_mode(Path(output_dir or self.args.output_dir), "*.safetensors")

    def gather_model(self) -> Any:
        """The model, which holds full weights in every process from now on; call it after training."""
        if is_sharded(self.model):
            self.model = self.model_wrapped = gather_full_model(self.model)
        return self.model


@contextmanager
def embeddings_in_root_group(model: Any) -> Iterator[None]:
    """Hide the embeddings from accelerate's FSDP2, so that they are sharded with the root module.

    In separate groups, they would be gathered only when their modules are called. But the loss reads the output
    projection without calling it, and tied weights can be in one group only.
    """
    with ExitStack() as restored:
        for name in ("get_input_embeddings", "get_output_embeddings"):
            setattr(model, name, lambda: None)
            restored.callback(delattr, model, name)
        yield


def is_sharded(model: Any) -> bool:
    """Whether each process holds only a part of the weights."""
    return any(isinstance(p, DTensor) or hasattr(p, "ds_id") for p in model.parameters())


@torch.no_grad()
def gather_full_model(model: Any) -> Any:
    """A plain model with the full weights of a sharded one, in every process; all processes must call it."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    kind: Any = next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))
    with torch.random.fork_rng(devices=[]):
        copy = kind(model.config)
    copy.to(model.device, model.dtype)
    targets = {**dict(copy.named_parameters()), **dict(copy.named_buffers())}
    for name, shard in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        with _gathered(shard) as full:
            targets[name].copy_(full)
    copy.criterion, copy.generation_config = model.criterion, model.generation_config
    return copy.train(model.training)


@contextmanager
def _gathered(shard: Tensor) -> Iterator[Tensor]:
    if hasattr(shard, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([shard]):
            yield shard
    else:
        yield shard.full_tensor() if isinstance(shard, DTensor) else shard
