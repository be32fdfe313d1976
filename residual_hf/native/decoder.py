# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The weights of a model on the native kernels, and its encoder."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_void_p
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from transformers.utils import logging

from residual_hf.base.errors import InputError
from residual_hf.model.connections import STACKS
from residual_hf.model.embeddings import position_ids_from_mask, positions_padding
from residual_hf.model.fingerprint import Fingerprint
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

from . import loaded_library, threads_for
from .batch import Sentences
from .state import DecoderState, address
from .structures import CONSTANTS, Checksums, Source, Table
from .support import missing_support, unsupported_stack
from .weights import Packer, last_position, round_up

ROW_PADDING = CONSTANTS["ROW_PADDING"]
BYTES_PER_THREAD = 1 << 20  # of a checksum
logger = logging.get_logger(__name__)
_packing = Lock()  # several threads decode with one model
_packed: WeakKeyDictionary[ResidualForConditionalGeneration, dict[str, NativeDecoder]] = WeakKeyDictionary()


def packed_model(model: ResidualForConditionalGeneration, dtype: str | None) -> NativeDecoder | None:
    """A model on the kernels, packed at first use and after every change; None where PyTorch must decode.

    Args:
        dtype: as for `NativeDecoder`; "float32" and None: PyTorch decodes with models that are not of fp32.
    """
    chosen = dtype or "float32"
    if torch.is_autocast_enabled("cpu") or (chosen == "float32" and model.dtype != torch.float32):
        return None
    with _packing:
        found = _packed.setdefault(model, {}).get(chosen)
        if found is None or not found.fingerprint.matches(model):
            try:
                found = _packed[model][chosen] = NativeDecoder(model, chosen, encoder=chosen != "float32")
            except InputError as reason:
                if chosen != "float32":
                    logger.warning_once(f"decoding_dtype: {dtype} is not used: {reason}")
                return None
        return found


def checksum(tensors: Sequence[Tensor]) -> bytes:
    """Same as `model.fingerprint.checksum`, as fast as memory is read."""
    data = (c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
    sizes, found = np.array([tensor.nbytes for tensor in tensors], np.int64), np.empty(len(tensors), np.uint64)
    threads = threads_for(int(sizes.sum()), BYTES_PER_THREAD)
    loaded_library().checksums(byref(Checksums(len(tensors), threads, data, address(sizes), address(found))))
    return found.tobytes()


class NativeDecoder:
    """Encoder and decoder of a model on the native kernels.

    Args:
        model: a `ResidualForConditionalGeneration` on the CPU, without a reason of `missing_support`.
        dtype: of weights and activations: "float32" gives the logits of the model; "bfloat16"; "int8" has weights of 8
            bits with a scale per output, inputs of linear maps rounded to 8 bits with a scale per row, and other
            activations in bfloat16.
        encoder: whether to pack the encoder too, where its mode has kernels.

    Raises:
        InputError: `missing_support` gives a reason.
    """

    def __init__(self, model: ResidualForConditionalGeneration, dtype: str = "float32", *, encoder: bool = True):
        reason = missing_support(model, dtype)
        if reason is not None:
            raise InputError(reason)
        self.config = model.config
        has_encoder = encoder and unsupported_stack(model.model.encoder) is None
        stacks = (model.model.decoder, model.model.encoder) if has_encoder else (model.model.decoder,)
        self.fingerprint = Fingerprint((*stacks, model.lm_head), checksum)
        self.dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        self.packer = Packer(dtype)
        self.positions = {stack: last_position(model.model.get_submodule(stack)) for stack in STACKS}
        with torch.no_grad():
            self.decoder = self.packer.stack(model.model.decoder)
            self.decoder.logits = self.packer.linear(model.output_weight, model.lm_head.bias, padding_bias=-torch.inf)
            self.encoder = self.packer.stack(model.model.encoder) if has_encoder else None

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
        """Encoder states (batch, length, d_model) in fp32, zero at padding, from source tokens (batch, length).

        None where the encoder is not packed; use that of the model then.
        """
        stack = self.encoder
        if stack is None:
            return None
        self.check_length(input_ids.shape[1], "encoder")
        sentences = Sentences(input_ids.ne(self.config.pad_token_id) if attention_mask is None else attention_mask)
        padding_idx = positions_padding(self.config)
        if padding_idx is None:
            positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        else:
            positions = position_ids_from_mask(sentences.mask, input_ids.shape[1], padding_idx)
        tokens, positions = sentences.pack(input_ids).long(), sentences.pack(positions)
        rows = len(tokens)
        cache = torch.empty(rows, 2 * stack.attention_width, dtype=self.dtype)
        states = torch.empty(rows + ROW_PADDING, stack.stride, dtype=self.dtype)  # for the tiles of a part at its end
        lines, lengths = sentences.sentence_of_token.data_ptr(), sentences.lengths.data_ptr()
        table = Table(sentences.entries.data_ptr(), sentences.longest, lines, lengths)
        inputs = tokens.data_ptr(), positions.data_ptr(), table, sentences.longest
        source = Source(*inputs, cache.data_ptr(), states.data_ptr())
        starts = sentences.part_starts()
        arguments = byref(stack), byref(source), len(starts) - 1, starts
        scratch = torch.empty(loaded_library().encode_scratch_size(*arguments), dtype=torch.uint8)
        if not loaded_library().encode(*arguments, scratch.data_ptr()):
            raise IndexError(f"input_ids: a token is outside the vocabulary of {stack.vocabulary}")
        return sentences.unpack(states[:rows, : stack.width].float())

    def start(
        self, encoder_hidden_states: Tensor, encoder_mask: Tensor | None, beams: int, max_length: int
    ) -> DecoderState:
        """Begin to decode: projects the keys and values of cross-attention, once per sentence.

        Args:
            encoder_hidden_states: (sentences, length, d_model).
            encoder_mask: (sentences, length), nonzero at real tokens; None: there is no padding.
            beams: rows per sentence at most.
            max_length: steps at most.
        """
        if encoder_mask is None:
            encoder_mask = torch.ones(encoder_hidden_states.shape[:2])
        sentences = Sentences(encoder_mask)
        cross_cache = self.project_sources(sentences.pack(encoder_hidden_states))
        return DecoderState(self, cross_cache, sentences, beams, max_length)

    def project_sources(self, states: Tensor) -> Tensor:
        """Keys and values (layers, tokens, 2 * attention_width) of source states (tokens, d_model)."""
        stack, tokens = self.decoder, len(states)
        padded = torch.zeros(round_up(tokens, ROW_PADDING), stack.stride, dtype=self.dtype)
        padded[:tokens, : stack.width] = states
        cache = torch.empty(stack.layers, tokens, 2 * stack.attention_width, dtype=self.dtype)
        size = loaded_library().linear_scratch_size(stack.layer[0].cross_key_value.type, tokens, stack.stride)
        scratch = torch.empty(size, dtype=torch.uint8)
        for i, entries in enumerate(cache):
            projection = byref(stack.layer[i].cross_key_value)
            pointers = padded.data_ptr(), 0, entries.data_ptr(), stack.type, scratch.data_ptr()
            loaded_library().linear(projection, tokens, *pointers)
        return cache

    def check_length(self, tokens: int, stack: str) -> None:
        limit = self.positions[stack]
        if limit is not None and tokens > limit:
            raise ValueError(
                f"the {stack} received {tokens} tokens, but max_position_embeddings is {limit}: shorten the text "
                "(truncation=True, max_new_tokens)"
            )
