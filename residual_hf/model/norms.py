# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Norms a connection may use, by the config word `norm_type`.

Their statistics are accumulated in fp32 whatever the dtype of the input, as PyTorch's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

NORM_TYPES: dict[str, Callable[..., nn.Module]] = {
    "layer_norm": nn.LayerNorm,  # g * (x - mean) / sqrt(var + eps) + b       Ba et al. 2016
    "rms_norm": nn.RMSNorm,  # g * x / sqrt(mean(x^2) + eps)                  Zhang & Sennrich 2019
}


def build_norm(config, size: int | None = None, eps: float | None = None) -> nn.Module:
    """A norm of `config.norm_type` over the last dimension (`d_model` wide, `config.layer_norm_eps` unless given)."""
    size = config.d_model if size is None else size
    return NORM_TYPES[config.norm_type](size, eps=config.layer_norm_eps if eps is None else eps)
