# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Norms a connection may use, by the config word `norm_type`.

Their statistics are accumulated in fp32 whatever the dtype of the input, as PyTorch's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import initialization as init


class RMSNorm(nn.RMSNorm):
    """g * x / sqrt(mean(x^2) + eps), in the type of g, fp32 under autocast.

    Zhang & Sennrich 2019, Root Mean Square Layer Normalization.
    """

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states.to(self.weight.dtype))


class ScaleNorm(nn.Module):
    """`g * x / max(|x|_2, eps)` over the last dimension, one learned scalar g, sqrt(size) at the start.

    Nguyen & Salazar 2019, Transformers without Tears.
    """

    def __init__(self, size: int, eps: float = 1e-5):
        super().__init__()
        self.size = size
        self.eps = eps
        self.weight = nn.Parameter(torch.full((1,), size**0.5))

    def init_parameters(self) -> None:
        init.constant_(self.weight, self.size**0.5)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.float()
        x = x / x.norm(dim=-1, keepdim=True).clamp(min=self.eps)
        return (self.weight * x).to(hidden_states.dtype)


class AdaNorm(nn.Module):
    """C * (1 - k*y) * y with y = (x - mean) / (std + eps), nothing learned and no gradient through 1 - k*y.

    Xu et al. 2019, Understanding and Improving Layer Normalization. k = 1/10; the standard deviation is the unbiased
    one and C is 2, as the released code has them. There only the norms at the end of the stacks are of this kind, the
    others stay ordinary LayerNorms; here, as in the paper, all of them are.
    """

    scale = 2.0
    slope = 0.1

    def __init__(self, size: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.float()
        y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps)
        return (self.scale * (1 - self.slope * y).detach() * y).to(hidden_states.dtype)


NORM_TYPES: dict[str, Callable[..., nn.Module]] = {
    "layer_norm": nn.LayerNorm,  # g * (x - mean) / sqrt(var + eps) + b, Ba et al. 2016
    "rms_norm": RMSNorm,
    "scale_norm": ScaleNorm,
    "ada_norm": AdaNorm,
}


def build_norm(config, size: int | None = None, eps: float | None = None) -> nn.Module:
    """A norm of `config.norm_type` over the last dimension (`d_model` wide, `config.layer_norm_eps` unless given)."""
    size = config.d_model if size is None else size
    return NORM_TYPES[config.norm_type](size, eps=config.layer_norm_eps if eps is None else eps)
