"""Learned weights of earlier outputs: DLCL, DenseFormer, attention residuals, hyper-connections."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from residual_hf.base.errors import InputError
from residual_hf.model.modes_cross_layer import DynamicAverage, LayerMix
from residual_hf.model.modes_multi_stream import DepthAttention, MultiStream
from residual_hf.probes.representations import real_tokens
from residual_hf.probes.undisturbed import Batches, as_list, undisturbed


@dataclass(frozen=True)
class MixingWeight:
    """Weight of `source` in what a module reads (`use`: read, mix or write), mean over tokens without padding.

    DLCL and DenseFormer: sources are the embeddings (0) and the layers. Attention residuals: the embeddings (0) and
    the earlier blocks. Hyper-connections: the streams, and for "mix" the pair (from, to) as from * n + to.
    """

    module: str
    use: str
    source: int
    weight: float


@torch.no_grad()
def mixing_weights(model: nn.Module, batches: Batches) -> list[MixingWeight]:
    """Mixing weights of all modules that have them, in the order in which they run.

    Raises:
        InputError: the mode has none.
    """
    names = {module: name for name, module in model.named_modules()}
    sums: dict[tuple[str, str], Tensor] = {}
    counts: dict[tuple[str, str], int] = {}
    masks: dict[str, Tensor] = {}

    def see(module: Any, arguments: tuple[Any, ...]) -> None:
        name, stream = names[module], arguments[0]
        mask = next((masks[part] for part in name.split(".") if part in masks), None)
        for use, weights in weights_of(module, stream).items():
            if mask is not None and len(weights) == mask.numel():
                weights = weights[mask.flatten()]
            sums[name, use] = sums.get((name, use), 0) + weights.float().sum(0)
            counts[name, use] = counts.get((name, use), 0) + len(weights)

    kinds = (LayerMix, DepthAttention, MultiStream)
    readers = [module for module in names if isinstance(module, kinds)]
    if not readers:
        raise InputError("mixing weights: no layer of this model reads several earlier outputs")
    with undisturbed(model, training=False), ExitStack() as hooks:
        for module in readers:
            hooks.enter_context(module.register_forward_pre_hook(see))
        for batch in as_list(batches):
            masks = real_tokens(model, batch)
            model(**batch)
    return [
        MixingWeight(name, use, source, weight)
        for (name, use), total in sums.items()
        for source, weight in enumerate((total / counts[name, use]).tolist())
    ]


def weights_of(module: Any, stream: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Weights (tokens, sources), or (1, sources) if they are the same for all tokens, by use."""
    if isinstance(module, LayerMix):
        read = module.weights(stream).flatten(0, -2) if isinstance(module, DynamicAverage) else module.weight[None]
        weights = read.new_zeros(len(read), len(stream))
        weights[:, module.members] = read
        return {"read": weights}
    if isinstance(module, DepthAttention):
        return {"read": module.probabilities(stream).flip(-1).flatten(0, -2)}  # the newest is first in the stream
    read, mix, write = module.weights(torch.stack(stream, dim=-2))
    n = len(stream)
    return {"read": read.reshape(-1, n), "mix": torch.as_tensor(mix).reshape(-1, n * n), "write": write.reshape(-1, n)}
