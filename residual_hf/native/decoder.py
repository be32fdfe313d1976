# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The decoder of a model on the native kernels, one call per step."""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from residual_hf.errors import InputError
from residual_hf.model.embeddings import first_position, position_ids_from_mask, positions_padding
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

from . import loaded_library
from .batch import Sentences, number_of_parts
from .structures import Memory, Source, Stack, Step, Table
from .support import missing_support, plain_stack, unsupported_stack
from .weights import Fingerprint, Packer, round_up

ROW_PADDING = 32
FIRST_STEPS = 64  # for which the cache has room from the start


@dataclass
class DecoderState:
    """What the decoder remembers of a batch. Rows are sentences x beams, sentence-major.

    Keys and values stay where they were written; `ancestors` names the entries of each row, and `sources` its
    sentence, so that reordering beams and dropping sentences moves indices only.
    """

    self_cache: list[Tensor]  # of each layer (steps * slots, 2 * attention_width), with room for steps to come
    cross_cache: Tensor  # (layers, source tokens, 2 * attention_width)
    ancestors: Tensor  # (rows, max_length), int32
    sources: Tensor  # (rows,), int32
    source_table: Tensor  # (sentences, longest source), int32
    source_lengths: Tensor  # (sentences,), int32
    slots: int
    step: int = 0
    logits: Tensor | None = None  # (slots, padded vocabulary)
    scratch: Tensor | None = None

    @property
    def memory(self) -> Memory:
        sizes = (self.slots, self.ancestors.shape[1], self.source_table.shape[1], self.cross_cache.shape[1])
        self_cache = (c_void_p * len(self.self_cache))(*(entries.data_ptr() for entries in self.self_cache))
        others = (self.cross_cache, self.ancestors, self.sources, self.source_table, self.source_lengths)
        return Memory(*sizes, self_cache, *(tensor.data_ptr() for tensor in others))

    def reserve(self) -> None:
        """Make room for the next step, in one layer after another: there is never a second copy of the cache."""
        entries = self.step * self.slots
        for layer, old in enumerate(self.self_cache):
            if len(old) <= entries:
                steps = min(2 * self.step, self.ancestors.shape[1])
                self.self_cache[layer] = old.new_empty(steps * self.slots, old.shape[1])
                self.self_cache[layer][:entries] = old


class NativeDecoder:
    """Encoder and decoder of a model on the native kernels.

    Args:
        model: a `ResidualForConditionalGeneration` on the CPU that `supports` accepts.
        dtype: of weights and activations: "float32" gives the logits of the model; "bfloat16"; "int8" has weights of 8
            bits with a scale per output, inputs of linear maps rounded to 8 bits with a scale per row, and other
            activations in bfloat16.

    Raises:
        InputError: `supports` gives a reason.
    """

    def __init__(self, model: ResidualForConditionalGeneration, dtype: str = "float32"):
        reason = self.supports(model, dtype)
        if reason is not None:
            raise InputError(reason)
        self.config = model.config
        self.fingerprint = Fingerprint(model)
        self.dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        self.packer = Packer(dtype)
        self.model = weakref.ref(model)
        with torch.no_grad():
            self.decoder = self.packer.stack(plain_stack(model, "decoder"))
            self.decoder.logits = self.packer.linear(model.output_weight, model.lm_head.bias, padding_bias=-torch.inf)

    @cached_property
    def encoder(self) -> Stack | None:
        """The encoder, packed at first use: fp32 may do without. None where its mode has no kernels."""
        model = self.model()
        if model is None or unsupported_stack(model.model.encoder) is not None:
            return None
        with torch.no_grad():
            return self.packer.stack(plain_stack(model, "encoder"))

    @staticmethod
    def supports(model: ResidualForConditionalGeneration, dtype: str = "float32") -> str | None:
        """Why the kernels cannot decode with this model, or None if they can."""
        return missing_support(model, dtype)

    def is_current(self, model: ResidualForConditionalGeneration) -> bool:
        """Are the weights of the model still those that were packed?"""
        return self.fingerprint.matches(model)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
        """Encoder states (batch, length, d_model) in fp32, zero at padding, from source tokens (batch, length).

        None where the encoder has a mode without kernels; the model's own encoder serves then.
        """
        if self.encoder is None:
            return None
        self.check_length(input_ids.shape[1], "encoder")
        sentences = Sentences(input_ids.ne(self.config.pad_token_id) if attention_mask is None else attention_mask)
        padding_idx = positions_padding(self.config)
        if padding_idx is None:
            positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        else:
            positions = position_ids_from_mask(sentences.mask, input_ids.shape[1], padding_idx)
        states = self.encode_sentences(
            self.encoder, sentences, sentences.pack(input_ids).long(), sentences.pack(positions)
        )
        return sentences.unpack(states[:, : self.encoder.width].float())

    def encode_sentences(self, stack: Stack, sentences: Sentences, tokens: Tensor, positions: Tensor) -> Tensor:
        """States (tokens, padded width) of tokens and their positions, (tokens,)."""
        rows = len(tokens)
        cache = torch.empty(rows, 2 * stack.attention_width, dtype=self.dtype)
        states = torch.empty(round_up(rows, ROW_PADDING), stack.stride, dtype=self.dtype)
        lines, lengths = sentences.sentence_of_token.data_ptr(), sentences.lengths.data_ptr()
        table = Table(sentences.entries.data_ptr(), sentences.longest, lines, lengths)
        inputs = tokens.data_ptr(), positions.data_ptr(), table, sentences.longest
        source = Source(*inputs, cache.data_ptr(), states.data_ptr())
        starts = sentences.part_starts()
        arguments = byref(stack), byref(source), len(starts) - 1, starts
        scratch = torch.empty(loaded_library().encode_scratch_size(*arguments), dtype=torch.uint8)
        if not loaded_library().encode(*arguments, scratch.data_ptr()):
            raise IndexError(f"input_ids: a token is outside the vocabulary of {stack.vocabulary}")
        return states[:rows]

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
        sentences, stack = Sentences(encoder_mask), self.decoder
        slots = len(encoder_mask) * beams
        room = slots * min(max_length, FIRST_STEPS)
        return DecoderState(
            self_cache=[torch.empty(room, 2 * stack.attention_width, dtype=self.dtype) for _ in range(stack.layers)],
            cross_cache=self.project_sources(sentences.pack(encoder_hidden_states)),
            ancestors=torch.zeros(slots, max_length, dtype=torch.int32),
            sources=torch.arange(len(encoder_mask), dtype=torch.int32).repeat_interleave(beams),
            source_table=sentences.entries,
            source_lengths=sentences.lengths,
            slots=slots,
        )

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

    def step(self, state: DecoderState, tokens: Tensor) -> Tensor:
        """Decode one token per row: logits (rows, vocabulary), which the next step overwrites.

        Args:
            tokens: (rows,), the newest token of each row.

        Raises:
            ValueError: more steps than `max_length` or `config.max_position_embeddings`.
        """
        if state.logits is None:
            state.logits = torch.empty(state.slots, self.decoder.logits.outputs)
        self._decode(state, tokens, Step(logits=state.logits.data_ptr()))
        return state.logits[: len(tokens), : self.config.decoder_vocab_size]

    def best(self, state: DecoderState, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Same as `step`, but return the `count` best next tokens of each row; all of them if there are fewer.

        Returns:
            Log probabilities in descending order and token ids, (rows, count) each.
        """
        count = min(count, self.config.decoder_vocab_size)
        log_probs, ids = torch.empty(len(tokens), count), torch.empty(len(tokens), count, dtype=torch.long)
        self._decode(state, tokens, Step(candidates=count, log_probs=log_probs.data_ptr(), ids=ids.data_ptr()))
        return log_probs, ids

    def _decode(self, state: DecoderState, tokens: Tensor, step: Step) -> None:
        """Run the decoder; `step` says which outputs to write, and receives the inputs."""
        self.check_length(state.step + 1, "decoder")
        rows, max_length = state.ancestors.shape
        if state.step >= max_length:
            raise ValueError(f"max_length: {max_length} was given, and this is one step more")
        if len(tokens) != rows:
            raise ValueError(f"tokens: {len(tokens)} given for {rows} rows")
        tokens = tokens.long().contiguous()
        state.reserve()
        step.rows, step.index, step.tokens = rows, state.step, tokens.data_ptr()
        step.position = first_position(positions_padding(self.config)) + state.step
        structures, parts = (byref(self.decoder), byref(state.memory)), number_of_parts(rows)
        size = loaded_library().decode_scratch_size(*structures, rows, parts)
        if state.scratch is None or len(state.scratch) < size:
            state.scratch = torch.empty(size, dtype=torch.uint8)
        if not loaded_library().decode(*structures, byref(step), parts, state.scratch.data_ptr()):
            raise IndexError(f"tokens: one is outside the vocabulary of {self.decoder.vocabulary}")
        state.step += 1

    def select(self, state: DecoderState, rows: Tensor) -> None:
        """Continue with these rows (new_rows,), in this order; a row may be taken several times or not at all."""
        if len(rows) > state.slots:
            raise ValueError(f"rows: {len(rows)} selected, and the state has room for {state.slots}")
        state.ancestors = state.ancestors[rows]
        state.sources = state.sources[rows]

    def check_length(self, tokens: int, stack: str) -> None:
        if tokens > self.config.max_position_embeddings:
            raise ValueError(
                f"the {stack} received {tokens} tokens, but max_position_embeddings is "
                f"{self.config.max_position_embeddings}: shorten the text (truncation=True, max_new_tokens)"
            )
