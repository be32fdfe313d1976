"""A batch that is being decoded on the native kernels, one call per step or one for a whole search."""

from ctypes import POINTER, addressof, byref, c_char, c_void_p, cast, pointer
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from residual_hf.model.embeddings import first_position, positions_padding
from residual_hf.model.search import Array, Decoder, SearchResult, SearchSettings

from . import loaded_library, threads_for
from .batch import ROWS_PER_THREAD, ListedTokens, Sentences
from .search import search
from .structures import Candidates, Memory, Step, Tally
from .weights import round_up

FIRST_STEPS = 64  # for which the cache has room from the start


class DecoderState(Decoder):
    """The memory of the decoder for a batch.

    Keys and values stay where they were written; `ancestors` names the entries of each row, and `sources` its
    sentence, so that reordering beams and dropping sentences moves indices only.

    Args:
        decoder: a `NativeDecoder`.
        sentences: the sources, or of a decoder alone the tokens that it has read.
        beams: rows per sentence at most.
        cross_cache: keys and values of the sources, (layers, source tokens, 2 * attention_width), if there are any.
        read: for each layer keys and values of tokens that were read, (tokens, 2 * attention_width); None: of none.
        listed: the only tokens that may follow; None: all may.
    """

    def __init__(
        self,
        decoder: Any,
        sentences: Sentences,
        beams: int,
        max_length: int,
        cross_cache: Tensor | None = None,
        read: list[Tensor] | None = None,
        listed: ListedTokens | None = None,
    ):
        self.decoder, self.stack, config = decoder, decoder.decoder, decoder.config
        self.vocabulary = config.decoder_vocab_size
        self.first_position = first_position(positions_padding(config))
        count = len(sentences.lengths)
        self.slots, self.max_length = count * beams, max_length
        self.sources = np.arange(count, dtype=np.int32)
        self.ancestors = np.zeros((count, max_length), np.int32)
        self.lengths = np.zeros(count, np.int32)  # ancestors of each row
        self.entries = 0  # of the cache that are in use
        self.self_cache = [torch.empty(0, 2 * self.stack.attention_width, dtype=decoder.dtype)] * self.stack.layers
        if read is not None:
            self.self_cache, self.entries = read, len(read[0])
            self.lengths = sentences.lengths.numpy().copy()
            self.ancestors[:, : sentences.longest] = sentences.entries.numpy()
        self.source = cross_cache, sentences.entries, sentences.lengths
        self.addresses = torch.zeros(self.stack.layers, dtype=torch.int64)
        self.make_room(self.slots * min(max_length, FIRST_STEPS))
        cross = (0, None) if cross_cache is None else (cross_cache.shape[1], cross_cache.data_ptr())
        rows = address(self.ancestors), address(self.lengths), address(self.sources)
        table = sentences.entries.data_ptr(), sentences.lengths.data_ptr()
        caches = cast(self.addresses.data_ptr(), POINTER(c_void_p))
        self.memory = Memory(max_length, sentences.longest, cross[0], caches, cross[1], *rows, *table)
        self.listed = listed
        if listed is not None:
            self.memory.listed, self.memory.list_starts = pointer(listed.output), address(listed.starts)
            self.memory.list_ids = address(listed.ids)
        self.arguments = byref(self.stack), byref(self.memory)
        self.scratch = torch.empty(0, dtype=torch.uint8)
        self.logits: Tensor | None = None  # (slots, padded vocabulary)

    def step(self, tokens: Array) -> Tensor:
        """Decode the newest token of each row, (rows,): logits (rows, vocabulary), which the next step overwrites.

        Raises `ValueError` for more steps than `max_length` or `config.max_position_embeddings`.
        """
        if self.logits is None:
            self.logits = torch.empty(self.slots, self.stack.logits.outputs, dtype=torch.float32)
        self._decode(tokens, Step(logits=self.logits.data_ptr()))
        logits = self.logits[: len(tokens), : self.vocabulary]
        return logits if self.listed is None else self.listed.only(logits, self.sources)

    def best(self, tokens: Array, count: int) -> tuple[Array, Array]:
        """Same as `step`, but return the `count` best next tokens of each row, all of them if there are fewer:
        log-probabilities in descending order and token ids, (rows, count) each."""
        count = min(count, self.vocabulary)
        shape = len(tokens), count
        log_probs, ids = np.empty(shape, np.float32), np.empty(shape, np.int64)
        self._decode(tokens, Step(candidates=count, log_probs=address(log_probs), ids=address(ids)))
        return log_probs, ids

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Log-probabilities (rows, vocabulary) with the sums of `best`."""
        padded = self._padded(logits)
        log_probs = torch.empty_like(padded)
        loaded_library().log_softmax(*padded.shape, padded.data_ptr(), log_probs.data_ptr())
        return log_probs[:, : self.vocabulary]

    def top_k(self, scores: Tensor, count: int) -> tuple[Array, Array]:
        """The best tokens of each row as `best` chooses them: of equal ones that of the smaller id first."""
        padded, count = self._padded(scores), min(count, self.vocabulary)
        values, ids = np.empty((len(padded), count), np.float32), np.empty((len(padded), count), np.int64)
        tallies = (Tally * len(padded))()
        best = byref(Candidates(*values.shape, address(values), address(ids), tallies))
        loaded_library().start_candidates(best)
        loaded_library().add_candidates(best, padded.shape[1], 0, padded.data_ptr())
        return values, np.where(ids < self.vocabulary, ids, 0)  # others only of scores that are not numbers

    def _padded(self, scores: Tensor) -> Tensor:
        """Scores of the columns that the kernels need."""
        padding = round_up(self.vocabulary) - self.vocabulary
        return nn.functional.pad(scores, (0, padding), value=-torch.inf).contiguous()

    def search(self, prompt: Tensor, settings: SearchSettings) -> SearchResult | None:
        return search(self, prompt, settings)

    def select(self, rows: Array) -> None:
        """Continue with these rows (new_rows,), in this order; a row may be taken several times or not at all."""
        if len(rows) > self.slots:
            raise ValueError(f"rows: {len(rows)} selected, and the state has room for {self.slots}")
        self.ancestors, self.lengths, self.sources = self.ancestors[rows], self.lengths[rows], self.sources[rows]
        self.memory.ancestors, self.memory.lengths = address(self.ancestors), address(self.lengths)
        self.memory.sources = address(self.sources)

    def _decode(self, tokens: Array, step: Step) -> None:
        """Run the decoder; `step` says which outputs to write, and receives the inputs."""
        rows, longest = len(self.sources), int(self.lengths.max())
        self.decoder.check_length(longest + 1, "decoder")
        if longest >= self.max_length:
            raise ValueError(f"max_length: {self.max_length} was given, and this is one step more")
        if len(tokens) != rows:
            raise ValueError(f"tokens: {len(tokens)} given for {rows} rows")
        tokens = np.ascontiguousarray(tokens, np.int64)
        if len(self.self_cache[0]) < self.entries + rows:
            self.make_room(rows)
        step.rows, step.entry, step.tokens = rows, self.entries, address(tokens)
        step.position = self.first_position
        library, parts = loaded_library(), threads_for(rows, ROWS_PER_THREAD)
        size = library.decode_scratch_size(*self.arguments, rows, parts)
        if len(self.scratch) < size:
            self.scratch = torch.empty(size, dtype=torch.uint8)
        if not library.decode(*self.arguments, byref(step), parts, self.scratch.data_ptr()):
            raise IndexError(f"tokens: one is outside the vocabulary of {self.stack.vocabulary}")
        self.lengths += 1
        self.entries += rows

    def make_room(self, entries: int) -> None:
        """For so many entries at least, and as many as there are, in one layer after another: there is never a second
        copy of the cache."""
        entries = max(len(self.self_cache[0]), entries)
        for layer, old in enumerate(self.self_cache):
            self.self_cache[layer] = old.new_empty(len(old) + entries, old.shape[1])
            if len(old):
                self.self_cache[layer][: len(old)] = old
            self.addresses[layer] = self.self_cache[layer].data_ptr()


def address(array: Array) -> int:
    """The address of the first value; `array.ctypes` takes several times as long."""
    return addressof(c_char.from_buffer(array.data))
