# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes that change the inside of a branch: extra norms and scales, or attention scores passed between layers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .connections import Stream, Sublayer, SublayerPlace, register_ln_mode
from .initialization import BareParameters
from .ln_modes import PostLN, PreLN
from .norms import build_norm
from .options import option
from .stack_config import StackConfig


class HeadScale(BareParameters):
    """One learned factor per head on (batch, length, heads * head_dim), initially 1."""

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.head_dim = head_dim
        self.weight = nn.Parameter(torch.ones(heads))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.weight[:, None].expand(-1, self.head_dim).flatten()


@register_ln_mode("normformer")
class NormFormer(PreLN):
    """Pre-LN with a norm after self-attention, a norm inside the feed-forward, and a learned scale per attention head.

    The official code (fairseq) covers decoders of language models, with ResScale off by default. Here cross-attention
    is plain Pre-LN.
    """

    equation = "x <- x + LN(scale_heads(SA(LN(x))));  x <- x + W2 LN(act(W1 LN(x)))"
    source = "Shleifer et al. 2021, NormFormer: Improved Transformer Pretraining with Extra Normalization"
    bibtex = "shleifer2021normformer"
    factors = {"shortcut": "w"}

    @dataclass(frozen=True)
    class Options:
        scale_residual: bool = option(
            False, help="ResScale: a learned weight in R^d on the shortcut of the feed-forward"
        )
        head_scale_position: str = option(
            "post_out",
            choices=("post_out", "pre_out"),
            help="scale heads after W^O (official code) or before it (paper)",
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.w = None
        if place.kind == "feed_forward" and self.options.scale_residual:
            self.w = nn.Parameter(torch.ones(config.d_model))

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        a = sublayer(self.norm(x))
        return (a + (x if self.w is None else x * self.w),)

    @classmethod
    def inner_modules(cls, config: StackConfig, place: SublayerPlace) -> dict[str, nn.Module]:
        if place.kind == "feed_forward":
            return {"inner": build_norm(config, size=config.ffn_dim)}
        if place.kind == "cross_attention":
            return {}
        heads = config.attention_heads
        scale = HeadScale(heads, config.d_model // heads)
        if config.options.head_scale_position == "pre_out":
            return {"heads": scale, "output": build_norm(config)}
        return {"output": nn.Sequential(scale, build_norm(config))}


@register_ln_mode("sub_ln")
class SubLN(PreLN):
    """Pre-LN with a second norm before the output map of self-attention and feed-forward; gains grow with depth.

    Cross-attention has neither the inner norm nor the gain, as in the official code.
    """

    equation = "x <- x + W^O LN(heads(LN(x)));  x <- x + W2 LN(act(W1 LN(x)))"
    source = "Wang et al. 2022, Foundation Transformers (Magneto)"
    bibtex = "wang2022foundation"
    default_init_style = "xavier_normal"

    @classmethod
    def inner_modules(cls, config: StackConfig, place: SublayerPlace) -> dict[str, nn.Module]:
        if place.kind == "feed_forward":
            return {"inner": build_norm(config, size=config.ffn_dim)}
        return {"heads": build_norm(config)} if place.kind == "self_attention" else {}

    @classmethod
    def init_gain(cls, config: StackConfig, place: SublayerPlace, role: str) -> float:
        if role in ("query", "key") or place.kind == "cross_attention":
            return 1.0
        n, m = config.encoder_layers, config.decoder_layers
        if not config.is_encoder_decoder:
            return math.sqrt(math.log(2 * place.num_layers))
        if place.stack == "encoder":
            return math.sqrt(math.log(3 * m) * math.log(2 * n) / 3)
        return math.sqrt(math.log(3 * m))


@register_ln_mode("realformer")
class RealFormer(PostLN):
    """Post-LN whose attention scores are added to those of the previous layer, separately for each kind of attention.

    The official code is an encoder; separate sums for decoder self- and cross-attention follow the paper. After the
    first layer the stream is `(x, self-attention scores[, cross-attention scores])`, unmasked.
    """

    equation = "S_l = Q_l K_l^T / sqrt(d_h) + S_{l-1};  x <- LN(x + softmax(S_l + mask) V)"
    source = "He et al. 2021, RealFormer: Transformer Likes Residual Attention"
    bibtex = "he2021realformer"
    attention_implementations = ("eager",)

    @dataclass(frozen=True)
    class Options:
        running_mean: bool = option(
            False, help="softmax of the mean of the scores instead of their sum; recommended for 30 or more layers"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        if self.options.running_mean and config.layerdrop:  # which layers have added scores is not known
            raise ValueError(f"{config.stack}_layerdrop must be 0 with running_mean, not {config.layerdrop}")

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, *scores = stream
        if self.place.kind == "feed_forward":
            return (self.norm(x + sublayer(x)), *scores)
        kind = self.place.position
        previous = scores[kind] if kind < len(scores) else None
        divisor = self.place.layer + 1.0 if self.options.running_mean else 1.0
        a, summed = sublayer.with_scores(x, previous, divisor)
        return (self.norm(x + a), *scores[:kind], summed, *scores[kind + 1 :])
