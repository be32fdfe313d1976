# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The decoder of a model on the native kernels, one call per step."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from residual_hf.errors import InputError
from residual_hf.model.embeddings import first_position, position_ids_from_mask, positions_padding

from . import library
from .structures import Memory, Table
from .support import fold_where_needed, missing_support, unsupported_stack
from .weights import Packer, round_up

ROW_PADDING = 32


@dataclass
class DecoderState:
    """What the decoder remembers of a batch. Rows are sentences x beams, sentence-major.

    Keys and values stay where they were written; `ancestors` names the entries of each row, and `sources` its
    sentence, so that reordering beams and dropping sentences moves indices only.
    """

    self_cache: Tensor  # (layers, max_length * slots, 2 * attention_width)
    cross_cache: Tensor  # (layers, source tokens, 2 * attention_width)
    ancestors: Tensor  # (rows, max_length), int32
    sources: Tensor  # (rows,), int32
    source_table: Tensor  # (sentences, longest source), int32
    source_lengths: Tensor  # (sentences,), int32
    logits: Tensor  # (slots, padded vocabulary)
    scratch: Tensor
    slots: int
    step: int = 0

    @property
    def memory(self) -> Memory:
        names = ("self_cache", "cross_cache", "ancestors", "sources", "source_table", "source_lengths")
        sizes = (self.slots, self.ancestors.shape[1], self.source_table.shape[1], self.cross_cache.shape[1])
        return Memory(*sizes, *(getattr(self, name).data_ptr() for name in names))


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

    def __init__(self, model: nn.Module, dtype: str = "float32"):
        reason = self.supports(model, dtype)
        if reason is not None:
            raise InputError(reason)
        self.config = model.config
        self.fingerprint = Fingerprint(model)
        self.dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        self.packer = Packer(dtype)
        with torch.no_grad():
            plain = fold_where_needed(model)
            self.decoder = self.packer.stack(plain.model.decoder)
            self.decoder.logits = self.packer.linear(plain.output_weight, plain.lm_head.bias, padding_bias=-torch.inf)
            encoder_runs = unsupported_stack(model.model.encoder) is None
            self.encoder = self.packer.stack(plain.model.encoder) if encoder_runs else None

    @staticmethod
    def supports(model: nn.Module, dtype: str = "float32") -> str | None:
        """Why the kernels cannot decode with this model, or None if they can."""
        return missing_support(model, dtype)

    def is_current(self, model: nn.Module) -> bool:
        """Are the weights of the model still those that were packed?"""
        return self.fingerprint == Fingerprint(model)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
        """Encoder states (batch, length, d_model) in fp32, zero at padding, from source tokens (batch, length).

        None where the encoder has a mode without kernels; the model's own encoder serves then.
        """
        if self.encoder is None:
            return None
        self.check_length(input_ids.shape[1], "encoder")
        real = (input_ids.ne(self.config.pad_token_id) if attention_mask is None else attention_mask).bool()
        padding_idx = positions_padding(self.config)
        if padding_idx is None:
            positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        else:
            positions = position_ids_from_mask(real, input_ids.shape[1], padding_idx)
        tokens, positions = input_ids[real].contiguous(), positions[real].contiguous()
        entries, lengths = source_entries(real)
        lines = torch.arange(len(real), dtype=torch.int32).unsqueeze(1).expand_as(real)[real].contiguous()
        table = Table(entries.data_ptr(), entries.shape[1], lines.data_ptr(), lengths.data_ptr())

        rows, longest, stack = len(tokens), entries.shape[1], self.encoder
        cache = torch.empty(rows, 2 * stack.attention_width, dtype=self.dtype)
        states = torch.empty(round_up(rows, ROW_PADDING), stack.stride, dtype=self.dtype)
        scratch = torch.empty(library().encode_scratch_size(byref(stack), rows, longest), dtype=torch.uint8)
        pointers = [tensor.data_ptr() for tensor in (cache, states, scratch)]
        known = library().encode(
            byref(stack), rows, tokens.data_ptr(), positions.data_ptr(), byref(table), longest, *pointers
        )
        if not known:
            raise IndexError(f"input_ids: a token is outside the vocabulary of {stack.vocabulary}")
        output = torch.zeros(*input_ids.shape, stack.width)
        output[real] = states[:rows, : stack.width].float()
        return output

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
        sentences, length, _ = encoder_hidden_states.shape
        real = torch.ones(sentences, length) if encoder_mask is None else encoder_mask
        real = real.bool()
        entries, lengths = source_entries(real)
        slots, stack = sentences * beams, self.decoder
        state = DecoderState(
            self_cache=torch.empty(stack.layers, max_length * slots, 2 * stack.attention_width, dtype=self.dtype),
            cross_cache=self.project_sources(encoder_hidden_states[real]),
            ancestors=torch.zeros(slots, max_length, dtype=torch.int32),
            sources=torch.arange(sentences, dtype=torch.int32).repeat_interleave(beams),
            source_table=entries,
            source_lengths=lengths,
            logits=torch.empty(slots, stack.logits.outputs),
            scratch=torch.empty(0, dtype=torch.uint8),
            slots=slots,
        )
        size = library().decode_scratch_size(byref(stack), byref(state.memory), slots)
        state.scratch = torch.empty(size, dtype=torch.uint8)
        return state

    def project_sources(self, states: Tensor) -> Tensor:
        """Keys and values (layers, tokens, 2 * attention_width) of source states (tokens, d_model)."""
        stack, tokens = self.decoder, len(states)
        padded = torch.zeros(round_up(tokens, ROW_PADDING), stack.stride, dtype=self.dtype)
        padded[:tokens, : stack.width] = states
        cache = torch.empty(stack.layers, tokens, 2 * stack.attention_width, dtype=self.dtype)
        size = library().linear_scratch_size(stack.layer[0].cross_key_value.type, tokens, stack.stride)
        scratch = torch.empty(size, dtype=torch.uint8)
        for i, entries in enumerate(cache):
            projection = byref(stack.layer[i].cross_key_value)
            pointers = padded.data_ptr(), 0, entries.data_ptr(), stack.type, scratch.data_ptr()
            library().linear(projection, tokens, *pointers)
        return cache

    def step(self, state: DecoderState, tokens: Tensor, candidates: int = 0) -> Tensor | tuple[Tensor, Tensor]:
        """Decode one token per row.

        Args:
            tokens: (rows,), the newest token of each row.
            candidates: how many of the best next tokens to return for each row.

        Returns:
            Log probabilities in descending order and token ids, (rows, candidates) each. For `candidates=0` the logits
            (rows, vocabulary), which the next step overwrites.

        Raises:
            ValueError: more steps than `max_length` or `config.max_position_embeddings`.
        """
        self.check_length(state.step + 1, "decoder")
        if state.step >= state.ancestors.shape[1]:
            raise ValueError(f"max_length: {state.ancestors.shape[1]} was given, and this is one step more")
        rows, stack = len(tokens), self.decoder
        tokens = tokens.contiguous()
        count = min(candidates, self.config.decoder_vocab_size)
        log_probs, ids = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.long)
        position = first_position(positions_padding(self.config)) + state.step
        arguments = rows, state.step, position, tokens.data_ptr(), state.logits.data_ptr()
        outputs = count, log_probs.data_ptr(), ids.data_ptr(), state.scratch.data_ptr()
        if not library().decode(byref(stack), byref(state.memory), 0, *arguments, *outputs):
            raise IndexError(f"tokens: one is outside the vocabulary of {stack.vocabulary}")
        state.step += 1
        return (log_probs, ids) if count else state.logits[:rows, : self.config.decoder_vocab_size]

    def select(self, state: DecoderState, rows: Tensor) -> None:
        """Continue with these rows (new_rows,), in this order; a row may be taken several times or not at all."""
        if len(rows) > state.slots:
            raise ValueError(f"rows: {len(rows)} selected, and the state has room for {state.slots}")
        state.ancestors = state.ancestors[rows]
        state.sources = state.sources[rows]

    def check_length(self, tokens: int, stack: str) -> None:
        if tokens > self.config.max_position_embeddings:
            raise ValueError(
                f"the {stack} got {tokens} tokens, but max_position_embeddings is "
                f"{self.config.max_position_embeddings}: shorten the text (truncation=True, max_new_tokens)"
            )


def source_entries(real: Tensor) -> tuple[Tensor, Tensor]:
    """Where the real tokens of each sentence are once padding is removed, (sentences, longest), and their numbers."""
    lengths = real.sum(dim=1)
    starts = lengths.cumsum(dim=0) - lengths
    longest = max(int(lengths.max()), 1)
    entries = starts.unsqueeze(1) + torch.arange(longest)
    return entries.to(torch.int32), lengths.to(torch.int32)


class Fingerprint:
    """Tells whether a parameter of a model was replaced or written to.

    Besides addresses and version counters it compares a sample of the values: fused optimizers and writes to `.data`
    do not count as versions.
    """

    SAMPLES = 64

    def __init__(self, model: nn.Module):
        parameters = [parameter.detach() for parameter in model.parameters()]
        self.versions = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        self.values = torch.cat([p.flatten()[:: -(-p.numel() // self.SAMPLES)].float() for p in parameters])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprint):
            return NotImplemented
        return self.versions == other.versions and torch.equal(self.values, other.values)
