# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes that differ from Pre-LN in the place of their norms."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .connections import ResidualConnection, Stream, StreamBoundary, Sublayer, SublayerPlace, register_ln_mode
from .ln_modes import NormAtEnd, PreLN
from .norms import RMSNorm, build_norm
from .options import option
from .stack_config import StackConfig


@register_ln_mode("sandwich_ln")
class SandwichLN(PreLN):
    """Pre-LN with a second norm on the output of the branch, after its dropout.

    In the official code the norm first divides by the largest activation, which only matters for eps, and the initial
    output maps are smaller by sqrt(2L). Neither is part of this mode.
    """

    equation = "x <- x + LN_2(f(LN_1(x)));  out = LN(x)"
    source = "Ding et al. 2021, CogView: Mastering Text-to-Image Generation via Transformers"
    bibtex = "ding2021cogview"
    norm_on_branch = "output_norm"

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.output_norm = build_norm(config)

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + sublayer(self.norm(x), self.output_norm),)


@register_ln_mode("peri_ln")
class PeriLN(SandwichLN):
    """The formula of Sandwich-LN with RMS norms. The embeddings are not normalized."""

    source = "Kim et al. 2025, Peri-LN: Revisiting Normalization Layer in the Transformer Architecture"
    bibtex = "kim2025periln"
    default_norm_type = "rms_norm"


@register_ln_mode("output_ln")
class OutputLN(PreLN):
    """The branch reads the unnormalized stream, and its output is normalized after dropout.

    OLMo 2 uses RMS norms and also normalizes queries and keys. This mode covers only the placement.
    """

    equation = "x <- x + LN(f(x));  out = LN(x)"
    source = "Liu et al. 2022, Swin Transformer V2 (res-post-norm); OLMo Team 2025, 2 OLMo 2 Furious"
    bibtex = ("liu2022swin", "olmo2025olmo2")
    norm_on_branch = "norm"

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + sublayer(x, self.norm),)


@register_ln_mode("mix_ln")
class MixLN(PreLN):
    """Post-LN in the first floor(fraction * L) of the L layers of a stack, Pre-LN in the others."""

    equation = "layer < floor(fraction * L): x <- LN(x + a), else x <- x + f(LN(x));  out = LN(x)"
    source = "Li et al. 2024, Mix-LN: Unleashing the Power of Deeper Layers by Combining Pre-LN and Post-LN"
    bibtex = "li2024mixln"
    default_norm_type = "rms_norm"
    starts_from = "pre_ln"
    starting_options = {"fraction": 0.0}

    @dataclass(frozen=True)
    class Options:
        fraction: float = option(
            0.25, minimum=0.0, maximum=1.0, help="share of the layers, from the first, that are Post-LN"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.is_post = place.layer < math.floor(round(self.options.fraction * place.num_layers, 9))

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (self.norm(x + sublayer(x)) if self.is_post else x + sublayer(self.norm(x)),)


@register_ln_mode("hybrid_norm")
class HybridNorm(ResidualConnection):
    """Attention without a norm on its input but with norms on q, k and v per head, and a norm before the feed-forward.

    The shortcut of the feed-forward carries the normalized state, except in the first layer of HybridNorm*. The
    official models are decoders without cross-attention; here cross-attention is built like self-attention, with k and
    v from the encoder output, which has its own norm.
    """

    equation = "u = x + SA(x) with RMSNorm on q, k, v;  u <- u + CA(u) likewise;  t = LN(u);  x <- t + FF(t)"
    source = "Zhuo et al. 2025, HybridNorm: Towards Stable and Efficient Transformer Training via Hybrid Normalization"
    bibtex = "zhuo2025hybridnorm"
    Boundary = NormAtEnd
    default_norm_type = "rms_norm"

    @dataclass(frozen=True)
    class Options:
        star: bool = option(False, help="HybridNorm*: the first layer is Pre-LN")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.is_pre = self.options.star and place.layer == 0
        if self.is_pre or place.kind == "feed_forward":
            self.norm = build_norm(config)
        self.shortcut_at = "input" if self.is_pre else "branch.input"

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        if self.is_pre:
            return (x + sublayer(self.norm(x)),)
        if self.place.kind == "feed_forward":
            x = self.norm(x)
        return (x + sublayer(x),)

    @classmethod
    def inner_modules(cls, config: StackConfig, place: SublayerPlace) -> dict[str, nn.Module]:
        if place.kind == "feed_forward":
            return {}
        width = config.d_model // config.attention_heads
        return {name: RMSNorm(width, eps=config.layer_norm_eps) for name in ("query", "key", "value")}


class SiameseBoundary(StreamBoundary):
    """Both streams start from the embeddings. The output is the norm of the sum of their norms."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.post_norm = build_norm(config)
        self.pre_norm = build_norm(config)
        self.norm = build_norm(config)

    def begin(self, hidden_states: Tensor) -> Stream:
        return hidden_states, hidden_states

    def end(self, stream: Stream) -> Tensor:
        x, y = stream
        return self.norm(self.post_norm(x) + self.pre_norm(y))


@register_ln_mode("siamese_norm")
class SiameseNorm(ResidualConnection):
    """A Post-LN stream x and a Pre-LN stream y. Every branch reads the sum of their norms and updates both.

    Implemented after the official code: post-pre for vision transformers, and with `hybrid` hybrid-pre for language
    models. In x the branch is divided by sqrt(s*l), where l counts layers from 1 and s is the number of sub-layers per
    layer: 2 in the official code, 3 here in a decoder with cross-attention. In the hybrid form attention has p = x and
    no LN_z, and a learned gain w in R^d, initially 1; cross-attention is built like self-attention.
    """

    equation = "p = LN_x(x);  a = f(LN_z(p + LN_y(y)));  x <- p + a/sqrt(s*l);  y <- y + a;  out = LN(LN(x) + LN(y))"
    source = "Li et al. 2026, SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm"
    bibtex = "li2026siamesenorm"
    Boundary = SiameseBoundary
    factors = {"branch": "branch_scale"}

    @dataclass(frozen=True)
    class Options:
        hybrid: bool = option(
            False, help="x follows HybridNorm: attention reads w*x + LN_y(y), with norms on q, k and v"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.is_hybrid_attention = self.options.hybrid and place.kind != "feed_forward"
        if self.is_hybrid_attention:
            self.gain = nn.Parameter(torch.ones(config.d_model))
        else:
            self.post_norm = build_norm(config)
        self.pre_norm = build_norm(config)
        if not self.is_hybrid_attention:
            self.input_norm = build_norm(config)
        self.shortcut_at = "input" if self.is_hybrid_attention else "post_norm.output"
        self.branch_scale = (place.sublayers_per_layer * (place.layer + 1)) ** -0.5

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, y = stream
        if self.is_hybrid_attention:
            a = sublayer(self.gain * x + self.pre_norm(y))
        else:
            x = self.post_norm(x)
            a = sublayer(self.input_norm(x + self.pre_norm(y)))
        return x + self.branch_scale * a, y + a

    @classmethod
    def inner_modules(cls, config: StackConfig, place: SublayerPlace) -> dict[str, nn.Module]:
        return HybridNorm.inner_modules(config, place) if config.options.hybrid else {}
