# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes that differ from Pre-LN in where they normalise, or in a factor on the norm or on the branch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import initialization as init

from .connections import ResidualConnection, StreamBoundary, register_ln_mode
from .ln_modes import NormAtEnd, PreLN
from .norms import RMSNorm, build_norm
from .options import option


@register_ln_mode("sandwich_ln")
class SandwichLN(PreLN):
    """Pre-LN with a second norm on what the branch returns, behind its dropout.

    The authors' norm first divides by the largest activation, which only eps can notice, and their output maps start
    smaller by sqrt(2L); neither is part of this mode.
    """

    equation = "x <- x + LN_2(f(LN_1(x)));  out = LN(x)"
    source = "Ding et al. 2021, CogView: Mastering Text-to-Image Generation via Transformers"
    bibtex = "ding2021cogview"

    def __init__(self, config, place):
        super().__init__(config, place)
        self.output_norm = build_norm(config)

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + self.output_norm(sublayer(self.norm(x))),)


@register_ln_mode("peri_ln")
class PeriLN(SandwichLN):
    """The formula of Sandwich-LN with RMS norms; the embeddings are not normalised."""

    source = "Kim et al. 2025, Peri-LN: Revisiting Normalization Layer in the Transformer Architecture"
    bibtex = "kim2025periln"
    default_norm_type = "rms_norm"


@register_ln_mode("output_ln")
class OutputLN(PreLN):
    """The branch reads the stream as it is and its output is normalised, behind its dropout.

    OLMo 2 uses RMS norms and also normalises queries and keys; this mode is the placement alone.
    """

    equation = "x <- x + LN(f(x));  out = LN(x)"
    source = "Liu et al. 2022, Swin Transformer V2 (res-post-norm); OLMo Team 2025, 2 OLMo 2 Furious"
    bibtex = ("liu2022swin", "olmo2025olmo2")

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + self.norm(sublayer(x)),)


@register_ln_mode("ln_scaling")
class LNScaling(PreLN):
    """Pre-LN whose norms are damped with depth; l counts the layers of a stack from 1.

    The authors' code is a decoder without cross-attention, which is scaled like the others here; the norm at the end
    of the stack is not scaled.
    """

    equation = "x <- x + f(LN(x) / sqrt(l));  out = LN(x)"
    source = "Sun et al. 2025, The Curse of Depth in Large Language Models"
    bibtex = "sun2025curse"
    folds_into = "pre_ln"

    def __init__(self, config, place):
        super().__init__(config, place)
        self.factor = (place.layer + 1) ** -0.5

    def foldable_scales(self):
        return {"norm": self.factor}

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + sublayer(self.norm(x) * self.factor),)


@dataclass(frozen=True)
class MixLNOptions:
    fraction: float = option(0.25, minimum=0.0, maximum=1.0, help="part of the layers, from the first, with Post-LN")


@register_ln_mode("mix_ln")
class MixLN(PreLN):
    """Post-LN in the first floor(fraction * L) layers of a stack of L, Pre-LN in the others."""

    equation = "layer < floor(fraction * L): x <- LN(x + a), else x <- x + f(LN(x));  out = LN(x)"
    source = "Li et al. 2024, Mix-LN: Unleashing the Power of Deeper Layers by Combining Pre-LN and Post-LN"
    bibtex = "li2024mixln"
    Options = MixLNOptions
    starts_from = "pre_ln"
    starting_options = {"fraction": 0.0}

    def __init__(self, config, place):
        super().__init__(config, place)
        self.is_post = place.layer < math.floor(round(self.options.fraction * place.num_layers, 9))

    def forward(self, stream, sublayer):
        (x,) = stream
        return (self.norm(x + sublayer(x)) if self.is_post else x + sublayer(self.norm(x)),)


@dataclass(frozen=True)
class HybridNormOptions:
    star: bool = option(False, help="HybridNorm*: the sub-layers of the first layer are Pre-LN")


@register_ln_mode("hybrid_norm")
class HybridNorm(ResidualConnection):
    """Attention reads the stream unnormalised but normalises q, k and v per head; the norm stands before the FFN.

    The shortcut of the feed-forward carries the normalised state, not the stream, except in the first layer of
    HybridNorm*. The authors' models are decoders without cross-attention: here it is built like self-attention, with
    k and v from the encoder's output, which has its own norm.
    """

    equation = "u = x + SA(x) with RMSNorm on q, k, v;  u <- u + CA(u) likewise;  t = LN(u);  x <- t + FF(t)"
    source = "Zhuo et al. 2025, HybridNorm: Towards Stable and Efficient Transformer Training via Hybrid Normalization"
    bibtex = "zhuo2025hybridnorm"
    Options = HybridNormOptions
    Boundary = NormAtEnd
    default_norm_type = "rms_norm"

    def __init__(self, config, place):
        super().__init__(config, place)
        self.is_pre = self.options.star and place.layer == 0
        if self.is_pre or place.kind == "feed_forward":
            self.norm = build_norm(config)

    def forward(self, stream, sublayer):
        (x,) = stream
        if self.is_pre:
            return (x + sublayer(self.norm(x)),)
        if self.place.kind == "feed_forward":
            x = self.norm(x)
        return (x + sublayer(x),)

    @classmethod
    def inner_modules(cls, config, place):
        if place.kind == "feed_forward":
            return {}
        heads = config.encoder_attention_heads if place.stack == "encoder" else config.decoder_attention_heads
        width = config.d_model // heads
        return {name: RMSNorm(width, eps=config.layer_norm_eps) for name in ("query", "key", "value")}


@dataclass(frozen=True)
class LayerScaleOptions:
    initial_scale: float = option(
        0.0, minimum=0.0, help="value at the start; 0: 0.1 for at most 18 layers, 1e-5 for at most 24, else 1e-6"
    )


@register_ln_mode("layer_scale")
class LayerScale(PreLN):
    """Pre-LN with a learned weight per dimension on every branch, small at the start.

    The default is the paper's rule for the depth of a stack. The code sets the value by model name: 1e-4 unless told
    otherwise, 1e-5 also for one model of 36 layers.
    """

    equation = "x <- x + w * f(LN(x)), w in R^d learned;  out = LN(x)"
    source = "Touvron et al. 2021, Going Deeper with Image Transformers (CaiT)"
    bibtex = "touvron2021going"
    Options = LayerScaleOptions
    folds_into = "pre_ln"

    def __init__(self, config, place):
        super().__init__(config, place)
        by_depth = 0.1 if place.num_layers <= 18 else 1e-5 if place.num_layers <= 24 else 1e-6
        self.initial_scale = self.options.initial_scale or by_depth
        self.scale = nn.Parameter(torch.full((config.d_model,), self.initial_scale))

    def init_parameters(self):
        init.constant_(self.scale, self.initial_scale)

    def foldable_scales(self):
        return {"branch": self.scale}

    def starting_values(self):
        return {"scale": 1.0}

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + self.scale * sublayer(self.norm(x)),)


@dataclass(frozen=True)
class SkipInitOptions:
    initial_alpha: float = option(0.0, minimum=0.0, help="value at the start, 0 or small")


@register_ln_mode("skip_init")
class SkipInit(ResidualConnection):
    """A learned scalar on every branch, 0 at the start, and no norm: ReZero with one gate per branch.

    Proposed for residual networks of images in the place of batch normalisation.
    """

    equation = "x <- x + alpha * f(x), alpha = 0 at the start"
    source = (
        "De & Smith 2020, Batch Normalization Biases Residual Blocks Towards the Identity Function in Deep Networks"
    )
    bibtex = "de2020batch"
    Options = SkipInitOptions
    folds_into = "xskip"

    def __init__(self, config, place):
        super().__init__(config, place)
        self.alpha = nn.Parameter(torch.full((1,), self.options.initial_alpha))

    def init_parameters(self):
        init.constant_(self.alpha, self.options.initial_alpha)

    def foldable_scales(self):
        return {"branch": self.alpha}

    def starting_values(self):
        return {"alpha": 1.0}

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + self.alpha * sublayer(x),)


class SiameseBoundary(StreamBoundary):
    """Both streams begin with the embeddings; the output is the norm of the sum of their norms."""

    def __init__(self, config, stack):
        super().__init__(config, stack)
        self.post_norm = build_norm(config)
        self.pre_norm = build_norm(config)
        self.norm = build_norm(config)

    def begin(self, hidden_states):
        return hidden_states, hidden_states

    def end(self, stream):
        x, y = stream
        return self.norm(self.post_norm(x) + self.pre_norm(y))


@register_ln_mode("siamese_norm")
class SiameseNorm(ResidualConnection):
    """A Post-LN stream x and a Pre-LN stream y; every branch reads the sum of their norms and updates both.

    Written after the authors' code for vision transformers, the post-pre variant; in the hybrid-pre variant attention
    normalises x only inside, per head. In x the branch is divided by sqrt(s*l), where l counts layers from 1 and s is
    the number of sub-layers in a layer: 2 in the code, 3 in a decoder with cross-attention here.
    """

    equation = "p = LN_x(x);  a = f(LN_z(p + LN_y(y)));  x <- p + a/sqrt(s*l);  y <- y + a;  out = LN(LN(x) + LN(y))"
    source = "Li et al. 2026, SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm"
    bibtex = "li2026siamesenorm"
    Boundary = SiameseBoundary

    def __init__(self, config, place):
        super().__init__(config, place)
        self.post_norm = build_norm(config)
        self.pre_norm = build_norm(config)
        self.input_norm = build_norm(config)
        self.branch_scale = (place.sublayers_per_layer * (place.layer + 1)) ** -0.5

    def forward(self, stream, sublayer):
        x, y = stream
        x = self.post_norm(x)
        a = sublayer(self.input_norm(x + self.pre_norm(y)))
        return x + self.branch_scale * a, y + a
