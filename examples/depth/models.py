# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The narrow models of this folder."""

from __future__ import annotations

from typing import Any

from residual_hf import ResidualConfig, ResidualForConditionalGeneration


def build(mode: str, depth: int, width: int, **fields: Any) -> ResidualForConditionalGeneration:
    """`depth` layers in each stack, in training mode; `fields` are those of `ResidualConfig`."""
    config = ResidualConfig(
        ln_mode=mode,
        d_model=width,
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        scale_embedding=True,
        **fields,
    )
    return ResidualForConditionalGeneration(config).train()
