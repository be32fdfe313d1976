# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Post-LN, Pre-LN and the default, ResiDual.

In the equations `a = f(x)` is the output of a branch after residual dropout. The order of additions follows the
official code.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .connections import ResidualConnection, Stream, StreamBoundary, Sublayer, SublayerPlace, register_ln_mode
from .norms import build_norm, scale_initial_gain
from .options import option
from .stack_config import StackConfig


@register_ln_mode("post_ln")
class PostLN(ResidualConnection):
    """Normalize after every addition. No norm at the end of the stack."""

    equation = "x <- LN(x + a)"
    source = "Vaswani et al. 2017, Attention Is All You Need, section 3.1"
    bibtex: ClassVar[str | tuple[str, ...]] = "vaswani2017attention"
    warmup = "needed"

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.norm = build_norm(config)

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (self.norm(x + sublayer(x)),)


class NormAtEnd(StreamBoundary):
    """A norm on the output of the stack."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.norm = build_norm(config) if config.final_norm else nn.Identity()

    def end(self, stream: Stream) -> Tensor:
        return self.norm(stream[0])


@register_ln_mode("pre_ln")
class PreLN(ResidualConnection):
    """Normalize the input of every branch and leave the stream unnormalized until the end of the stack."""

    equation = "x <- x + f(LN(x));  out = LN(x)"
    source = "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture; Wang et al. 2019"
    bibtex: ClassVar[str | tuple[str, ...]] = ("xiong2020layer", "wang2019learning")
    warmup = "not needed"
    Boundary: ClassVar[type[StreamBoundary]] = NormAtEnd

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.norm = build_norm(config)

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        (x,) = stream
        return (x + sublayer(self.norm(x)),)


class DualStream(StreamBoundary):
    """r_0 = s * x_0 at the start, out = alpha * x + LN(r) at the end."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.norm = build_norm(config, eps=self.options.dual_layer_norm_eps)
        scale_initial_gain(self.norm, self.options.output_gain)

    def starting_values(self) -> dict[str, Tensor | float]:
        names = [name for name, _ in self.norm.named_parameters() if name in ("weight", "bias")]  # others would stay 0
        if not names:
            raise ValueError(f"{type(self.norm).__name__} has no gain to set to 0")
        return {f"norm.{name}": 0.0 for name in names}

    def begin(self, hidden_states: Tensor) -> Stream:
        return hidden_states, hidden_states * self.options.dual_scale

    def end(self, stream: Stream) -> Tensor:
        x, r = stream
        return torch.add(self.norm(r), x, alpha=self.options.main_scale)


@register_ln_mode("resi_dual")
class ResiDual(PostLN):
    """A Post-LN stream x and an unnormalized sum r of all branch outputs, combined at the end of the stack.

    The dual stream r starts from the embeddings, as in the official code. The paper does not give its start value.
    """

    equation = "x <- LN(x + a);  r <- r + s*a;  out = alpha*x + LN(r)"
    source = "Xie et al. 2023, ResiDual: Transformer with Dual Residual Connections, section 2.2"
    bibtex = "xie2023residual"
    warmup = "not needed"
    Boundary = DualStream
    starts_from = "post_ln"
    starting_options = {"main_scale": 1.0}

    @dataclass(frozen=True)
    class Options:
        dual_scale: float = option(
            1.0, above=0.0, help="s, keeps the dual stream within the range of fp16 (OPUS-100: 0.05)"
        )
        main_scale: float = option(1.0, minimum=0.0, help="alpha, weight of the Post-LN stream in the output")
        dual_layer_norm_eps: float = option(
            1e-7, above=0.0, help="eps of the dual norm; other norms use layer_norm_eps"
        )
        output_gain: float = option(
            1.0,
            above=0.0,
            help="initial gain of the two norms whose sum is the output; 0.5 gives the sum the size of one "
            "(official: 1)",
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        if place.is_last_in_stack:
            scale_initial_gain(self.norm, self.options.output_gain)

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, r = stream
        a = sublayer(x)
        return self.norm(a + x), torch.add(r, a, alpha=self.options.dual_scale)
