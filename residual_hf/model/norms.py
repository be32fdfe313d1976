# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The norms that `norm_type` selects, and functions in their place.

Statistics are computed in fp32, or in fp64 for fp64 inputs.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .initialization import BareParameters
from .stack_config import StackConfig


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """fp32 for half precision, otherwise the dtype itself."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.RMSNorm):
    """`g * x / sqrt(mean(x^2) + eps)`, in the dtype of g, which is fp32 under autocast.

    Zhang & Sennrich 2019, Root Mean Square Layer Normalization.
    """

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states.to(self.weight.dtype))


class ScaleNorm(nn.Module):
    """`g * x / max(|x|_2, eps)` over the last dimension, with one learned scalar g, initially sqrt(size).

    Nguyen & Salazar 2019, Transformers without Tears.
    """

    def __init__(self, size: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.size = size
        self.initial_gain = size**0.5  # for `_init_weights`
        self.weight = nn.Parameter(torch.full((1,), self.initial_gain))

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.to(at_least_fp32(hidden_states.dtype))
        x = x / x.norm(dim=-1, keepdim=True).clamp(min=self.eps)
        return (self.weight * x).to(hidden_states.dtype)


class AdaNorm(nn.Module):
    """`C * (1 - k*y) * y` with `y = (x - mean) / (std + eps)`, without parameters; 1 - k*y has no gradient.

    Xu et al. 2019, Understanding and Improving Layer Normalization. k = 1/10, and the standard deviation is the
    unbiased one, as in the released code. There only the norms at the end of the stacks are AdaNorms and the others
    remain LayerNorms. Here all are AdaNorms, as in the paper.
    """

    slope = 0.1

    def __init__(self, size: int, eps: float = 1e-5, scale: float = 2.0):
        super().__init__()
        self.eps = eps
        self.scale = scale

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.to(at_least_fp32(hidden_states.dtype))
        y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps)
        return (self.scale * (1 - self.slope * y).detach() * y).to(hidden_states.dtype)


class DynamicTanh(BareParameters):
    """`g * tanh(a*x) + b`, a point-wise function in the place of a norm, with one learned scalar a.

    Zhu et al. 2025, Transformers without Normalization (DyT), equation 1; a starts at 1/2, as in its code.
    """

    def __init__(self, size: int, eps: float = 0.0):  # has no variance, so no eps
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.to(at_least_fp32(hidden_states.dtype))
        return (self.weight * self.bounded(self.alpha * x) + self.bias).to(hidden_states.dtype)

    def bounded(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


class DynamicErf(DynamicTanh):
    """`g * erf(a*x + s) + b` with learned scalars a and s, initially 1/2 and 0.

    Chen et al. 2025, Stronger Normalization-Free Transformers (Derf).
    """

    def __init__(self, size: int, eps: float = 0.0):
        super().__init__(size)
        self.shift = nn.Parameter(torch.zeros(1))

    def bounded(self, x: Tensor) -> Tensor:
        return torch.erf(x + self.shift)


class BatchNorm(nn.BatchNorm1d):
    """`g * (x - mean) / sqrt(var + eps) + b` over all positions of a batch, in eval mode over those of training.

    Ioffe & Szegedy 2015, Batch Normalization. For images: of texts it would average over padding and later tokens.
    """

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states.flatten(0, -2)).view_as(hidden_states)


NORM_TYPES: dict[str, type[nn.Module]] = {
    "layer_norm": nn.LayerNorm,  # g * (x - mean) / sqrt(var + eps) + b, Ba et al. 2016
    "rms_norm": RMSNorm,
    "scale_norm": ScaleNorm,
    "ada_norm": AdaNorm,
    "dynamic_tanh": DynamicTanh,
    "dynamic_erf": DynamicErf,
    "batch_norm": BatchNorm,
}
TEXT_NORM_TYPES = tuple(name for name in NORM_TYPES if name != "batch_norm")


def build_norm(
    config: StackConfig, stack: str | None = None, size: int | None = None, eps: float | None = None
) -> nn.Module:
    """A norm over the last dimension, of the `norm_type` of a stack.

    Args:
        stack: not used; modes that users wrote for version 0.1 pass it.
        size: width of the last dimension (default `config.d_model`).
        eps: default `config.layer_norm_eps`.
    """
    options = {"scale": config.ada_norm_scale} if config.norm_type == "ada_norm" else {}
    size = config.d_model if size is None else size
    return NORM_TYPES[config.norm_type](size, eps=config.layer_norm_eps if eps is None else eps, **options)


def scale_initial_gain(norm: Any, factor: float) -> None:
    """Multiply the gain with which a norm starts. Raises `ValueError` for AdaNorm, which has none, unless it is 1."""
    if factor == 1.0:
        return
    if isinstance(norm, AdaNorm):
        raise ValueError(f"norm_type: 'ada_norm' given, which has no gain that could start at {factor:g}")
    norm.initial_gain = factor * getattr(norm, "initial_gain", 1.0)
