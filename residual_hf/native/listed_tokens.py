"""Output layers of the sentences of a batch, each for the tokens of a list."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from residual_hf.model.search import Array

from .weights import Packer, RoundedRows, round_up


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
