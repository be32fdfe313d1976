# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes that change the shortcut: a scale before the norm, or several norms."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from .connections import ResidualConnection, Stream, Sublayer, SublayerPlace, register_ln_mode
from .ln_modes import PostLN
from .norms import build_norm
from .options import option
from .stack_config import StackConfig


@register_ln_mode("admin")
class Admin(PostLN):
    """A learned scale on every shortcut, initialized by profiling so that branch i adds about 1/i of the variance.

    In a fresh model omega is 1, which equals Post-LN. `model.profile_admin(batch)` sets it as the official code does.
    The paper's formula, sqrt(sum of Var f_j), omits the variance of the embeddings and gives 0 for the first omega.
    """

    equation = "x <- LN(omega * x + a), omega in R^d learned"
    source = "Liu et al. 2020, Understanding the Difficulty of Training Transformers"
    bibtex = "liu2020understanding"
    warmup = "not needed"
    default_init_style = "fairseq_legacy"
    factors = {"shortcut": "omega"}
    folds_into = "post_ln"

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.omega = nn.Parameter(torch.full((config.d_model,), profiled_omega(config, place)))

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (self.norm(sublayer(x) + x * self.omega),)


def profiled_omega(config: StackConfig, place: SublayerPlace) -> float:
    """The entry of `config.admin_profile` (sub-layers of the encoder, then of the decoder), or 1 without a profile."""
    if not config.admin_profile:
        return 1.0
    before = config.model.of("encoder").num_sublayers if place.stack == "decoder" and config.is_encoder_decoder else 0
    return config.admin_profile[before + place.index]


@register_ln_mode("admin_torch")
class AdminTorch(PostLN):
    """Admin with omega in closed form, equal for all n sub-layers of a stack, without profiling.

    omega is sqrt((n + 1) / ln(n + 1) - 1) for an output change of order log n, sqrt(n) for order 1, and 1 for order n.
    """

    equation = "x <- LN(omega * x + a), omega = sqrt((n+1)/ln(n+1) - 1)"
    source = "Microsoft 2022, admin-torch"
    bibtex = ("microsoft2022admin", "liu2020understanding")
    default_init_style = "fairseq_legacy"
    factors = {"shortcut": "omega"}
    folds_into = "post_ln"

    @dataclass(frozen=True)
    class Options:
        target: str = option(
            "log", choices=("log", "constant", "linear"), help="growth of the output change with depth"
        )
        learned: bool = option(False, help="learned omega in R^d instead of a constant")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        n = place.sublayers_per_layer * place.num_layers
        targets = {"log": math.sqrt((n + 1) / math.log(n + 1) - 1), "constant": math.sqrt(n), "linear": 1.0}
        self.omega: nn.Parameter | float = targets[self.options.target]
        if self.options.learned:
            self.omega = nn.Parameter(torch.full((config.d_model,), self.omega))

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (self.norm(x * self.omega + sublayer(x)),)


def deep_norm_constants(config: StackConfig) -> tuple[float, float]:
    """(alpha, beta) of a stack alone, or of a stack of an encoder-decoder with N and M layers, Wang et al. 2022."""
    if not config.is_encoder_decoder:
        return (2 * config.layers) ** 0.25, (8 * config.layers) ** -0.25
    n, m = config.encoder_layers, config.decoder_layers
    if config.stack == "encoder":
        return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)
    return (3 * m) ** 0.25, (12 * m) ** -0.25


@register_ln_mode("deep_norm")
class DeepNorm(PostLN):
    """A constant shortcut weight above 1 and small initial branches, both computed from the depths of the two stacks.

    The authors' library, torchscale, divides the encoder's weights by (N^4 M)^(1/16) / 1.15, which inverts the
    constant. `torchscale_gain=True` with `init_style="torchscale"` reproduces it.
    """

    equation = "x <- LN(alpha * x + a)"
    source = "Wang et al. 2022, DeepNet: Scaling Transformers to 1,000 Layers"
    bibtex = "wang2022deepnet"
    default_init_style = "xavier_normal"
    factors = {"shortcut": "alpha"}
    folds_into = "post_ln"

    @dataclass(frozen=True)
    class Options:
        torchscale_gain: bool = option(
            False, help="constant 1.15 instead of 0.87 in the encoder's beta, as in torchscale"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.alpha, _ = deep_norm_constants(config)

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (self.norm(self.alpha * x + sublayer(x)),)

    @classmethod
    def init_gain(cls, config: StackConfig, place: SublayerPlace, role: str) -> float:
        if role in ("query", "key"):
            return 1.0
        _, beta = deep_norm_constants(config)
        is_encoder = place.stack == "encoder" and config.is_encoder_decoder
        inverted = is_encoder and config.options.torchscale_gain
        return beta * 1.15 / 0.87 if inverted else beta


@register_ln_mode("keel")
class Keel(ResidualConnection):
    """Post-LN with a weight on the shortcut, which is large in deep stacks, and a norm on the input of the branch.

    alpha is the number of sub-layers of the stack, but 1 in the first layer, whose attention has no outer norm. In the
    paper, which has decoders without cross-attention, the first layer is the first attention and feed-forward; here
    its cross-attention is treated like its feed-forward, and each stack has its own alpha. There is no
    further norm at the end of the stack. For small models the authors suggest a smaller alpha.
    """

    equation = "x <- LN_1(alpha * x + f(LN_2(x)));  first attention: x <- x + f(LN_2(x))"
    source = "Chen & Wei 2026, Post-LayerNorm Is Back: Stable, ExpressivE, and Deep, equation 8"
    bibtex = "chen2026keel"
    default_norm_type = "rms_norm"
    factors = {"shortcut": "alpha"}

    @dataclass(frozen=True)
    class Options:
        alpha: float | None = option(
            None, minimum=1.0, help="weight of the shortcut after the first layer; null: the number of sub-layers"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.input_norm = build_norm(config)
        self.norm = build_norm(config) if place.index > 0 else nn.Identity()
        self.alpha = self.options.alpha or float(config.num_sublayers)
        if place.layer == 0:
            self.alpha = 1.0

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (self.norm(self.alpha * x + sublayer(self.input_norm(x))),)


@register_ln_mode("xskip_ln")
class XSkipLN(PostLN):
    """A constant weight on the shortcut, in the Post-LN form of the paper, whose code was not released.

    The weight of the branch is that of the paper's comparison with weaker shortcuts (its Table 3).
    """

    equation = "x <- LN(lambda * x + c * a)"
    source = "Liu et al. 2020, Rethinking Skip Connection with Layer Normalization"
    bibtex = "liu2020rethinking"
    factors = {"shortcut": "options.skip_scale", "branch": "options.branch_scale"}
    folds_into = "post_ln"

    @dataclass(frozen=True)
    class Options:
        skip_scale: float = option(2.0, above=0.0, help="lambda, the weight of the shortcut")
        branch_scale: float = option(1.0, above=0.0, help="c, the weight of the branch")

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        a = sublayer(x)
        if self.options.branch_scale != 1.0:
            a = self.options.branch_scale * a
        return (self.norm(self.options.skip_scale * x + a),)


@register_ln_mode("xskip")
class XSkip(ResidualConnection):
    """A constant weight on the shortcut and no norms."""

    equation = "x <- lambda * x + a"
    source = "Liu et al. 2020, Rethinking Skip Connection with Layer Normalization"
    bibtex = "liu2020rethinking"
    factors = {"shortcut": "options.skip_scale"}

    @dataclass(frozen=True)
    class Options:
        skip_scale: float = option(1.0, above=0.0, help="lambda, the weight of the shortcut")

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (self.options.skip_scale * x + sublayer(x),)


@register_ln_mode("rskip_ln")
class RSkipLN(ResidualConnection):
    """Add the input again after each of lambda norms, each with its own gain. The branch runs once."""

    equation = "y_1 = LN_1(x + a),  y_j = LN_j(x + y_{j-1}),  x <- y_lambda"
    source = "Liu et al. 2020, Rethinking Skip Connection with Layer Normalization"
    bibtex = "liu2020rethinking"

    @dataclass(frozen=True)
    class Options:
        skip_order: int = option(2, minimum=1, help="lambda, the number of times the input is added and normalized")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.norms = nn.ModuleList(build_norm(config) for _ in range(self.options.skip_order))

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        y = sublayer(x)
        for norm in self.norms:
            y = norm(x + y)
        return (y,)


@register_ln_mode("wskip_ln")
class WSkipLN(PostLN):
    """A learned weight on the shortcut, as in Admin, but without profiling."""

    equation = "x <- LN(w * x + a), w in R^d learned"
    source = "Liu et al. 2020, Rethinking Skip Connection with Layer Normalization"
    bibtex = "liu2020rethinking"
    factors = {"shortcut": "w"}
    folds_into = "post_ln"

    @dataclass(frozen=True)
    class Options:
        skip_init: float = option(1.0, above=0.0, help="initial value of all components of w")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.w = nn.Parameter(torch.full((config.d_model,), self.options.skip_init))

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (self.norm(self.w * x + sublayer(x)),)
