# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Keys and values during a search: those of the source once per sentence, those of the target once per beam."""

from __future__ import annotations

import torch
from torch import Tensor


class TargetCache:
    """Keys and values of all layers in one tensor, (2, layers, rows, heads, tokens, head_dim), that grows in steps."""

    GROWTH = 32

    def __init__(self, states: Tensor):
        """`states`: an empty tensor of that shape, with room for no token."""
        self.length = 0
        self._hold(states)

    def _hold(self, states: Tensor) -> None:
        self.states = states
        self.layers = list(zip(*(part.unbind(0) for part in states.unbind(0)), strict=True))

    def grow(self) -> None:
        """Make room for a token."""
        if self.length == self.states.shape[4]:
            room = self.states.new_empty(*self.states.shape[:4], self.GROWTH, self.states.shape[5])
            self._hold(torch.cat((self.states, room), dim=4))
        self.length += 1

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest token of each row, (rows, heads, 1, head_dim); returns all, (rows, heads, tokens, ...)."""
        keys, values = self.layers[layer]
        keys.narrow(2, self.length - 1, 1).copy_(key)
        values.narrow(2, self.length - 1, 1).copy_(value)
        return keys.narrow(2, 0, self.length), values.narrow(2, 0, self.length)

    def select(self, rows: Tensor) -> None:
        """Continue with these rows; rows that stay where they are are not copied."""
        moved = (rows != torch.arange(len(rows))).nonzero()[:, 0]
        if len(moved) > 0:
            written = self.states.narrow(4, 0, self.length)
            written.index_copy_(2, moved, written.index_select(2, rows[moved]))
        if len(rows) < self.states.shape[2]:
            self._hold(self.states[:, :, : len(rows)])


class SourceCache:
    """Keys and values of cross-attention and its mask.

    Args:
        layers: keys and values, (sentences, heads, source length, head_dim) each, of every layer.
        mask: nonzero at source tokens, (sentences, source length), or None: there is no padding.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], mask: Tensor | None):
        self.layers, self.mask = layers, None
        if mask is not None and not mask.all():
            scores = layers[0][0].new_zeros(mask.shape)
            self.mask = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)[:, None, None]

    def select(self, sentences: Tensor) -> None:
        """Continue with these sentences."""
        self.layers = [(key[sentences], value[sentences]) for key, value in self.layers]
        self.mask = None if self.mask is None else self.mask[sentences]
