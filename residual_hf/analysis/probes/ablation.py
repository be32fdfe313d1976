# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Loss of a model without one of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from residual_hf.errors import InputError
from residual_hf.model.connections import get_ln_mode

from .undisturbed import Batch, Batches, as_list, undisturbed


@dataclass(frozen=True)
class LayerRemoval:
    """Mean loss per token without a layer (from 1); layer 0: with all layers. `score` is that of the caller."""

    stack: str
    layer: int
    loss: float
    score: float | None = None


def layer_removal(model: Any, batches: Batches, score: Callable[[Any], float] | None = None) -> list[LayerRemoval]:
    """Loss, and `score(model)` if given, with each layer removed in turn.

    Raises:
        InputError: layers of the mode depend on the number of layers before them (`supports_layerdrop = False`).
    """
    batches = as_list(batches)
    rows = []
    with undisturbed(model, training=False):
        for name in ("encoder", "decoder"):
            stack = getattr(model, f"get_{name}")()
            mode = get_ln_mode(model.config.stack_ln_mode(name)) if hasattr(model.config, "stack_ln_mode") else None
            if mode is not None and not mode.supports_layerdrop:
                raise InputError(f"{mode.name}: its layers cannot be removed")
            attribute = "layers" if hasattr(stack, "layers") else "block"
            for index in range(len(getattr(stack, attribute)) + 1):
                if index == 0 and name == "decoder":
                    continue  # measured for the encoder
                with without_layer(stack, attribute, index - 1):
                    figure = None if score is None else score(model)
                    rows.append(LayerRemoval(name, index, mean_loss(model, batches), figure))
    return rows


@contextmanager
def without_layer(stack: Any, attribute: str, index: int) -> Iterator[None]:
    """Remove a layer; -1 removes none."""
    layers = getattr(stack, attribute)
    setattr(stack, attribute, nn.ModuleList(layer for i, layer in enumerate(layers) if i != index))
    try:
        yield
    finally:
        setattr(stack, attribute, layers)


@torch.no_grad()
def mean_loss(model: nn.Module, batches: Iterable[Batch]) -> float:
    total = tokens = 0.0
    for batch in batches:
        count = int(batch["labels"].ne(-100).sum())
        total += float(model(**batch, use_cache=False).loss) * count
        tokens += count
    return total / tokens
