# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes with a factor on the branch, or on the norm before it."""

from dataclasses import dataclass

import torch
from torch import nn

from .branch_warmup import BranchWarmupSettings
from .connections import ResidualConnection, Stream, Sublayer, SublayerPlace, register_ln_mode
from .ln_modes import PostLN, PreLN
from .options import option
from .stack_config import StackConfig


@register_ln_mode("ln_scaling")
class LNScaling(PreLN):
    """Pre-LN whose norms are scaled down with depth; l counts the layers of a stack from 1.

    The official model is a decoder without cross-attention; here cross-attention is scaled like the other sub-layers.
    The norm at the end of the stack is not scaled.
    """

    equation = "x <- x + f(LN(x) / sqrt(l));  out = LN(x)"
    source = "Sun et al. 2025, The Curse of Depth in Large Language Models"
    bibtex = "sun2025curse"
    default_norm_type = "rms_norm"
    factors = {"norm": "factor"}
    folds_into = "pre_ln"

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.factor = (place.layer + 1) ** -0.5

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + sublayer(self.norm(x) * self.factor),)


@register_ln_mode("branch_norm")
class BranchNorm(PostLN):
    """Post-LN with a branch warm-up, after which it is Post-LN: `post_ln` with another default of `branch_warmup`."""

    equation = "x <- LN(x + alpha_t * a), alpha_t = min(1, t/T) at update t, T = 4000"
    source = "Liu et al. 2023, BranchNorm: Robustly Scaling Extremely Deep Transformers"
    bibtex = "liu2023branchnorm"
    default_branch_warmup = BranchWarmupSettings(schedule="equal", updates=4000)
    folds_into = "post_ln"


@register_ln_mode("scaled_branch")
class ScaledBranch(PreLN):
    """Pre-LN with one constant on all branches of a stack, which decreases with its number of sub-layers L.

    Of CompleteP this mode has the factor, not the rules for learning rates and initial scales. There L is the depth
    relative to a model whose hyperparameters are known: tau = L_0^alpha.
    """

    equation = "x <- x + c * f(LN(x)), c = tau * L^{-alpha};  out = LN(x)"
    source = (
        "Zhang et al. 2019, Stabilize Deep ResNet with A Sharp Scaling Factor tau; Dey et al. 2025, Don't be lazy: "
        "CompleteP enables compute-efficient deep transformers"
    )
    bibtex = ("zhang2019stabilize", "dey2025completep")
    factors = {"branch": "factor"}
    folds_into = "pre_ln"

    @dataclass(frozen=True)
    class Options:
        tau: float = option(1.0, above=0.0, help="factor that does not depend on depth")
        exponent: float = option(
            0.5, minimum=0.0, help="alpha; 0.5 in tau-ResNet, 1 in CompleteP, 0: the factor is tau"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.factor = self.options.tau * config.num_sublayers**-self.options.exponent

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + self.factor * sublayer(self.norm(x)),)


@register_ln_mode("layer_scale")
class LayerScale(PreLN):
    """Pre-LN with a learned weight per dimension on every branch, initially small.

    The default is the paper's rule for the depth of a stack. The official code sets the value per model: 1e-4 by
    default, and 1e-5 even for one model of 36 layers. It exempts the weights from weight decay.
    """

    equation = "x <- x + w * f(LN(x)), w in R^d learned;  out = LN(x)"
    source = "Touvron et al. 2021, Going Deeper with Image Transformers (CaiT)"
    bibtex = "touvron2021going"
    no_weight_decay = ("scale",)
    factors = {"branch": "scale"}
    folds_into = "pre_ln"

    @dataclass(frozen=True)
    class Options:
        initial_scale: float = option(
            0.0, minimum=0.0, help="initial value; 0 means 0.1 for up to 18 layers, 1e-5 for up to 24, 1e-6 for more"
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        by_depth = 0.1 if place.num_layers <= 18 else 1e-5 if place.num_layers <= 24 else 1e-6
        self.scale = nn.Parameter(torch.full((config.d_model,), self.options.initial_scale or by_depth))

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + self.scale * sublayer(self.norm(x)),)


@register_ln_mode("skip_init")
class SkipInit(ResidualConnection):
    """A learned scalar on every branch, initially 0, and no norms: ReZero with one gate per branch.

    Proposed as a replacement for batch normalization in residual networks for images. The authors' later code (NFNets)
    exempts the scalars from weight decay.
    """

    equation = "x <- x + alpha * f(x), initially alpha = 0"
    source = (
        "De & Smith 2020, Batch Normalization Biases Residual Blocks Towards the Identity Function in Deep Networks"
    )
    bibtex = "de2020batch"
    no_weight_decay = ("alpha",)
    factors = {"branch": "alpha"}
    folds_into = "xskip"

    @dataclass(frozen=True)
    class Options:
        initial_alpha: float = option(0.0, minimum=0.0, help="initial value, 0 or small")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.alpha = nn.Parameter(torch.full((1,), self.options.initial_alpha))

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + self.alpha * sublayer(x),)
