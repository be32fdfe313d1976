# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The narrow models of this folder."""

from __future__ import annotations

from typing import Any

from residual_hf import ResidualConfig, ResidualForConditionalGeneration


def shape(mode: str, depth: int, width: int) -> dict[str, Any]:
    """Fields of `ResidualConfig` for `depth` layers in each stack."""
    stacks = {"layers": depth, "ffn_dim": 2 * width, "attention_heads": 4}
    sizes = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in stacks.items()}
    return {"ln_mode": mode, "d_model": width, **sizes}


def build(mode: str, depth: int, width: int, **fields: Any) -> ResidualForConditionalGeneration:
    """A model of this shape, in training mode; `fields` are those of `ResidualConfig`."""
    return ResidualForConditionalGeneration(ResidualConfig(**shape(mode, depth, width), **fields)).train()
