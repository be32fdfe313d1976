# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes that train deep networks by their initial values, with gates or scalars in the place of norms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .connections import ResidualConnection, StreamBoundary, register_ln_mode
from .norms import build_norm
from .options import option


@register_ln_mode("t_fixup")
class TFixup(ResidualConnection):
    """No norm and no warm-up; Xavier weights scaled down with depth, v undone of its 1/sqrt(2).

    Queries and keys keep gain 1/sqrt(2) (the paper: 1), positions are not scaled: as the code has it.
    """

    equation = "x <- x + a"
    source = "Huang et al. 2020, Improving Transformer Optimization Through Better Initialization"
    bibtex = "huang2020improving"
    warmup = "not needed"
    default_init_style = "t_fixup"
    starts_from = "xskip"

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + sublayer(x),)

    @classmethod
    def init_gain(cls, config, place, role):
        if role in ("query", "key"):
            return 1.0
        depth = place.num_layers
        scale = 0.67 * depth**-0.25 if place.stack == "encoder" else (9 * depth) ** -0.25
        return 2**0.5 * scale if role == "value" else scale

    @classmethod
    def embedding_gain(cls, config, stack):
        if stack is None:
            return 1.0
        depth = config.decoder_layers if stack == "decoder" else config.encoder_layers
        if config.share_encoder_decoder_embeddings:
            depth = config.encoder_layers
        return (9 * depth) ** -0.25


@dataclass(frozen=True)
class GateOptions:
    gate: str = option("layer", choices=("layer", "sublayer"), help="one gate per layer (the code) or per branch")


@register_ln_mode("rezero")
class ReZero(ResidualConnection):
    """A learned gate on every branch, 0 at the start, so that a fresh stack is the identity.

    The formula has one gate per residual branch, the official package one per layer, shared by its sub-layers.
    """

    equation = "x <- x + alpha_l * a, alpha_l = 0 at the start"
    source = "Bachlechner et al. 2020, ReZero is All You Need"
    bibtex = "bachlechner2020rezero"
    warmup = "not needed"
    default_init_style = "fairseq_legacy"
    Options = GateOptions
    folds_into = "xskip"

    def __init__(self, config, place):
        super().__init__(config, place)
        self.owner: tuple[ReZero, ...] = (self,)  # in a tuple: a shared gate is the parameter of its owner only
        if place.is_first_in_layer or self.options.gate == "sublayer":
            self.alpha = nn.Parameter(torch.zeros(1))

    def share(self, first):
        if self.options.gate == "layer":
            self.owner = (first,)

    def init_parameters(self):
        if self.owner[0] is self:
            init.zeros_(self.alpha)

    def foldable_scales(self):
        return {"branch": self.owner[0].alpha}

    def starting_values(self):
        return {"alpha": 1.0} if self.owner[0] is self else {}

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + self.owner[0].alpha * sublayer(x),)


@register_ln_mode("rezero_post_ln")
class ReZeroPostLN(ReZero):
    """ReZero with Post-LN's norm."""

    equation = "x <- LN(x + alpha_l * a), alpha_l = 0 at the start"
    source = "Liu et al. 2020, Understanding the Difficulty of Training Transformers, appendix E"
    bibtex = ("liu2020understanding", "bachlechner2020rezero")
    folds_into = "post_ln"

    def __init__(self, config, place):
        super().__init__(config, place)
        self.norm = build_norm(config)

    def forward(self, stream, sublayer):
        (x,) = stream
        return (self.norm(x + self.owner[0].alpha * sublayer(x)),)


class Shift(nn.Module):
    """z - b with one learned scalar b, 0 at the start."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def init_parameters(self) -> None:
        init.zeros_(self.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states - self.bias


class Scale(nn.Module):
    """s * z with one learned scalar s, 1 at the start."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def init_parameters(self) -> None:
        init.ones_(self.weight)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.weight


class FixupBoundary(StreamBoundary):
    """A shift at the end of a stack, and a scale behind it in the encoder."""

    def __init__(self, config, stack):
        super().__init__(config, stack)
        self.shift = Shift()
        self.scale = Scale() if stack == "encoder" else nn.Identity()

    def end(self, stream):
        return self.scale(self.shift(stream[0]))


@register_ln_mode("fixup")
class Fixup(ResidualConnection):
    """No norms and no biases; scalar shifts and scales, the last map of every branch zero at the start.

    As in the official `transformer_zero` the cross-attention's input maps use 12^-1/6 at any depth.
    """

    equation = "x <- x + s * f(x - b);  inside FF a shift before and behind the activation"
    source = "Zhang et al. 2019, Fixup Initialization: Residual Learning Without Normalization"
    bibtex = "zhang2019fixup"
    default_init_style = "fairseq_legacy"
    Boundary = FixupBoundary
    linear_bias = False

    def __init__(self, config, place):
        super().__init__(config, place)
        self.shift = Shift()
        self.scale = Scale()

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + self.scale(sublayer(self.shift(x))),)

    @classmethod
    def inner_modules(cls, config, place):
        return {"pre_activation": Shift(), "inner": Shift()} if place.kind == "feed_forward" else {}

    @classmethod
    def init_gain(cls, config, place, role):
        branches = 2 * config.encoder_layers + 3 * config.decoder_layers
        if role in ("attention_output", "ffn_out"):
            return 0.0
        if role == "ffn_in":
            return branches**-0.5
        return (12 if place.kind == "cross_attention" else branches) ** (-1 / 6)

    @classmethod
    def embedding_gain(cls, config, stack):
        return 0.0 if stack is None else 1.0
