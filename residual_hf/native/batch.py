"""Batches of sentences without their padding, and their parts for several threads."""

from ctypes import Array, c_int32

import numpy as np
import torch
from torch import Tensor

from . import threads_for
from .structures import CONSTANTS, Table

ROWS_PER_THREAD = CONSTANTS["ROWS_PER_THREAD"]


class Sentences:
    """Positions of the real tokens of a padded batch when they follow each other.

    Args:
        mask: (sentences, length), nonzero at real tokens.
    """

    def __init__(self, mask: Tensor):
        self.mask = mask.bool()
        is_real = self.mask.numpy()  # which takes a fraction of PyTorch's time for small arrays
        lengths = is_real.sum(axis=1, dtype=np.int32)
        starts = lengths.cumsum(dtype=np.int32) - lengths
        self.longest = max(int(lengths.max()), 1)
        self.lengths = torch.from_numpy(lengths)
        entries = starts[:, None] + np.arange(self.longest, dtype=np.int32)  # (sentences, longest)
        self.entries = torch.from_numpy(entries)
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
        total = len(self.sentence_of_token)
        place = torch.arange(total, dtype=torch.int32)
        starts = (self.lengths.cumsum(0) - self.lengths)[self.sentence_of_token]
        self.reversed = place.flip(0).contiguous(), (place - starts + 1).flip(0).to(torch.int32).contiguous()
        return Table(self.reversed[0].data_ptr(), 1, self.reversed[0].data_ptr(), self.reversed[1].data_ptr())

    def part_starts(self) -> Array:
        """The first tokens of parts for as many threads, of about equal size, and the end of the last one."""
        ends = self.lengths.cumsum(0).tolist()
        parts = threads_for(ends[-1], ROWS_PER_THREAD)
        goals = [ends[-1] * i / parts for i in range(1, parts)]
        inner = {min(ends, key=lambda end: abs(end - goal)) for goal in goals} - {ends[-1]}
        starts = [0, *sorted(inner), ends[-1]]
        return (c_int32 * len(starts))(*starts)
