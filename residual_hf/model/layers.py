# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention, feed-forward, and the layers that pass them to their residual connections."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .branch_warmup import BranchWarmup
from .caches import accepts_cache, self_attention_cache
from .connections import ResidualConnection, Stream, Sublayer, SublayerPlace, build_connections, slot
from .embeddings import RelativeBias, rotate
from .kernels import Dropout, Projection
from .norms import at_least_fp32
from .stack_config import StackConfig

BRANCHES = {"self_attention": "self_attn", "cross_attention": "encoder_attn", "feed_forward": "ffn"}
"""Attribute of a layer that holds the branch, by kind of sub-layer."""
SAME_ATTENTION = {"eager", "sdpa"}
"""Values of `attn_implementation` with the results of `eager`; kernels register theirs."""


def eager_attention_forward(
    module: "ResidualAttention",
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    score_residual: tuple[Tensor | None, float] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, ...]:
    """softmax(q k^T * scaling + mask) v. With `score_residual=(previous, divisor)` also return the sum of scores."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    logits = scores
    if score_residual is not None:
        previous, divisor = score_residual
        scores = scores if previous is None else scores + previous
        logits = scores / divisor
    if attention_mask is not None:
        logits = logits + attention_mask
    weights = nn.functional.softmax(logits, dim=-1, dtype=at_least_fp32(query.dtype)).to(query.dtype)
    weights = module.dropout(weights)
    output = torch.matmul(weights, value).transpose(1, 2).contiguous()
    return (output, weights) if score_residual is None else (output, weights, scores)


def projection(config: StackConfig, place: SublayerPlace, role: str, fan_in: int, fan_out: int) -> Projection:
    """A linear map of a sub-layer, with its place, role and distribution for `_init_weights`."""
    linear = Projection(fan_in, fan_out, bias=config.mode.linear_bias)
    linear.place, linear.role = place, role  # type: ignore[assignment]
    linear.init_style, linear.init_gain = config.init_style, config.mode.init_gain(config, place, role)
    return linear


class ResidualAttention(nn.Module):
    """Multi-head self- or cross-attention (Vaswani et al. 2017) with slots for the inner modules of a mode."""

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__()
        self.config = config.model  # with the `attn_implementation` of the moment
        self.place = place
        self.layer_idx = place.layer
        self.is_cross_attention = place.kind == "cross_attention"
        self.is_causal = place.stack == "decoder" and not self.is_cross_attention
        self.head_dim = config.d_model // config.attention_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = Dropout(config.attention_dropout)
        self.q_proj = projection(config, place, "query", config.d_model, config.d_model)
        self.k_proj = projection(config, place, "key", config.d_model, config.d_model)
        self.v_proj = projection(config, place, "value", config.d_model, config.d_model)
        self.out_proj = projection(config, place, "attention_output", config.d_model, config.d_model)
        self.inner = nn.ModuleDict(config.mode.inner_modules(config, place))

    def split_heads(self, name: str, states: Tensor) -> Tensor:
        """Queries, keys or values (batch, heads, length, head_dim) after the inner module of their slot."""
        return slot(self.inner, name, states.view(*states.shape[:-1], -1, self.head_dim).transpose(1, 2))

    def _keys_and_values(
        self,
        states: Tensor,
        past_key_values: Cache | None,
        rotary: tuple[Tensor, Tensor] | None,
        kwargs: dict[str, Any],  # of the attention: the cache of continuous batching reads and changes them
    ) -> tuple[Tensor, Tensor]:
        if self.is_cross_attention and past_key_values is not None and past_key_values.is_updated.get(self.layer_idx):
            cached = past_key_values.cross_attention_cache.layers[self.layer_idx]
            return cached.keys.to(states.device), cached.values.to(states.device)  # an offloading cache moves them
        key = self.split_heads("key", self.k_proj(states))
        key = key if rotary is None else rotate(key, rotary)
        value = self.split_heads("value", self.v_proj(states))
        if past_key_values is None:
            return key, value
        if self.is_cross_attention:
            past_key_values.is_updated[self.layer_idx] = True
            return past_key_values.cross_attention_cache.update(key, value, self.layer_idx)
        return self_attention_cache(past_key_values).update(key, value, self.layer_idx, kwargs=kwargs)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        past_key_values: Cache | None = None,
        score_residual: tuple[Tensor | None, float] | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        relative: tuple[RelativeBias, int | Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """Map (batch, queries, d_model) to outputs of the same shape, attention weights, and scores if requested."""
        query = self.split_heads("query", self.q_proj(hidden_states))
        query = query if rotary is None else rotate(query, rotary)
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        key, value = self._keys_and_values(source, past_key_values, rotary, kwargs)
        if relative is not None and not self.is_cross_attention:
            bias, past_length = relative
            attention_mask = bias.mask(attention_mask, query, key, past_length, kwargs.get("position_ids"))
        if score_residual is not None:
            kwargs["score_residual"] = score_residual

        implementation = self.config._attn_implementation
        if self.is_cross_attention and getattr(attention_mask, "ndim", None) == 2:  # which flash attention would
            implementation, attention_mask = "sdpa", attention_mask[:, None, None].bool()  # take for that of queries
        attention_interface: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        output, *rest = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout.p if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        output = slot(self.inner, "heads", output.reshape(*hidden_states.shape[:-1], -1))
        return slot(self.inner, "output", self.out_proj(output)), *rest


class ResidualFeedForward(nn.Module):
    """W2 act(W1 x + b1) + b2 with slots for the inner modules of a mode.

    With `gated_ffn` W2 (act(Wg x + bg) * (W1 x + b1)) + b2, Shazeer 2020, GLU Variants Improve Transformer.
    """

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__()
        self.place = place
        width = config.ffn_dim
        self.fc1 = projection(config, place, "ffn_in", config.d_model, width)
        self.gate = projection(config, place, "ffn_in", config.d_model, width) if config.gated_ffn else None
        self.fc2 = projection(config, place, "ffn_out", width, config.d_model)
        self.activation = ACT2FN[config.activation_function]
        self.dropout = Dropout(config.activation_dropout)
        self.inner = nn.ModuleDict(config.mode.inner_modules(config, place))

    def forward(self, hidden_states: Tensor) -> tuple[Tensor]:
        if self.gate is None:
            hidden_states = self.activation(slot(self.inner, "pre_activation", self.fc1(hidden_states)))
        else:
            gate = self.activation(slot(self.inner, "pre_activation", self.gate(hidden_states)))
            hidden_states = gate * self.fc1(hidden_states)
        hidden_states = slot(self.inner, "inner", self.dropout(hidden_states))
        return (slot(self.inner, "output", self.fc2(hidden_states)),)


class ResidualLayer(GradientCheckpointingLayer):
    """Common part of the layers: what their branches share."""

    def __init__(self, config: StackConfig, layer_idx: int):
        super().__init__()
        self.dropout = Dropout(config.dropout)
        warmup = config.branch_warmup
        self.branch_warmup = None if warmup is None else BranchWarmup(warmup, layer_idx, config.layers)

    def branch_factor(self) -> Tensor | None:
        """The factor of branch warm-up, a scalar."""
        return None if self.branch_warmup is None else self.branch_warmup()

    def sublayer(self) -> Callable[[Callable], Sublayer]:
        """The parts that make a `Sublayer` of a branch."""
        return partial(Sublayer, dropout=self.dropout, factor=self.branch_factor())


def connect(connection: ResidualConnection, stream: Stream, sublayer: Sublayer) -> Stream:
    """The stream after a sub-layer, by the kernel of its connection if a run has registered one."""
    kernel = getattr(connection, "kernel", None)  # a module of another class has none
    after = connection(stream, sublayer) if kernel is None else kernel(connection, stream, sublayer)
    if isinstance(after, Tensor):
        raise TypeError(f"forward of {type(connection).__name__} returned a tensor, must be a tuple: `return (x,)`")
    return after


class TransformerLayer(ResidualLayer):
    """The branches of a layer, each with its residual connection."""

    def __init__(self, config: StackConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        first, *cross, last = build_connections(config, layer_idx)
        self.self_attn_residual = first
        self.encoder_attn_residual: Any = cross[0] if cross else None
        self.ffn_residual = last
        self.self_attn = ResidualAttention(config, first.place)
        self.encoder_attn: Any = ResidualAttention(config, cross[0].place) if cross else None
        self.ffn = ResidualFeedForward(config, last.place)

    @accepts_cache
    def forward(
        self,
        *stream_and_memory: Tensor,  # positional, since reentrant checkpointing drops gradients of keyword arguments
        attention_mask: Any = None,
        encoder_attention_mask: Any = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        stream = stream_and_memory if self.encoder_attn is None else stream_and_memory[:-1]
        self_attn = partial(self.self_attn, attention_mask=attention_mask, past_key_values=past_key_values, **kwargs)
        sublayer = self.sublayer()
        stream = connect(self.self_attn_residual, stream, sublayer(self_attn))
        if self.encoder_attn is not None:
            encoder_attn = partial(
                self.encoder_attn,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=stream_and_memory[-1],
                past_key_values=past_key_values,
                **kwargs,
            )
            stream = connect(self.encoder_attn_residual, stream, sublayer(encoder_attn))
        return connect(self.ffn_residual, stream, sublayer(self.ffn))


class ResidualEncoderLayer(TransformerLayer):
    """Self-attention and feed-forward."""


class ResidualDecoderLayer(TransformerLayer):
    """Causal self-attention, cross-attention (unless alone) and feed-forward."""
