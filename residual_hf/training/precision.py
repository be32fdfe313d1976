# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What a precision asks of the model and of torch."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict
from typing import Any

import torch

from residual_hf.model.configuration_residual import ResidualConfig

logger = logging.getLogger(__name__)

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""`fp32`: as it is; `tf32`: matrix products of fp32 tensors in TF32 where the card has it; the others: autocast."""


def set_matmul_precision(precision: str) -> None:
    """Let fp32 matrix products of a CUDA device run in TF32, or not."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def scale_dual_stream(config: ResidualConfig) -> ResidualConfig:
    """The config with ResiDual's dual stream scaled down so that fp16 can hold the sum of its branches.

    Per stack of N layers whose mode has a `dual_scale` that is 1: s = 2^-ceil(log2 N), 1/32 for 18 layers (the paper's
    OPUS-100 recipe has 0.05 there), with the epsilon of the dual norm times s^2. As the LN of s*r with epsilon s^2 * e
    is the LN of r with epsilon e, and s is a power of two, logits do not change in fp32, bit for bit; with the epsilon
    left as it is they would by up to 8e-5 (s = 0.05).
    """
    changes: dict[str, Any] = {}
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        options = config.ln_options(stack)
        if getattr(options, "dual_scale", None) == 1.0 and layers > 1:
            scale = 2.0 ** -math.ceil(math.log2(layers))
            epsilon = options.dual_layer_norm_eps * scale**2
            own = asdict(options) | {"dual_scale": scale, "dual_layer_norm_eps": epsilon}
            changes[f"{stack}_ln_mode_options"] = own
            logger.info("fp16: dual_scale %g in the %s of %d layers; logits are those of 1", scale, stack, layers)
    return type(config)(**{**config.to_dict(), **changes}) if changes else config
