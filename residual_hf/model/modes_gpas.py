# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes whose activations a learned gate scales down while their gradients pass unchanged (GPAS)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from .connections import ResidualConnection, Stream, Sublayer, SublayerPlace, register_ln_mode
from .ln_modes import PreLN
from .modes_branch_scaling import LNScaling
from .modes_norm_placement import MixLN, SandwichLN
from .modes_skip_scaling import DeepNorm
from .stack_config import StackConfig


class GPAS(ResidualConnection):
    """Scales the state of another mode, `class MyGPAS(GPAS, MyMode)`, by one gate per layer, which is initially 0.

    A mode that normalizes before the branch is scaled after the addition; a mode that normalizes after the addition is
    scaled on the shortcut, and its branch reads the unscaled state. Within a layer the stream is `(x, gate)`.
    """

    source = (
        "Chen et al. 2025, GPAS: Accelerating Convergence of LLM Pretraining via Gradient-Preserving Activation "
        "Scaling"
    )
    bibtex: ClassVar[str | tuple[str, ...]] = "chen2025gpas"
    folds_into = None
    scales_shortcut = False

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        if place.is_first_in_layer:
            self.gate = nn.Parameter(torch.zeros(1))

    def joining_scales(self) -> dict[str, Tensor | float]:
        scales = super().joining_scales()
        if self.scales_shortcut:
            (owner,) = self.first_in_layer or (self,)
            scales["shortcut"] = scales.get("shortcut", 1.0) * (1 - nn.functional.silu(owner.gate))
        return scales

    def starting_values(self) -> dict[str, Tensor | float]:
        return {"gate": 0.0} if self.place.is_first_in_layer else {}

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, *shared = stream
        gate = shared[0] if shared else self.gate
        if self.scales_shortcut:
            (x,) = super().forward((scaled_down(x, gate),), lambda _: sublayer(x))  # type: ignore[arg-type]
        else:
            (x,) = super().forward((x,), sublayer)
            x = scaled_down(x, gate)
        return (x,) if self.place.is_last_in_layer else (x, gate)


def scaled_down(x: Tensor, gate: Tensor) -> Tensor:
    """(1 - SiLU(gate)) x, with the gradient of x."""
    return x - nn.functional.silu(gate) * x.detach()


@register_ln_mode("pre_ln_gpas")
class PreLNGPAS(GPAS, PreLN):
    """Pre-LN whose state a learned gate scales down after each addition; gradients pass the scale unchanged."""

    equation = "y = x + f(LN(x));  x <- y - SiLU(g_l) * detach(y);  out = LN(x)"
    starts_from = "pre_ln"


@register_ln_mode("ln_scaling_gpas")
class LNScalingGPAS(GPAS, LNScaling):  # type: ignore[misc]
    """LN scaling whose state a learned gate scales down after each addition; gradients pass the scale unchanged.

    In the official code ("lns_gpas") 1/sqrt(l) is the initial gain of the norms; here it is a factor on them.
    """

    equation = "y = x + f(LN(x) / sqrt(l));  x <- y - SiLU(g_l) * detach(y);  out = LN(x)"
    starts_from = "ln_scaling"


@register_ln_mode("sandwich_ln_gpas")
class SandwichLNGPAS(GPAS, SandwichLN):  # type: ignore[misc]
    """Sandwich-LN whose state a learned gate scales down after each addition; gradients pass the scale unchanged."""

    equation = "y = x + LN_2(f(LN_1(x)));  x <- y - SiLU(g_l) * detach(y);  out = LN(x)"
    starts_from = "sandwich_ln"


@register_ln_mode("deep_norm_gpas")
class DeepNormGPAS(GPAS, DeepNorm):  # type: ignore[misc]
    """DeepNorm whose shortcut a learned gate scales down; gradients pass the scale unchanged."""

    equation = "x <- LN(alpha * (x - SiLU(g_l) * detach(x)) + a)"
    starts_from = "deep_norm"
    scales_shortcut = True


@register_ln_mode("mix_ln_gpas")
class MixLNGPAS(GPAS, MixLN):  # type: ignore[misc]
    """Mix-LN with gates: on the shortcut in Post-LN layers, on the state in Pre-LN layers."""

    equation = (
        "layer < floor(fraction * L): x <- LN(x - SiLU(g_l) * detach(x) + a), "
        "else y = x + f(LN(x)),  x <- y - SiLU(g_l) * detach(y);  out = LN(x)"
    )
    starts_from = "mix_ln"
    starting_options = {"fraction": 0.25}

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.scales_shortcut = self.is_post
