# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The native kernels as `model/decoding.py` uses them: weights are packed once for each model and precision."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers.utils import logging

from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

from .decoder import DecoderState, NativeDecoder

logger = logging.get_logger(__name__)
_packed: WeakKeyDictionary[ResidualForConditionalGeneration, dict[str, NativeDecoder]] = WeakKeyDictionary()


class SearchDecoder:
    """One batch on the kernels, with the methods of `model.search.Decoder`."""

    def __init__(self, decoder: NativeDecoder, state: DecoderState):
        self.decoder, self.state = decoder, state

    def step(self, tokens: Tensor) -> Tensor:
        return self.decoder.step(self.state, tokens)

    def best(self, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return self.decoder.best(self.state, tokens, count)

    def select(self, rows: Tensor) -> None:
        self.decoder.select(self.state, rows)


def decoder(
    model: ResidualForConditionalGeneration,
    dtype: str | None,
    memory: Tensor,
    mask: Tensor | None,
    num_beams: int,
    max_length: int,
) -> SearchDecoder | None:
    """A decoder for one batch of encoder output, None where PyTorch must decode.

    Args:
        dtype: as for `NativeDecoder`; "float32" and None: PyTorch decodes with models that are not of fp32.
        memory: (sentences, length, d_model).
        mask: which positions of it are tokens, (sentences, length); None for all.
        max_length: most tokens of a sequence.
    """
    packed = packed_model(model, dtype)
    if packed is None:
        return None
    return SearchDecoder(packed, packed.start(memory, mask, num_beams, max_length))


def encode(
    model: ResidualForConditionalGeneration, dtype: str, input_ids: Tensor, attention_mask: Tensor
) -> Tensor | None:
    """Encoder output (sentences, length, d_model), None where PyTorch must encode."""
    packed = packed_model(model, dtype)
    return None if packed is None else packed.encode(input_ids, attention_mask)


def packed_model(model: ResidualForConditionalGeneration, dtype: str | None) -> NativeDecoder | None:
    """The weights of a model, packed for the kernels in this precision; None where the kernels cannot serve it."""
    chosen = dtype or "float32"
    if torch.is_autocast_enabled("cpu") or (chosen == "float32" and model.dtype != torch.float32):
        return None
    found = _packed.setdefault(model, {}).get(chosen)
    if found is None or not found.is_current(model):
        reason = NativeDecoder.supports(model, chosen)
        if reason is not None:
            if chosen != "float32":
                logger.warning_once(f"decoding_dtype: {dtype} is not used: {reason}")
            return None
        found = _packed[model][chosen] = NativeDecoder(model, chosen)
    return found
