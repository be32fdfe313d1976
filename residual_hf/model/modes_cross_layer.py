# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes in which a layer reads the outputs of all previous layers.

The stream is `(x, z_0, ..., z_l)`: the state within the current layer, then the embeddings and all layer outputs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .connections import Stream, StreamBoundary, Sublayer, SublayerPlace, register_ln_mode
from .initialization import BareParameters
from .ln_modes import NormAtEnd, PostLN, PreLN
from .modes_multi_stream import weighted_sum
from .norms import RMSNorm, build_norm
from .options import option
from .stack_config import StackConfig


class LayerMix(BareParameters):
    """sum_k w_k z_k over `size` members of a history, with learned w, initially the mean."""

    members = slice(None)
    """The members of the history that are read."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(self.initial(size))

    def initial(self, size: int) -> Tensor:
        return torch.full((size,), 1.0 / size)

    def forward(self, history: Stream) -> Tensor:
        return weighted_sum(self.weight, history[self.members])


class History(StreamBoundary):
    """The history starts with the embeddings. The output of the stack is the norm of a learned combination of it."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.mix = LayerMix(config.layers + 1)
        self.norm = build_norm(config)

    def begin(self, hidden_states: Tensor) -> Stream:
        return hidden_states, hidden_states

    def end(self, stream: Stream) -> Tensor:
        return self.norm(self.mix(stream[1:]))


@register_ln_mode("dlcl_post")
class DLCLPost(PostLN):
    """Post-LN layers that read the norm of a learned combination of all previous layer outputs."""

    equation = "input of layer l+1 = LN_l(sum_k W_lk y_k);  then Post-LN;  out = LN_L(sum_k W_Lk y_k)"
    source = "Wang et al. 2019, Learning Deep Transformer Models for Machine Translation"
    bibtex = "wang2019learning"
    default_init_style = "fairseq_legacy"
    supports_layerdrop = False
    shortcut_at = "branch.input"
    Boundary = History

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        if place.is_first_in_layer:
            self.mix = LayerMix(place.layer + 1)
            self.mix_norm = build_norm(config) if place.layer > 0 else nn.Identity()

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, *history = stream
        if self.place.is_first_in_layer:
            x = self.mix_norm(self.mix(tuple(history)))
        y = self.norm(x + sublayer(x))
        return (y, *history, y) if self.place.is_last_in_layer else (y, *history)


@register_ln_mode("dlcl_pre")
class DLCLPre(PreLN):
    """Pre-LN layers that read a learned combination of the normalized outputs of all previous layers."""

    equation = (
        "z_0 = x_0, z_l = LN_l(y_l);  input of layer l+1 = sum_k W_lk z_k;  then Pre-LN;  out = LN(sum_k W_Lk z_k)"
    )
    source = "Wang et al. 2019, Learning Deep Transformer Models for Machine Translation"
    bibtex = "wang2019learning"
    default_init_style = "fairseq_legacy"
    supports_layerdrop = False
    shortcut_at = "norm.input"
    Boundary = History

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        if place.is_first_in_layer:
            self.mix = LayerMix(place.layer + 1)
        if place.is_last_in_layer:
            self.output_norm = build_norm(config)

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, *history = stream
        if self.place.is_first_in_layer:
            x = self.mix(tuple(history))
        y = x + sublayer(self.norm(x))
        return (y, *history, self.output_norm(y)) if self.place.is_last_in_layer else (y, *history)


class DepthWeightedAverage(LayerMix):
    """A mix after `layers` layers: the last output and every `dilation`-th before it, initially the last alone."""

    def __init__(self, layers: int, dilation: int):
        super().__init__(layers // dilation + 1)
        self.members = slice(layers % dilation, None, dilation)

    def initial(self, size: int) -> Tensor:
        return torch.cat([torch.zeros(size - 1), torch.ones(1)])

    def last_alone(self) -> dict[str, Tensor | float]:
        """The values at which the average is the last output."""
        return {"weight": self.initial(len(self.weight))}


class DynamicAverage(DepthWeightedAverage):
    """An average whose K weights depend on the token besides: w + W2 GELU(W1 RMS(z)), z the last output.

    W1 (K, d_model) has variance 1/d_model and W2 (K, K) is initially 0; GELU by its tanh, as in the official training
    code. There the norm has no gain.
    """

    def __init__(self, layers: int, dilation: int, width: int, eps: float):
        super().__init__(layers, dilation)
        size = len(self.weight)
        self.norm = RMSNorm(width, eps=eps)
        self.inner_weight = nn.Parameter(torch.randn(size, width) * width**-0.5)
        self.outer_weight = nn.Parameter(torch.zeros(size, size))

    def last_alone(self) -> dict[str, Tensor | float]:
        return {**super().last_alone(), "outer_weight": 0.0}

    def weights(self, history: Stream) -> Tensor:
        """The weights (batch, length, K)."""
        hidden = nn.functional.linear(self.norm(history[-1]), self.inner_weight)
        hidden = nn.functional.gelu(hidden, approximate="tanh")
        return self.weight + nn.functional.linear(hidden, self.outer_weight)

    def forward(self, history: Stream) -> Tensor:
        return weighted_sum(self.weights(history), history[self.members])


def average_after(layers: int, config: StackConfig, options: "DenseFormer.Options") -> DepthWeightedAverage | None:
    """None where a layer or the end of the stack reads the last output itself."""
    if layers == 0 or layers % options.period != 0:
        return None
    if options.dynamic:
        return DynamicAverage(layers, options.dilation, config.d_model, config.layer_norm_eps)
    return DepthWeightedAverage(layers, options.dilation)


def start_of(average: DepthWeightedAverage | None) -> dict[str, Tensor | float]:
    """The starting values of a module with this `average`."""
    return {} if average is None else {f"average.{name}": value for name, value in average.last_alone().items()}


class AverageAtEnd(NormAtEnd):
    """The history starts with the embeddings. The output of the stack is the norm of a weighted average of it."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.average = average_after(config.layers, config, self.options)

    def begin(self, hidden_states: Tensor) -> Stream:
        return hidden_states, hidden_states

    def end(self, stream: Stream) -> Tensor:
        return self.norm(stream[0] if self.average is None else self.average(stream[1:]))

    def starting_values(self) -> dict[str, Tensor | float]:
        return start_of(self.average)


@register_ln_mode("dense_former")
class DenseFormer(PreLN):
    """Pre-LN layers that read a weighted average of the embeddings and all previous layer outputs.

    A fresh model equals Pre-LN: the weight of the last output is 1, the others are 0. With `dynamic` the weights are
    those of MUDDFormer for one input of a layer (official code, type "l"). MUDDFormer has four, for queries, keys,
    values and the state, and wider hidden layers.
    """

    equation = "input of layer l+1 = sum_k W_lk y_k;  then Pre-LN;  out = LN(sum_k W_Lk y_k)"
    source = (
        "Pagliardini et al. 2024, DenseFormer: Enhancing Information Flow in Transformers via Depth Weighted "
        "Averaging; Xiao et al. 2025, MUDDFormer: Breaking Residual Bottlenecks in Transformers via Multiway Dynamic "
        "Dense Connections"
    )
    bibtex = ("pagliardini2024denseformer", "xiao2025muddformer")
    supports_layerdrop = False
    shortcut_at = "norm.input"
    Boundary = AverageAtEnd
    starts_from = "pre_ln"

    @dataclass(frozen=True)
    class Options:
        dilation: int = option(
            1, minimum=1, help="k: read every k-th of the previous outputs, counted back from the last"
        )
        period: int = option(1, minimum=1, help="p: average only after every p-th layer")
        dynamic: bool = option(False, help="add weights that depend on the token: w + W2 GELU(W1 RMS(y_l))")

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__(config, place)
        self.average = average_after(place.layer, config, self.options) if place.is_first_in_layer else None

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, *history = stream
        if self.average is not None:
            x = self.average(tuple(history))
        y = x + sublayer(self.norm(x))
        return (y, *history, y) if self.place.is_last_in_layer else (y, *history)

    def starting_values(self) -> dict[str, Tensor | float]:
        return start_of(self.average)
