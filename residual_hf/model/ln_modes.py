# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The modes everything else is compared with: Post-LN, Pre-LN, and ResiDual, the default.

`a = sublayer(x)` is the branch after residual dropout. The order of the additions is the official code's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .connections import ResidualConnection, StreamBoundary, register_ln_mode
from .norms import build_norm
from .options import option


@register_ln_mode("post_ln")
class PostLN(ResidualConnection):
    """Normalise after every addition; no norm at the end of the stack."""

    equation = "x <- LN(x + a)"
    source = "Vaswani et al. 2017, Attention Is All You Need, section 3.1"
    bibtex = "vaswani2017attention"
    warmup = "needed"

    def __init__(self, config, place):
        super().__init__(config, place)
        self.norm = build_norm(config)

    def forward(self, stream, sublayer):
        (x,) = stream
        return (self.norm(x + sublayer(x)),)


class NormAtEnd(StreamBoundary):
    """One more norm over the output of the stack."""

    def __init__(self, config, stack):
        super().__init__(config, stack)
        self.norm = build_norm(config)

    def end(self, stream):
        return self.norm(stream[0])


@register_ln_mode("pre_ln")
class PreLN(ResidualConnection):
    """Normalise what a branch reads, never the stream itself; one norm at the end of the stack."""

    equation = "x <- x + f(LN(x));  out = LN(x)"
    source = "Xiong et al. 2020, On Layer Normalization in the Transformer Architecture; Wang et al. 2019"
    bibtex = ("xiong2020layer", "wang2019learning")
    warmup = "not needed"
    Boundary = NormAtEnd

    def __init__(self, config, place):
        super().__init__(config, place)
        self.norm = build_norm(config)

    def forward(self, stream, sublayer):
        (x,) = stream
        return (x + sublayer(self.norm(x)),)


@dataclass(frozen=True)
class ResiDualOptions:
    dual_scale: float = option(1.0, above=0.0, help="s, keeps the dual stream in the range of fp16 (OPUS-100: 0.05)")
    main_scale: float = option(1.0, minimum=0.0, help="alpha, weight of the Post-LN stream in the output")
    dual_layer_norm_eps: float = option(1e-7, above=0.0, help="eps of the dual norm; the others use layer_norm_eps")


class DualStream(StreamBoundary):
    """r_0 = s * x_0 at the beginning, out = alpha * x + LN(r) at the end."""

    def __init__(self, config, stack):
        super().__init__(config, stack)
        self.norm = build_norm(config, eps=self.options.dual_layer_norm_eps)

    def starting_values(self):
        values = {f"norm.{name}": 0.0 for name, _ in self.norm.named_parameters()}
        if not values:
            raise ValueError(f"{type(self.norm).__name__} has no gain that could be 0")
        return values

    def begin(self, hidden_states):
        return hidden_states, hidden_states * self.options.dual_scale

    def end(self, stream):
        x, r = stream
        return self.options.main_scale * x + self.norm(r)


@register_ln_mode("resi_dual")
class ResiDual(PostLN):
    """A Post-LN stream beside a never-normalised sum of all branches; the output joins both.

    The paper does not say where the dual stream starts; the official code starts it from the embeddings, so do we.
    """

    equation = "x <- LN(x + a);  r <- r + s*a;  out = alpha*x + LN(r)"
    source = "Xie et al. 2023, ResiDual: Transformer with Dual Residual Connections, section 2.2"
    bibtex = "xie2023residual"
    warmup = "not needed"
    Options = ResiDualOptions
    Boundary = DualStream
    starts_from = "post_ln"
    starting_options = {"main_scale": 1.0}

    def forward(self, stream, sublayer):
        x, r = stream
        a = sublayer(x)
        return self.norm(a + x), torch.add(r, a, alpha=self.options.dual_scale)
