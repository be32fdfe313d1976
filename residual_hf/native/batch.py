"""Batches of sentences without their padding, their parts for several threads, and the tokens that each may have."""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from residual_hf.model.search import Array

from . import threads_for
from .structures import CONSTANTS, Table
from .weights import Packer, RoundedRows, round_up

ROWS_PER_THREAD = CONSTANTS["ROWS_PER_THREAD"]


class Sentences:
    """Positions of the real tokens of a padded batch when they follow each other.

    `mask`: (sentences, length), nonzero at real tokens.
    """

    def __init__(self, mask: Tensor):
        self.mask = mask.bool()
        is_real = self.mask.numpy()  # which takes a fraction of PyTorch's time for small arrays
        lengths = is_real.sum(axis=1, dtype=np.int32)
        starts = lengths.cumsum(dtype=np.int32) - lengths
        self.longest = max(int(lengths.max()), 1)
        self.lengths = torch.from_numpy(lengths)
        self.entries = torch.from_numpy(starts[:, None] + np.arange(self.longest, dtype=np.int32))
        self.sentence_of_token = torch.from_numpy(np.arange(len(lengths), dtype=np.int32).repeat(lengths))
        self.places = torch.from_numpy(is_real.reshape(-1).nonzero()[0])

    def pack(self, values: Tensor) -> Tensor:
        """The values of real tokens, (tokens, ...), from (sentences, length, ...)."""
        return values.flatten(0, 1).index_select(0, self.places)

    def unpack(self, values: Tensor) -> Tensor:
        """The reverse, with zeros at padding."""
        padded = values.new_zeros(*self.mask.shape, *values.shape[1:])
        padded[self.mask] = values
        return padded

    def table(self) -> Table:
        """Each token attends to all tokens of its sentence."""
        return Table(self.entries.data_ptr(), self.longest, self.sentence_of_token.data_ptr(), self.lengths.data_ptr())

    def causal_table(self) -> Table:
        """Each token attends to itself and to the tokens before it: a part of one list, that counts down."""
        place = torch.arange(len(self.sentence_of_token), dtype=torch.int32)
        starts = (self.lengths.cumsum(0) - self.lengths)[self.sentence_of_token]
        self.reversed = place.flip(0).contiguous(), (place - starts + 1).flip(0).to(torch.int32).contiguous()
        return Table(self.reversed[0].data_ptr(), 1, self.reversed[0].data_ptr(), self.reversed[1].data_ptr())

    def part_starts(self) -> ctypes.Array:
        """The first tokens of parts for as many threads, of about equal size, and the end of the last one."""
        ends = self.lengths.cumsum(0).tolist()
        parts = threads_for(ends[-1], ROWS_PER_THREAD)
        goals = [ends[-1] * i / parts for i in range(1, parts)]
        inner = {min(ends, key=lambda end: abs(end - goal)) for goal in goals} - {ends[-1]}
        starts = [0, *sorted(inner), ends[-1]]
        return (ctypes.c_int32 * len(starts))(*starts)


class ListedTokens:
    """The tokens that each sentence of a batch may have. What it computes does not depend on the other sentences.

    Args:
        lists: the token ids of each sentence.
        rows: the whole output layer.
        dtype: of its weights.

    Attributes:
        output: the outputs of all lists, one after the other, each with padding.
        starts: where they begin and end, (sentences + 1).
        ids: token ids of the outputs, 0 for padding.
    """

    def __init__(self, lists: Sequence[Array], rows: RoundedRows, dtype: str):
        self.lists = lists
        self.starts = np.cumsum([0, *(round_up(len(tokens)) for tokens in lists)], dtype=np.int32)
        self.ids, padding = np.zeros(self.starts[-1], np.int64), np.ones(self.starts[-1], bool)
        for first, tokens in zip(self.starts, lists, strict=False):
            self.ids[first : first + len(tokens)] = tokens
            padding[first : first + len(tokens)] = False
        self.packer, own = Packer(dtype), torch.from_numpy(self.ids)
        chosen = RoundedRows(*(values.index_select(0, own) for values in rows))
        self.output = self.packer.panels(
            chosen._replace(bias=chosen.bias.masked_fill(torch.from_numpy(padding), -torch.inf))
        )

    def only(self, logits: Tensor, sentences: Array) -> Tensor:
        """The logits (rows, vocabulary) of rows of `sentences`, -inf for tokens that are not in their lists."""
        excluded = torch.ones(len(self.lists), logits.shape[1], dtype=torch.bool)
        for row, tokens in zip(excluded.numpy(), self.lists, strict=True):
            row[tokens] = False
        return logits.masked_fill(excluded[sentences], -torch.inf)
