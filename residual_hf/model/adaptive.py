# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Adaptive input embeddings and adaptive softmax, for large vocabularies that are sorted by frequency.

`config.adaptive_cutoffs` divides the vocabulary into bands. Band i has vectors of d_model / factor^i values, which a
linear map takes to d_model. The softmax first chooses between the tokens of band 0 and the other bands, then within a
band. With `tie_word_embeddings` both use the same tables, and the same maps in bands 1 and up.

Baevski & Auli 2019, Adaptive Input Representations for Neural Language Modeling, as in fairseq; Grave et al. 2017.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from .configuration_residual import ResidualConfig
from .kernels import Dropout
from .norms import at_least_fp32


def bands(config: ResidualConfig) -> list[tuple[int, int, int]]:
    """First token, number of tokens and width of each band."""
    edges = [0, *(config.adaptive_cutoffs or ()), config.vocab_size]
    widths = [int(config.d_model // config.adaptive_factor**i) for i in range(len(edges) - 1)]
    return [(start, end - start, width) for start, end, width in zip(edges, edges[1:], widths, strict=False)]


class AdaptiveProjection(nn.Linear):
    """A linear map without bias, initially Xavier-uniform."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def init_parameters(self) -> None:
        init.xavier_uniform_(self.weight)


class AdaptiveBand(nn.Module):
    """The vectors of the tokens of a band, and the map from their width to d_model."""

    def __init__(self, size: int, width: int, d_model: int, padding_idx: int | None = None):
        super().__init__()
        self.table = nn.Embedding(size, width, padding_idx)
        self.projection = AdaptiveProjection(width, d_model)

    def logits(self, hidden_states: Tensor, dropout: nn.Dropout) -> Tensor:
        """The scores of the tokens of the band for states (n, d_model)."""
        if hasattr(self.projection, "get_delta_weight"):  # of PEFT
            raise ValueError("adaptive_cutoffs: adapters of projections would be ignored: exclude_modules='.*bands.*'")
        return F.linear(dropout(hidden_states @ self.projection.weight), self.table.weight)


class AdaptiveEmbedding(nn.Module):
    """Token embeddings of the bands, mapped to d_model, times `scale`. The embedding of padding is zero."""

    def __init__(self, config: ResidualConfig, scale: float):
        super().__init__()
        self.scale = scale
        self.d_model = config.d_model
        self.starts = [start for start, _, _ in bands(config)]
        self.bands: Any = nn.ModuleList(
            AdaptiveBand(size, width, config.d_model, None if start else config.pad_token_id)
            for start, size, width in bands(config)
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        weight = self.bands[0].projection.weight
        embeddings = weight.new_zeros(*input_ids.shape, self.d_model)
        # tables of the outer bands refuse ids outside the vocabulary
        band_of = torch.bucketize(input_ids, input_ids.new_tensor(self.starts[1:]), right=True)
        for number, (start, band) in enumerate(zip(self.starts, self.bands, strict=True)):
            inside = band_of == number
            vectors = band.projection(band.table((input_ids - start).masked_fill(~inside, 0)))
            embeddings = torch.where(inside.unsqueeze(-1), vectors, embeddings)
        return embeddings * self.scale


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all tokens, or those of labels without computing those of other bands."""

    def __init__(self, config: ResidualConfig):
        super().__init__()
        (_, first, _), *rest = bands(config)
        self.starts = [start for start, _, _ in rest]
        self.table = nn.Embedding(first, config.d_model)
        self.band_scores = AdaptiveProjection(config.d_model, len(rest))
        self.bands: Any = nn.ModuleList(AdaptiveBand(size, width, config.d_model) for _, size, width in rest)
        self.dropout = Dropout(config.adaptive_softmax_dropout)

    def head(self, hidden_states: Tensor) -> Tensor:
        """Scores of the tokens of band 0, then of the other bands."""
        return torch.cat([F.linear(hidden_states, self.table.weight), self.band_scores(hidden_states)], dim=-1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map states (..., d_model) to log-probabilities (..., vocabulary), which are their own logits."""
        dtype = at_least_fp32(hidden_states.dtype)
        first = self.head(hidden_states).log_softmax(-1, dtype=dtype)
        tokens, priors = first.split([self.table.num_embeddings, len(self.bands)], dim=-1)
        parts = [tokens]
        for i, band in enumerate(self.bands):
            parts.append(band.logits(hidden_states, self.dropout).log_softmax(-1, dtype=dtype) + priors[..., i, None])
        return torch.cat(parts, dim=-1)

    def nll(self, hidden_states: Tensor, labels: Tensor) -> Tensor:
        """The sum of the negative log-likelihoods of labels (batch, length), of which -100 is ignored.

        fairseq's `adaptive_loss` also ignores the second token of every rarer band, which has the number of padding
        there.
        """
        used = labels != -100
        states, labels = hidden_states[used], labels[used]
        band = torch.bucketize(labels, torch.tensor(self.starts, device=labels.device), right=True)
        target = torch.where(band == 0, labels, self.table.num_embeddings + band - 1)
        total = cross_entropy(self.head(states), target)
        for i, (start, members) in enumerate(zip(self.starts, self.bands, strict=True), start=1):
            inside = band == i  # without any token, the sum is 0, and every parameter has a gradient
            total = total + cross_entropy(members.logits(states[inside], self.dropout), labels[inside] - start)
        return total


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.to(at_least_fp32(logits.dtype)), labels, reduction="sum")


def tied_weights(config: ResidualConfig) -> dict[str, str]:
    """Parameters of the softmax, and those of the embeddings with which they are tied."""
    source = "model.decoder.embed_tokens.bands"
    tied = {"lm_head.table.weight": f"{source}.0.table.weight"}
    for i in range(1, len(bands(config))):
        for part in ("table", "projection"):
            tied[f"lm_head.bands.{i - 1}.{part}.weight"] = f"{source}.{i}.{part}.weight"
    return tied
