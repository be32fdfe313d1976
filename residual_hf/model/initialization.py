# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The distributions of initial weights that `init_style` selects, by the role of a weight.

Weights are set, never multiplied, and only through `transformers.initialization`, which skips loaded tensors. `gain`
is the factor of the `ln_mode` (`ResidualConnection.init_gain`). Source: the official code of each method.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from typing_extensions import Self

Draw = Callable[[nn.Linear, float], None]


class BareParameters(nn.Module):
    """A module whose parameters and buffers start as its constructor sets them, also if a checkpoint lacks them."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        module = super().__new__(cls)
        module.__dict__["_build_anew"] = partial(cls, *args, **kwargs)
        return module

    def init_parameters(self) -> None:
        """Set the initial values of bare parameters through `transformers.initialization`. Norms need nothing."""
        if own := [*self.named_parameters(recurse=False), *self.named_buffers(recurse=False)]:
            fresh = self.__dict__["_build_anew"]()
            for name, values in own:
                init.copy_(values, getattr(fresh, name))


def xavier_uniform(scale: float = 1.0) -> Draw:
    """U(-b, b) with b = gain * scale * sqrt(6 / (fan_in + fan_out))."""

    def draw(linear: nn.Linear, gain: float) -> None:
        init.xavier_uniform_(linear.weight, gain=gain * scale)

    return draw


def xavier_normal(linear: nn.Linear, gain: float) -> None:
    """N(0, gain * sqrt(2 / (fan_in + fan_out)))."""
    init.xavier_normal_(linear.weight, gain=gain)


def small_normal(linear: nn.Linear, gain: float) -> None:
    """N(0, gain * sqrt(2 / 5d)): Nguyen & Salazar 2019, "SmallInit"."""
    init.normal_(linear.weight, std=gain * math.sqrt(2 / (5 * linear.in_features)))


def torch_default(linear: nn.Linear, gain: float) -> None:
    """U(-b, b) with b = gain / sqrt(fan_in), the default of `nn.Linear`."""
    bound = gain / math.sqrt(linear.in_features)
    init.uniform_(linear.weight, -bound, bound)


def mirrored(dim: int) -> Draw:
    """Xavier-uniform with the second half along `dim` the negated first half, so that relu(z) - relu(-z) = z."""

    def draw(linear: nn.Linear, gain: float) -> None:
        weight = nn.init.xavier_uniform_(torch.empty_like(linear.weight), gain=gain)
        half = weight.narrow(dim, 0, weight.shape[dim] // 2)
        init.copy_(linear.weight, torch.cat([half, -half], dim=dim))

    return draw


def torch_default_bias(linear: nn.Linear, gain: float) -> None:
    bound = 1.0 / math.sqrt(linear.in_features)
    init.uniform_(linear.bias, -bound, bound)


def scaled_torch_default_bias(linear: nn.Linear, gain: float) -> None:
    bound = gain / math.sqrt(linear.in_features)
    init.uniform_(linear.bias, -bound, bound)


def zero_bias(linear: nn.Linear, gain: float) -> None:
    init.zeros_(linear.bias)


@dataclass(frozen=True)
class InitStyle:
    """The distributions of one code base for the weights of each role and for biases.

    The defaults are those of fairseq before March 2020: Xavier everywhere, zero biases.
    """

    qkv: Draw = xavier_uniform(2**-0.5)
    attention_output: Draw = xavier_uniform()
    ffn_in: Draw = xavier_uniform()
    ffn_out: Draw = xavier_uniform()
    qkv_bias: Draw = zero_bias
    attention_output_bias: Draw = zero_bias
    ffn_bias: Draw = zero_bias

    def linear(self, linear: nn.Linear, role: str, gain: float) -> None:
        """Initialize a projection whose `role` is query, key, value, attention_output, ffn_in or ffn_out."""
        if role in ("query", "key", "value"):
            weight, bias = self.qkv, self.qkv_bias
        elif role == "attention_output":
            weight, bias = self.attention_output, self.attention_output_bias
        else:
            weight, bias = getattr(self, role), self.ffn_bias
        weight(linear, gain)
        if linear.bias is not None:
            bias(linear, gain)


def init_embedding(table: nn.Embedding | nn.Linear, gain: float, fix_norm: bool = False) -> None:
    """Initialize an embedding table or an untied output projection of width d from N(0, gain * d^-1/2).

    The row of the padding token is zero. With `fix_norm` the distribution is U(-0.01, 0.01), as in Transformers
    without Tears, where only directions matter.
    """
    weight = table.weight
    fresh = not getattr(weight, "_is_hf_initialized", False)
    if fix_norm:
        init.uniform_(weight, -0.01, 0.01)
    else:
        init.normal_(weight, mean=0.0, std=gain * weight.shape[1] ** -0.5)
    padding_idx = getattr(table, "padding_idx", None)
    if fresh and padding_idx is not None:
        init.zeros_(weight[padding_idx])


INIT_STYLES: dict[str, InitStyle] = {
    # fairseq since March 2020, used by ResiDual and B2T: feed-forward and q, k, v biases keep torch's default
    "fairseq_main": InitStyle(
        ffn_in=torch_default, ffn_out=torch_default, qkv_bias=torch_default_bias, ffn_bias=torch_default_bias
    ),
    # fairseq before that, used by Admin (Transformer-Clinic) and DLCL
    "fairseq_legacy": InitStyle(),
    # layer6ai-labs/T-Fixup: the biases of q, k and v keep torch's default
    "t_fixup": InitStyle(qkv_bias=torch_default_bias),
    # DeepNet as Transformer-Clinic builds it, and the pseudo-code of the Foundation Transformers paper
    "xavier_normal": InitStyle(
        qkv=xavier_normal, attention_output=xavier_normal, ffn_in=xavier_normal, ffn_out=xavier_normal
    ),
    # microsoft/torchscale: reset_parameters is never called, so torch's default remains; gains also apply to biases
    "torchscale": InitStyle(
        qkv=torch_default,
        attention_output=torch_default,
        ffn_in=torch_default,
        ffn_out=torch_default,
        qkv_bias=scaled_torch_default_bias,
        attention_output_bias=scaled_torch_default_bias,
        ffn_bias=scaled_torch_default_bias,
    ),
    # Balduzzi et al. 2017 as in Transformer-Clinic: the feed-forward is initially linear
    "looklinear": InitStyle(ffn_in=mirrored(0), ffn_out=mirrored(1)),
    # Nguyen & Salazar 2019, Transformers without Tears
    "small_init": InitStyle(
        qkv=small_normal, attention_output=small_normal, ffn_in=xavier_normal, ffn_out=xavier_normal
    ),
}
