# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes without norms inside the layers: scaled initial weights, gates, or scalar shifts and scales."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .connections import ResidualConnection, Stream, StreamBoundary, Sublayer, SublayerPlace, register_ln_mode
from .initialization import BareParameters
from .norms import build_norm
from .options import option
from .stack_config import StackConfig


@register_ln_mode("t_fixup")
class TFixup(ResidualConnection):
    """No norms and no warm-up: Xavier weights and embeddings are scaled down with depth.

    Values have gain 1 before the scaling, queries and keys keep gain 1/sqrt(2) (1 in the paper), and positions are not
    scaled, as in the official code. A decoder without cross-attention has the factor of the encoder, 0.67 N^-1/4.
    """

    equation = "x <- x + a"
    source = "Huang et al. 2020, Improving Transformer Optimization Through Better Initialization"
    bibtex = "huang2020improving"
    warmup = "not needed"
    default_init_style = "t_fixup"
    starts_from = "xskip"

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + sublayer(x),)

    @classmethod
    def init_gain(cls, config: StackConfig, place: SublayerPlace, role: str) -> float:
        if role in ("query", "key"):
            return 1.0
        depth = place.num_layers
        reads_memory = place.stack == "decoder" and config.is_encoder_decoder
        scale = (9 * depth) ** -0.25 if reads_memory else 0.67 * depth**-0.25
        return 2**0.5 * scale if role == "value" else scale

    @classmethod
    def embedding_gain(cls, config: StackConfig, table: str) -> float:
        return 1.0 if table == "output" else (9 * config.layers) ** -0.25


@register_ln_mode("rezero")
class ReZero(ResidualConnection):
    """A learned scalar gate on every branch, initially 0, so that a fresh stack is the identity.

    The paper's formula has one gate per branch, the official package one per layer, shared by its sub-layers. Within a
    layer the stream carries the shared gate, `(x, alpha)`.
    """

    equation = "x <- x + alpha_l * a, initially alpha_l = 0"
    source = "Bachlechner et al. 2020, ReZero is All You Need"
    bibtex: ClassVar[str | tuple[str, ...]] = "bachlechner2020rezero"
    warmup = "not needed"
    default_init_style = "fairseq_legacy"
    factors = {"branch": "alpha"}
    folds_into = "xskip"

    @dataclass(frozen=True)
    class Options:
        gate: str = option(
            "layer", choices=("layer", "sublayer"), help="one gate per layer (as in the official code) or per branch"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.is_shared = self.options.gate == "layer"
        if place.is_first_in_layer or not self.is_shared:
            self.alpha = nn.Parameter(torch.zeros(1))

    def foldable_scales(self) -> dict[str, Tensor | float]:
        return {"branch": (self.first_in_layer[0] if self.is_shared and self.first_in_layer else self).alpha}

    def join(self, x: Tensor, a: Tensor) -> Tensor:
        """The new state from the state and the output of the branch times its gate."""
        return x + a

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, *shared = stream
        gate = shared[0] if shared else self.alpha
        x = self.join(x, gate * sublayer(x))
        return (x, gate) if self.is_shared and not self.place.is_last_in_layer else (x,)


@register_ln_mode("rezero_post_ln")
class ReZeroPostLN(ReZero):
    """ReZero with the norm of Post-LN."""

    equation = "x <- LN(x + alpha_l * a), initially alpha_l = 0"
    source = "Liu et al. 2020, Understanding the Difficulty of Training Transformers, appendix E"
    bibtex = ("liu2020understanding", "bachlechner2020rezero")
    folds_into = "post_ln"

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.norm = build_norm(config)

    def join(self, x: Tensor, a: Tensor) -> Tensor:
        return self.norm(x + a)


class Shift(BareParameters):
    """z - b with one learned scalar b, initially 0."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states - self.bias


class Scale(BareParameters):
    """s * z with one learned scalar s, initially 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.weight


class FixupBoundary(StreamBoundary):
    """A shift at the end of the stack, followed by a scale in the encoder."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.shift = Shift()
        self.scale = Scale() if config.stack == "encoder" else nn.Identity()

    def end(self, stream: Stream) -> Tensor:
        return self.scale(self.shift(stream[0]))


@register_ln_mode("fixup")
class Fixup(ResidualConnection):
    """No norms and no biases, but scalar shifts and scales. The last map of every branch is initially zero.

    As in the official `transformer_zero`, the input maps of cross-attention use gain 12^-1/6 at any depth.
    """

    equation = "x <- x + s * f(x - b);  shifts before and after the activation of FF"
    source = "Zhang et al. 2019, Fixup Initialization: Residual Learning Without Normalization"
    bibtex = "zhang2019fixup"
    default_init_style = "fairseq_legacy"
    Boundary = FixupBoundary
    factors = {"branch": "scale.weight"}
    linear_bias = False

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.shift = Shift()
        self.scale = Scale()

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + self.scale(sublayer(self.shift(x))),)

    @classmethod
    def inner_modules(cls, config: StackConfig, place: SublayerPlace) -> dict[str, nn.Module]:
        return {"pre_activation": Shift(), "inner": Shift()} if place.kind == "feed_forward" else {}

    @classmethod
    def init_gain(cls, config: StackConfig, place: SublayerPlace, role: str) -> float:
        branches = sum(stack.num_sublayers for stack in config.model.stack_configs)
        if role in ("attention_output", "ffn_out"):
            return 0.0
        if role == "ffn_in":
            return branches**-0.5
        return (12 if place.kind == "cross_attention" else branches) ** (-1 / 6)

    @classmethod
    def embedding_gain(cls, config: StackConfig, table: str) -> float:
        return 0.0 if table == "output" else 1.0
