# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Token and position embeddings with the conventions of fairseq, or of BART and Marian in Transformers.

Positions count only real tokens, behind `position_padding`, so left and right padding give the same result. The
embedding of padding is zero. With `position_counting="all_tokens"` positions count all tokens, from 0. The layout of
sinusoids is [all sines | all cosines].
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from .initialization import BareParameters
from .norms import at_least_fp32
from .stack_config import StackConfig


class ScaledEmbedding(nn.Embedding):
    """Token embeddings, normalized to length 1 if `fix_norm`, times `scale` (sqrt(d_model) or 1)."""

    table: str | None = None  # the stack, for `_init_weights`

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int, scale: float, fix_norm: bool = False
    ):
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.scale = scale
        self.fix_norm = fix_norm

    @property
    def embed_scale(self) -> float:
        """`scale` under the name that PEFT looks for: its adapters repeat the lookup without this forward."""
        if self.fix_norm:
            raise ValueError("fix_norm: adapters on normalized embeddings are not supported, train the full table")
        return self.scale

    def forward(self, input_ids: Tensor) -> Tensor:
        embeddings = super().forward(input_ids)
        if self.fix_norm:
            embeddings = unit_vectors(embeddings)
        return embeddings * self.scale if self.scale != 1.0 else embeddings


class NormalizedLinear(nn.Linear):
    """The output projection with `fix_norm`: every row of the matrix is normalized to length 1."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return nn.functional.linear(hidden_states, unit_vectors(self.weight), self.bias)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Vectors of length 1, or of 0 where they are zero, also in fp16, in which the epsilon of PyTorch is 0."""
    return nn.functional.normalize(vectors.to(at_least_fp32(vectors.dtype)), dim=-1).to(vectors.dtype)


def shift_tokens_right(labels: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    """Decoder inputs for labels (batch, length): shifted right after `decoder_start_token_id`, -100 as padding.

    Raises `ValueError` for labels on the CPU that begin with padding, which would follow the start token.
    """
    if labels.device.type == "cpu" and not torch.compiler.is_compiling():
        rows = labels[(labels != -100).any(dim=1)]
        if (rows[:, :1] == -100).any():
            raise ValueError("labels: padded on the left, must be on the right (tokenizer.padding_side = 'right')")
    shifted = labels.new_full(labels.shape, decoder_start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    return shifted.masked_fill(shifted == -100, pad_token_id)


def drop_words(embeddings: Tensor, rate: float, keep_first: bool) -> Tensor:
    """Zero each vector of embeddings (batch, length, width) with probability `rate`, without scaling the others.

    Word dropout as in the official code of B2T (`--sampling-method worddrop`): positions are added afterwards, and the
    decoder keeps the start token (`keep_first`).
    """
    kept = embeddings.new_full(embeddings.shape[:2], 1 - rate).bernoulli()
    if keep_first:
        kept[:, 0] = 1
    return embeddings * kept.unsqueeze(-1)


class SinusoidalPositions(BareParameters):
    """Fixed table [sin(p*w_k) | cos(p*w_k)] with w_k = 10000^(-k / (d/2 - 1)), as in tensor2tensor. Not saved."""

    table: Tensor

    def __init__(self, num_positions: int, dim: int, padding_idx: int | None):
        super().__init__()
        self.num_positions = num_positions + first_position(padding_idx)
        self.dim = dim
        self.padding_idx = padding_idx
        self.register_buffer("table", self.make_table().to(torch.get_default_device()), persistent=False)

    def frequencies(self) -> Tensor:
        half = self.dim // 2
        rate = math.log(10000) / max(half - 1, 1)
        return torch.exp(torch.arange(half, dtype=torch.float32, device="cpu") * -rate)

    def make_table(self) -> Tensor:
        """The table on the CPU, so that it has the same bits for all devices."""
        frequencies = self.frequencies()
        angles = torch.arange(self.num_positions, dtype=frequencies.dtype, device="cpu")[:, None] * frequencies
        table = torch.cat([angles.sin(), angles.cos()], dim=1).float()
        if self.padding_idx is not None:
            table[self.padding_idx] = 0
        return table

    def forward(self, position_ids: Tensor) -> Tensor:
        return nn.functional.embedding(position_ids, self.table)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        if self.table.is_meta and local_metadata.get("assign_to_params_buffers"):
            self.table = self.make_table().to(torch.get_default_device())
        else:
            self.table.copy_(self.make_table())  # not saved, and empty after `to_empty`


class MarianPositions(SinusoidalPositions):
    """The same layout with w_k = 10000^(-2k / d), as in Vaswani et al. 2017 and Transformers' Marian."""

    def frequencies(self) -> Tensor:
        return 10000 ** -(torch.arange(0, self.dim, 2, dtype=torch.float64, device="cpu") / self.dim)


class LearnedPositions(nn.Embedding):
    """Learned table with the same numbering. The row of padding stays zero."""

    def __init__(self, num_positions: int, dim: int, padding_idx: int | None):
        super().__init__(num_positions + first_position(padding_idx), dim, padding_idx)


def rotary_positions(config: StackConfig, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of p * theta^(-2k / head_dim), by which attention turns queries and keys.

    Maps positions (batch, length) to (batch, 1, length, head_dim). The frequencies are no buffer, which `model.half()`
    would round. Su et al. 2021, RoFormer, in the layout of Llama: dimension k is turned with k + head_dim / 2.
    """
    frequencies = rotary_frequencies(config, position_ids.device)
    angles = (position_ids[..., None].float() * frequencies).repeat(1, 1, 2).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotary_frequencies(config: StackConfig, device: torch.device | None = None) -> Tensor:
    """theta^(-2k / head_dim), (head_dim / 2)."""
    head_dim = config.d_model // config.num_attention_heads
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return config.rope_theta**-exponents


def rotate(states: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries or keys (batch, heads, length, head_dim) by the angles of their positions."""
    cos, sin = (values.to(states.dtype) for values in rotary)
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-second, first], dim=-1) * sin


class RelativeBias(BareParameters):
    """Learned biases of the scores of self-attention, by head and distance, which the layers of a stack share.

    Distances have 32 buckets, one for each small distance and wider ones up to 128, by direction in an encoder. Raffel
    et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer (T5), section 2.1.
    """

    buckets, farthest = 32, 128

    def __init__(self, heads: int, width: int, is_causal: bool):
        super().__init__()
        self.is_causal = is_causal
        self.weight = nn.Parameter(torch.randn(self.buckets, heads) * width**-0.5)

    def bucket(self, distance: Tensor) -> Tensor:
        """The buckets of distances, key minus query."""
        count = self.buckets if self.is_causal else self.buckets // 2
        first = torch.zeros_like(distance) if self.is_causal else count * (distance > 0).long()
        size = distance.neg().clamp(min=0) if self.is_causal else distance.abs()
        exact = count // 2
        ratio = torch.log(size.clamp(min=1).float() / exact) / math.log(self.farthest / exact)
        far = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
        return first + torch.where(size < exact, size, far)

    def mask(
        self,
        mask: Tensor | None,
        queries: Tensor,
        keys: Tensor,
        past_length: int | Tensor,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """An additive mask with the biases, (batch or 1, heads, queries, keys); without `mask`, all keys are visible,
        or under `is_causal` those that are not later. `position_ids` (batch, queries) say how far tokens are from each
        other, unless there are keys from a cache, whose positions are unknown."""
        rows = torch.arange(queries.shape[-2], device=queries.device)[:, None] + past_length
        distance = (torch.arange(keys.shape[-2], device=keys.device)[None] - rows)[None]
        if mask is None and self.is_causal:
            mask = distance <= 0
        if position_ids is not None and position_ids.shape[-1] == keys.shape[-2]:
            distance = position_ids[:, None] - position_ids[:, :, None]
        bias = self.weight[self.bucket(distance)].permute(0, 3, 1, 2).to(queries.dtype)
        if mask is None:
            return bias
        return bias.masked_fill(~mask, torch.finfo(bias.dtype).min) if mask.dtype == torch.bool else bias + mask


POSITION_EMBEDDINGS = {
    "sinusoidal": SinusoidalPositions,
    "sinusoidal_marian": MarianPositions,
    "learned": LearnedPositions,
    "rotary": None,  # in attention
    "relative": None,  # in attention
    "none": None,
}
HIDDEN = -1e3  # an additive mask with this or less hides a key
POSITION_COUNTING = ("real_tokens", "all_tokens")


def first_position(padding_idx: int | None) -> int:
    """Position of the first token. `padding_idx` is None if padding has no position."""
    return 0 if padding_idx is None else padding_idx + 1


def positions_padding(config: StackConfig) -> int | None:
    """Position of padding tokens, or None if they are counted like other tokens."""
    if config.position_counting != "real_tokens":
        return None
    return config.pad_token_id if config.position_padding is None else config.position_padding


def build_positions(config: StackConfig) -> SinusoidalPositions | LearnedPositions | None:
    kind = POSITION_EMBEDDINGS[config.position_embedding_type]
    return None if kind is None else kind(config.positions, config.d_model, positions_padding(config))


def position_ids_from_mask(mask: Tensor, length: int, padding_idx: int, past_length: int | Tensor = 0) -> Tensor:
    """Positions of the last `length` tokens, (batch, length).

    `mask` marks real tokens, (batch, past + length), or the keys that each token attends to, (batch, 1, length, keys),
    as booleans or as additive scores, as in `generate` with a static cache. Then the position is the number of visible
    keys up to the token, also of a text that begins after others; a window of attention needs `position_ids`.
    """
    if mask.ndim == 4:
        seen = (mask if mask.dtype == torch.bool else mask > HIDDEN)[:, 0]
        tokens = torch.arange(length, device=mask.device)[:, None] + past_length
        return (seen & (torch.arange(mask.shape[-1], device=mask.device) <= tokens)).sum(dim=-1) + padding_idx
    mask = mask.long()
    return ((mask.cumsum(dim=1) * mask) + padding_idx)[:, -length:]
