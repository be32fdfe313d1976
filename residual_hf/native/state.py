# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A batch that is being decoded on the native kernels, one call per step."""

from __future__ import annotations

from ctypes import addressof, byref, c_char, c_void_p
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from residual_hf.model.embeddings import first_position, positions_padding
from residual_hf.model.search import Array

from . import loaded_library, threads_for
from .batch import ROWS_PER_THREAD, Sentences
from .structures import Memory, Step

if TYPE_CHECKING:
    from .decoder import NativeDecoder

FIRST_STEPS = 64  # for which the cache has room from the start


class DecoderState:
    """What the decoder remembers of a batch; a `model.search.Decoder`. Rows are sentences x beams, sentence-major.

    Keys and values stay where they were written; `ancestors` names the entries of each row, and `sources` its
    sentence, so that reordering beams and dropping sentences moves indices only.

    Args:
        cross_cache: keys and values of the source, (layers, source tokens, 2 * attention_width).
    """

    def __init__(self, decoder: NativeDecoder, cross_cache: Tensor, sentences: Sentences, beams: int, max_length: int):
        self.decoder, self.stack, config = decoder, decoder.decoder, decoder.config
        self.vocabulary = config.decoder_vocab_size
        self.first_position = first_position(positions_padding(config))
        self.slots, self.max_length, self.steps = len(sentences.lengths) * beams, max_length, 0
        room = self.slots * min(max_length, FIRST_STEPS), 2 * self.stack.attention_width
        self.self_cache = [torch.empty(room, dtype=decoder.dtype) for _ in range(self.stack.layers)]
        self.ancestors = np.zeros((self.slots, max_length), np.int32)
        self.sources = np.arange(len(sentences.lengths), dtype=np.int32).repeat(beams)
        self.source = cross_cache, sentences.entries, sentences.lengths
        self.addresses = (c_void_p * self.stack.layers)(*(entries.data_ptr() for entries in self.self_cache))
        sizes = (self.slots, max_length, sentences.longest, cross_cache.shape[1])
        rows = address(self.ancestors), address(self.sources)
        table = sentences.entries.data_ptr(), sentences.lengths.data_ptr()
        self.memory = Memory(*sizes, self.addresses, cross_cache.data_ptr(), *rows, *table)
        self.arguments = byref(self.stack), byref(self.memory)
        self.scratch = torch.empty(0, dtype=torch.uint8)
        self.logits: Tensor | None = None  # (slots, padded vocabulary)

    def step(self, tokens: Array) -> Tensor:
        """Decode one token per row: logits (rows, vocabulary), which the next step overwrites.

        Args:
            tokens: (rows,), the newest token of each row.

        Raises:
            ValueError: more steps than `max_length` or `config.max_position_embeddings`.
        """
        if self.logits is None:
            self.logits = torch.empty(self.slots, self.stack.logits.outputs, dtype=torch.float32)
        self._decode(tokens, Step(logits=self.logits.data_ptr()))
        return self.logits[: len(tokens), : self.vocabulary]

    def best(self, tokens: Array, count: int) -> tuple[Array, Array]:
        """Same as `step`, but return the `count` best next tokens of each row; all of them if there are fewer.

        Returns:
            Log probabilities in descending order and token ids, (rows, count) each.
        """
        count = min(count, self.vocabulary)
        shape = len(tokens), count
        log_probs, ids = np.empty(shape, np.float32), np.empty(shape, np.int64)
        self._decode(tokens, Step(candidates=count, log_probs=address(log_probs), ids=address(ids)))
        return log_probs, ids

    def select(self, rows: Array) -> None:
        """Continue with these rows (new_rows,), in this order; a row may be taken several times or not at all."""
        if len(rows) > self.slots:
            raise ValueError(f"rows: {len(rows)} selected, and the state has room for {self.slots}")
        self.ancestors, self.sources = self.ancestors[rows], self.sources[rows]
        self.memory.ancestors, self.memory.sources = address(self.ancestors), address(self.sources)

    def _decode(self, tokens: Array, step: Step) -> None:
        """Run the decoder; `step` says which outputs to write, and receives the inputs."""
        rows = len(self.sources)
        self.decoder.check_length(self.steps + 1, "decoder")
        if self.steps >= self.max_length:
            raise ValueError(f"max_length: {self.max_length} was given, and this is one step more")
        if len(tokens) != rows:
            raise ValueError(f"tokens: {len(tokens)} given for {rows} rows")
        tokens = np.ascontiguousarray(tokens, np.int64)
        if len(self.self_cache[0]) <= self.steps * self.slots:
            self._make_room()
        step.rows, step.index, step.tokens = rows, self.steps, address(tokens)
        step.position = self.first_position + self.steps
        library, parts = loaded_library(), threads_for(rows, ROWS_PER_THREAD)
        size = library.decode_scratch_size(*self.arguments, rows, parts)
        if len(self.scratch) < size:
            self.scratch = torch.empty(size, dtype=torch.uint8)
        if not library.decode(*self.arguments, byref(step), parts, self.scratch.data_ptr()):
            raise IndexError(f"tokens: one is outside the vocabulary of {self.stack.vocabulary}")
        self.steps += 1

    def _make_room(self) -> None:
        """Twice the steps, in one layer after another: there is never a second copy of the cache."""
        steps = min(2 * self.steps, self.max_length)
        for layer, old in enumerate(self.self_cache):
            self.self_cache[layer] = old.new_empty(steps * self.slots, old.shape[1])
            self.self_cache[layer][: len(old)] = old
            self.addresses[layer] = self.self_cache[layer].data_ptr()


def address(array: Array) -> int:
    """Of the first value; `array.ctypes` takes several times as long."""
    return addressof(c_char.from_buffer(array.data))
