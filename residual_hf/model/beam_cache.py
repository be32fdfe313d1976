# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Keys and values during a search: those of the source once per sentence, those of the target once per beam.

Hidden states have the shape (sentences, beams, d_model): the beams of a sentence are queries to the same source, so
cross-attention needs no copy of it. Only self-attention, where every beam has its own past, sees beams as a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class TargetCache:
    """Keys and values of decoder self-attention, (2, rows, heads, tokens, head_dim) per layer; grows in steps."""

    GROWTH = 32

    def __init__(self, layers: int):
        self.length = 0
        self.layers: list[Tensor | None] = [None] * layers

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append one token per beam, (sentences, heads, beams, head_dim); returns all, (rows, heads, tokens, ...)."""
        new = torch.stack((key, value)).transpose(2, 3).flatten(1, 2)
        buffer = self.layers[layer]
        if buffer is None or self.length == buffer.shape[3]:
            room = new.new_empty(*new.shape[:3], self.GROWTH, new.shape[3])
            buffer = self.layers[layer] = room if buffer is None else torch.cat((buffer, room), dim=3)
        buffer[:, :, :, self.length] = new
        keys, values = buffer[:, :, :, : self.length + 1]
        return keys, values

    def select(self, rows: Tensor) -> None:
        """Continue with these rows; rows that stay where they are, are not copied."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        for layer, buffer in enumerate(self.layers):
            if buffer is not None:
                kept = buffer[:, : len(rows)]
                if len(moved) > 0:
                    kept[:, moved, :, : self.length] = buffer[:, rows[moved], :, : self.length]
                self.layers[layer] = kept


class SourceCache:
    """Keys and values of cross-attention, (sentences, heads, source length, head_dim) per layer."""

    class Layer:
        def __init__(self, keys: Tensor, values: Tensor):
            self.keys, self.values = keys, values

    def __init__(self) -> None:
        self.layers: dict[int, SourceCache.Layer] = {}

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self.layers[layer] = self.Layer(key, value)
        return key, value

    def select(self, sentences: Tensor) -> None:
        for layer in self.layers.values():
            layer.keys, layer.values = layer.keys[sentences], layer.values[sentences]


class BeamCache:
    """What `ResidualAttention` sees as `past_key_values` in a search."""

    def __init__(self, layers: int):
        self.self_attention_cache = TargetCache(layers)
        self.cross_attention_cache = SourceCache()
        self.is_updated: dict[int, bool] = {}

    def attend(
        self,
        attention_interface: Callable[..., tuple[Tensor, ...]],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """Attention of queries (sentences, heads, beams, head_dim), for self-attention with beams as a batch."""
        if module.is_cross_attention:
            return attention_interface(module, query, key, value, attention_mask, **kwargs)
        sentences, heads, beams, width = query.shape
        rows = query.transpose(1, 2).reshape(sentences * beams, heads, 1, width)
        output, *rest = attention_interface(module, rows, key, value, None, **kwargs)
        return output.reshape(sentences, beams, heads, width), *rest
