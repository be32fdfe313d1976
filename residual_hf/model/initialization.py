# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Initial weights by the config word `init_style`: which law each weight is drawn from, by its role.

Weights are set, never multiplied, and only through `transformers.initialization`, which leaves loaded tensors alone.
`gain` is the factor that an `ln_mode` asks for (`ResidualConnection.init_gain`). Sources: the official code bases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from transformers import initialization as init

Draw = Callable[[nn.Linear, float], None]
QKV = ("query", "key", "value")


def xavier_uniform(scale: float = 1.0) -> Draw:
    """U(-b, b) with b = gain * scale * sqrt(6 / (fan_in + fan_out))."""

    def draw(linear: nn.Linear, gain: float) -> None:
        init.xavier_uniform_(linear.weight, gain=gain * scale)

    return draw


def torch_default(linear: nn.Linear, gain: float) -> None:
    """U(-b, b) with b = gain / sqrt(fan_in): what `nn.Linear` starts from when nobody resets it."""
    bound = gain / math.sqrt(linear.in_features)
    init.uniform_(linear.weight, -bound, bound)


def torch_default_bias(linear: nn.Linear) -> None:
    bound = 1.0 / math.sqrt(linear.in_features)
    init.uniform_(linear.bias, -bound, bound)


def zero_bias(linear: nn.Linear) -> None:
    init.zeros_(linear.bias)


@dataclass(frozen=True)
class InitStyle:
    """The laws of one code base: weights of q, k, v, of the attention output, of the feed-forward; their biases."""

    qkv: Draw
    attention_output: Draw
    feed_forward: Draw
    qkv_bias: Callable[[nn.Linear], None]
    feed_forward_bias: Callable[[nn.Linear], None]

    def linear(self, linear: nn.Linear, role: str, gain: float) -> None:
        """Draw a projection of a sub-layer; `role` is query, key, value, attention_output, ffn_in or ffn_out."""
        if role in QKV:
            weight, bias = self.qkv, self.qkv_bias
        elif role == "attention_output":
            weight, bias = self.attention_output, zero_bias
        else:
            weight, bias = self.feed_forward, self.feed_forward_bias
        weight(linear, gain)
        if linear.bias is not None:
            bias(linear)

    def embedding(self, embedding: nn.Embedding | nn.Linear, gain: float) -> None:
        """N(0, d^-1/2) for a table of width d (also an untied output projection); the row of the padding is zero."""
        weight = embedding.weight
        fresh = not getattr(weight, "_is_hf_initialized", False)
        init.normal_(weight, mean=0.0, std=gain * weight.shape[1] ** -0.5)
        padding_idx = getattr(embedding, "padding_idx", None)
        if fresh and padding_idx is not None:
            init.zeros_(weight[padding_idx])


INIT_STYLES: dict[str, InitStyle] = {
    # fairseq since March 2020, used by ResiDual and B2T: feed-forward and q, k, v biases stay at torch's default
    "fairseq_main": InitStyle(
        qkv=xavier_uniform(2**-0.5),
        attention_output=xavier_uniform(),
        feed_forward=torch_default,
        qkv_bias=torch_default_bias,
        feed_forward_bias=torch_default_bias,
    ),
    # fairseq before that, used by Admin (Transformer-Clinic) and DLCL: Xavier everywhere, zero biases
    "fairseq_legacy": InitStyle(
        qkv=xavier_uniform(2**-0.5),
        attention_output=xavier_uniform(),
        feed_forward=xavier_uniform(),
        qkv_bias=zero_bias,
        feed_forward_bias=zero_bias,
    ),
}
