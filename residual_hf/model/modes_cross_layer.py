# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes in which a layer reads the outputs of all layers before it.

The stream is `(x, z_0, ..., z_l)`: the state within the current layer, then what the layers left behind.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .connections import StreamBoundary, register_ln_mode
from .ln_modes import PostLN, PreLN
from .norms import build_norm


class LayerMix(nn.Module):
    """sum_k w_k z_k over the `size` members of a history, w learned, their mean at the start."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 / size))

    def init_parameters(self) -> None:
        init.constant_(self.weight, 1.0 / len(self.weight))

    def forward(self, history: tuple[Tensor, ...]) -> Tensor:
        mixed = self.weight[0] * history[0]
        for weight, z in zip(self.weight[1:], history[1:], strict=True):
            mixed = mixed + weight * z
        return mixed


class History(StreamBoundary):
    """The embedding is the first entry of the history; the top of the stack mixes all of them."""

    def __init__(self, config, stack):
        super().__init__(config, stack)
        depth = config.encoder_layers if stack == "encoder" else config.decoder_layers
        self.mix = LayerMix(depth + 1)
        self.norm = build_norm(config)

    def begin(self, hidden_states):
        return hidden_states, hidden_states

    def end(self, stream):
        return self.norm(self.mix(stream[1:]))


@register_ln_mode("dlcl_post")
class DLCLPost(PostLN):
    """Post-LN layers whose input is the norm of a learned combination of all layer outputs."""

    equation = "input of layer l+1 = LN_l(sum_k W_lk y_k);  then Post-LN;  out = LN_L(sum_k W_Lk y_k)"
    source = "Wang et al. 2019, Learning Deep Transformer Models for Machine Translation"
    bibtex = "wang2019learning"
    default_init_style = "fairseq_legacy"
    Boundary = History

    def __init__(self, config, place):
        super().__init__(config, place)
        if place.is_first_in_layer:
            self.mix = LayerMix(place.layer + 1)
            self.mix_norm = build_norm(config) if place.layer > 0 else nn.Identity()

    def forward(self, stream, sublayer):
        x, *history = stream
        if self.place.is_first_in_layer:
            x = self.mix_norm(self.mix(tuple(history)))
        y = self.norm(x + sublayer(x))
        return (y, *history, y) if self.place.is_last_in_layer else (y, *history)


@register_ln_mode("dlcl_pre")
class DLCLPre(PreLN):
    """Pre-LN layers whose input is a learned combination of the normalised outputs of all layers."""

    equation = (
        "z_0 = x_0, z_l = LN_l(y_l);  input of layer l+1 = sum_k W_lk z_k;  then Pre-LN;  out = LN(sum_k W_Lk z_k)"
    )
    source = "Wang et al. 2019, Learning Deep Transformer Models for Machine Translation"
    bibtex = "wang2019learning"
    default_init_style = "fairseq_legacy"
    Boundary = History

    def __init__(self, config, place):
        super().__init__(config, place)
        if place.is_first_in_layer:
            self.mix = LayerMix(place.layer + 1)
        if place.is_last_in_layer:
            self.output_norm = build_norm(config)

    def forward(self, stream, sublayer):
        x, *history = stream
        if self.place.is_first_in_layer:
            x = self.mix(tuple(history))
        y = x + sublayer(self.norm(x))
        return (y, *history, self.output_norm(y)) if self.place.is_last_in_layer else (y, *history)
