# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes that reach inside a branch: norms and scales between its maps, or scores that travel from layer to layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .connections import register_ln_mode
from .ln_modes import PostLN, PreLN
from .norms import build_norm
from .options import option


class HeadScale(nn.Module):
    """One learned factor per head on (batch, length, heads * head_dim), 1 at the start."""

    def __init__(self, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))

    def init_parameters(self) -> None:
        init.ones_(self.weight)

    def forward(self, hidden_states: Tensor) -> Tensor:
        heads = hidden_states.unflatten(-1, (len(self.weight), -1))
        return (heads * self.weight[:, None]).flatten(-2)


@dataclass(frozen=True)
class NormFormerOptions:
    scale_residual: bool = option(True, help="a learned weight in R^d on the shortcut of the feed-forward")
    head_scale_position: str = option(
        "post_out", choices=("post_out", "pre_out"), help="heads scaled behind W^O (the code) or before it (the paper)"
    )


@register_ln_mode("normformer")
class NormFormer(PreLN):
    """Pre-LN with a norm behind self-attention, one inside the feed-forward, and a learned scale per head.

    The official code has it for decoders of language models; cross-attention stays plain Pre-LN here.
    """

    equation = "x <- x + D LN(scale_heads(SA(LN(x))));  x <- w*x + W2 LN(act(W1 LN(x)))"
    source = "Shleifer et al. 2021, NormFormer: Improved Transformer Pretraining with Extra Normalization"
    bibtex = "shleifer2021normformer"
    Options = NormFormerOptions

    def __init__(self, config, place):
        super().__init__(config, place)
        self.w = None
        if place.kind == "feed_forward" and self.options.scale_residual:
            self.w = nn.Parameter(torch.ones(config.d_model))

    def init_parameters(self):
        if self.w is not None:
            init.ones_(self.w)

    def forward(self, stream, sublayer):
        (x,) = stream
        a = sublayer(self.norm(x))
        return (a + (x if self.w is None else x * self.w),)

    @classmethod
    def inner_modules(cls, config, place):
        if place.kind == "feed_forward":
            return {"inner": build_norm(config, ffn_width(config, place.stack))}
        if place.kind == "cross_attention":
            return {}
        heads = config.encoder_attention_heads if place.stack == "encoder" else config.decoder_attention_heads
        if config.ln_options(place.stack).head_scale_position == "pre_out":
            return {"heads": HeadScale(heads), "output": build_norm(config)}
        return {"output": nn.Sequential(HeadScale(heads), build_norm(config))}


@register_ln_mode("sub_ln")
class SubLN(PreLN):
    """Pre-LN with a second norm before the output map of self-attention and feed-forward; gains grow with depth.

    Cross-attention has neither the inner norm nor the gain, as the authors' code has it.
    """

    equation = "x <- x + W^O LN(heads(LN(x)));  x <- x + W2 LN(act(W1 LN(x)))"
    source = "Wang et al. 2022, Foundation Transformers (Magneto)"
    bibtex = "wang2022foundation"
    default_init_style = "xavier_normal"

    @classmethod
    def inner_modules(cls, config, place):
        if place.kind == "feed_forward":
            return {"inner": build_norm(config, ffn_width(config, place.stack))}
        return {"heads": build_norm(config)} if place.kind == "self_attention" else {}

    @classmethod
    def init_gain(cls, config, place, role):
        if role in ("query", "key") or place.kind == "cross_attention":
            return 1.0
        n, m = config.encoder_layers, config.decoder_layers
        if place.stack == "encoder":
            return math.sqrt(math.log(3 * m) * math.log(2 * n) / 3)
        return math.sqrt(math.log(3 * m))


@dataclass(frozen=True)
class RealFormerOptions:
    running_mean: bool = option(
        False, help="softmax over the mean, not the sum, of the scores; advised for 30+ layers"
    )


@register_ln_mode("realformer")
class RealFormer(PostLN):
    """Post-LN whose attention scores are added to those of the layer before, each kind of attention on its own.

    The official code is an encoder; separate sums for decoder self- and cross-attention follow the paper's text.
    Behind the first layer the stream is `(x, self-attention scores[, cross-attention scores])`, unmasked.
    """

    equation = "S_l = Q_l K_l^T / sqrt(d_h) + S_{l-1};  x <- LN(x + softmax(S_l + mask) V)"
    source = "He et al. 2021, RealFormer: Transformer Likes Residual Attention"
    bibtex = "he2021realformer"
    Options = RealFormerOptions
    attention_implementations = ("eager",)

    def forward(self, stream, sublayer):
        x, *scores = stream
        if self.place.kind == "feed_forward":
            return (self.norm(x + sublayer(x)), *scores)
        kind = self.place.position
        previous = scores[kind] if kind < len(scores) else None
        divisor = self.place.layer + 1.0 if self.options.running_mean else 1.0
        a, summed = sublayer.with_scores(x, previous, divisor)
        scores[kind : kind + 1] = [summed]
        return (self.norm(x + a), *scores)


def ffn_width(config, stack: str) -> int:
    return config.encoder_ffn_dim if stack == "encoder" else config.decoder_ffn_dim
