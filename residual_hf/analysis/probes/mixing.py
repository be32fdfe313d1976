# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Learned weights with which layers read earlier outputs: DLCL, attention residuals, hyper-connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from residual_hf.errors import InputError
from residual_hf.model.modes_cross_layer import LayerMix
from residual_hf.model.modes_multi_stream import DepthAttention, MultiStream

from .undisturbed import Batches, forward, undisturbed


@dataclass(frozen=True)
class MixingWeight:
    """Weight of `source` in what a module reads (`use`: read, mix or write), mean over tokens.

    DLCL: sources are the embeddings (0) and the layers. Attention residuals: the embeddings (0) and the earlier
    blocks. Hyper-connections: the streams, and for "mix" the pair (from, to) as from * n + to.
    """

    module: str
    use: str
    source: int
    weight: float


def mixing_weights(model: nn.Module, batches: Batches) -> list[MixingWeight]:
    """Mixing weights of all modules that have them, in the order in which they run.

    Raises:
        InputError: the mode has none.
    """
    names = {module: name for name, module in model.named_modules()}
    sums: dict[tuple[str, str], Tensor] = {}
    counts: dict[str, int] = {}

    def see(module: Any, arguments: tuple[Any, ...]) -> None:
        name, stream = names[module], arguments[0]
        counts[name] = counts.get(name, 0) + 1
        for use, weights in weights_of(module, stream).items():
            mean = weights.detach().float().flatten(0, -2).mean(0) if weights.ndim > 1 else weights.detach().float()
            sums[name, use] = sums.get((name, use), 0) + mean

    kinds = (LayerMix, DepthAttention, MultiStream)
    handles = [module.register_forward_pre_hook(see) for module in names if isinstance(module, kinds)]
    if not handles:
        raise InputError("mixing weights: no layer of this model reads several earlier outputs")
    try:
        with undisturbed(model, training=False):
            forward(model, batches)
    finally:
        for handle in handles:
            handle.remove()
    return [
        MixingWeight(name, use, source, weight)
        for (name, use), total in sums.items()
        for source, weight in enumerate((total / counts[name]).tolist())
    ]


def weights_of(module: Any, stream: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Weights (sources,) or (..., sources) by use."""
    if isinstance(module, LayerMix):
        return {"read": module.weight}
    if isinstance(module, DepthAttention):
        return {"read": module.probabilities(stream).flip(-1)}  # the newest member is first in the stream
    read, mix, write = module.weights(stream)
    n = len(stream)
    return {"read": read.reshape(-1, n), "mix": torch.as_tensor(mix).reshape(-1, n * n), "write": write.reshape(-1, n)}
