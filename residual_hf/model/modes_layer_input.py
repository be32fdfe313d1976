# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes that add the input of a layer again at its end.

After the first sub-layer of a layer the stream is `(x, x_inp)`: the state, and the input of the layer.
"""

from dataclasses import dataclass

from torch import nn

from .connections import ResidualConnection, Stream, Sublayer, SublayerPlace, register_ln_mode
from .ln_modes import NormAtEnd, PostLN
from .norms import build_norm
from .options import option
from .stack_config import StackConfig


@dataclass(frozen=True)
class RescaleOptions:
    rescale_init: str = option(
        "depth", choices=("depth", "none"), help="initial weights times L^-1/2 (official code) or unscaled (paper)"
    )


@register_ln_mode("b2t")
class B2T(PostLN):
    """The input of a layer is added once more before the last norm of the layer.

    The paper scales the initial weights only for 100 layers. Since May 2023 the official code always scales them,
    except for biases.
    """

    equation = "x <- LN(x + a);  at the end of a layer x <- LN(x_inp + (x + a))"
    source = "Takase et al. 2023, B2T Connection: Serving Stability and Performance in Deep Transformers"
    bibtex = "takase2023b2t"

    @dataclass(frozen=True)
    class Options(RescaleOptions):
        around: str = option(
            "inner",
            choices=("inner", "all"),
            help="norms that x_inp passes by: all but the last of the layer, or all, "
            "x <- x_inp + LN(x + a) (footnote 2: much worse)",
        )

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        if place.is_last_in_layer and self.options.around == "inner":
            self.shortcut_at = None

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, x_inp = (*stream, stream[0])[:2]  # after the first sub-layer the stream also holds the input of the layer
        y = x + sublayer(x)
        if self.place.is_last_in_layer:
            return (x_inp + self.norm(y) if self.options.around == "all" else self.norm(x_inp + y),)
        return self.norm(y), x_inp

    @classmethod
    def init_gain(cls, config: StackConfig, place: SublayerPlace, role: str) -> float:
        return place.num_layers**-0.5 if config.options.rescale_init == "depth" else 1.0


class OptionalNormAtEnd(NormAtEnd):
    """A norm on the output of the stack if `stack_norm` is set."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.norm = self.norm if self.options.stack_norm else nn.Identity()


@register_ln_mode("b2t_no_ln")
class B2TNoLN(ResidualConnection):
    """B2T with two constants instead of norms."""

    equation = (
        "x <- x + a;  at the end of a layer x <- alpha*x_inp + beta*x;  alpha = min(L/12, L^-0.15), beta = d^-0.2"
    )
    source = "Takase et al. 2023, B2T Connection, appendix D"
    bibtex = "takase2023b2t"
    Boundary = OptionalNormAtEnd

    @dataclass(frozen=True)
    class Options(RescaleOptions):
        stack_norm: bool = option(False, help="a norm at the end of the stack (the official code has none)")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        depth = place.num_layers
        self.alpha = min(depth / 12, depth**-0.15)
        self.beta = config.d_model**-0.2
        if place.is_last_in_layer:
            self.shortcut_at = None

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, x_inp = (*stream, stream[0])[:2]
        y = x + sublayer(x)
        if self.place.is_last_in_layer:
            return (self.alpha * x_inp + self.beta * y,)
        return y, x_inp

    init_gain = B2T.init_gain


@register_ln_mode("span_norm")
class SpanNorm(PostLN):
    """The feed-forward is added to the input of the layer, not to its own input.

    The first attention of a stack reads the norm of the embeddings; its shortcut carries the embeddings themselves.
    Equations 5 to 8 after a public re-implementation for another task; the initialization of the paper was not
    available. The paper has decoders without cross-attention; here cross-attention is a Post-LN sub-layer.
    """

    equation = "y = LN(x + SA(x));  y <- LN(y + CA(y));  x <- LN(x + FF(y))"
    source = "Wang et al. 2026, SpanNorm: Reconciling Training Stability and Performance in Deep Transformers"
    bibtex = "wang2026spannorm"

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.input_norm = build_norm(config) if place.index == 0 else nn.Identity()
        self.shortcut_at = None if place.is_last_in_layer else "input"

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, x_inp = (*stream, stream[0])[:2]
        a = sublayer(self.input_norm(x))
        if self.place.is_last_in_layer:
            return (self.norm(x_inp + a),)
        return self.norm(x + a), x_inp
