# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""An output layer that computes only tokens that some sentence of a batch may have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from residual_hf.model.search import Array

from .weights import Packer, pad_to


class ListedTokens:
    """The tokens of a batch with a list for each sentence. A sentence has the same hypotheses in any batch.

    Args:
        lists: the token ids of each sentence, in any order.
        weight, bias: of the output layer, (vocabulary, d_model) and (vocabulary) or None.
        dtype: of the packed weights.

    Attributes:
        output: the output layer of all listed tokens, in the order of their ids.
        ids: token ids of its outputs, 0 for those that are padding.
        mask: 0 where a sentence has the token of an output in its list, else -inf, (sentences, outputs).
    """

    def __init__(self, lists: Sequence[Array], weight: Tensor, bias: Tensor | None, dtype: str):
        allowed = np.zeros((len(lists), len(weight)), bool)
        for row, tokens in zip(allowed, lists, strict=True):
            row[tokens] = True
        tokens = allowed.any(axis=0).nonzero()[0]
        self.count = len(tokens)
        self.packer = Packer(dtype)
        with torch.no_grad():
            own = torch.from_numpy(tokens)
            self.output = self.packer.linear(weight[own], None if bias is None else bias[own], padding_bias=-torch.inf)
        self.ids = np.zeros(self.output.outputs, np.int64)
        self.ids[: self.count] = tokens
        mask = torch.where(torch.from_numpy(allowed[:, tokens]), 0.0, -torch.inf)
        self.mask = pad_to(mask, len(lists), self.output.outputs)

    def among_all(self, logits: Tensor, sentences: Array, vocabulary: int) -> Tensor:
        """The logits (rows, vocabulary), -inf outside the lists, of those of the outputs for rows of `sentences`."""
        everything = torch.full((len(logits), vocabulary), -torch.inf)
        everything[:, self.ids[: self.count]] = (logits + self.mask[sentences])[:, : self.count]
        return everything
