# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The decoder as a search runs it in PyTorch: any mode, one token per step, few operations.

Residual connections, norms and inner modules are called as they are. Linear maps of the same input become one, keys
and values of the source are computed once per sentence, and the beams of a sentence are queries to the same source.
"""

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .caches import RUNS_ONCE
from .connections import ResidualConnection, Sublayer, slot
from .fingerprint import Fingerprint
from .kernels import Projection
from .layers import ResidualAttention, ResidualFeedForward, eager_attention_forward
from .search import Array, Decoder

Map = Callable[[Tensor], Tensor]
Branch = Callable[..., tuple[Tensor, ...]]

_preparing = Lock()  # several threads decode with one model
_prepared: "WeakKeyDictionary[nn.Module, PreparedDecoder]" = WeakKeyDictionary()


def prepared_decoder(model: Any) -> "PreparedDecoder":
    """The decoder of a model, prepared at first use and after a change of its weights."""
    with _preparing:
        found = _prepared.get(model)
        if found is None or not found.fingerprint.matches(model, parts_of(model)):
            found = _prepared[model] = PreparedDecoder(model)
        return found


def parts_of(model: Any) -> tuple[nn.Module, nn.Module]:
    return model.get_decoder(), model.lm_head


class PreparedDecoder:
    """Decoder and output projection of a `ResidualForConditionalGeneration` on the CPU."""

    @torch.no_grad()
    def __init__(self, model: Any):
        self.fingerprint = Fingerprint(parts_of(model))
        self.decoder, self.logits = model.get_decoder(), linear(model.lm_head)
        self.branches = [
            (PreparedAttention(layer.self_attn), PreparedAttention(layer.encoder_attn), PreparedFeedForward(layer.ffn))
            for layer in self.decoder.layers
        ]


class PreparedAttention:
    """`ResidualAttention` for hidden states (sentences, beams, d_model)."""

    def __init__(self, module: ResidualAttention):
        self.module, self.output = module, linear(module.out_proj)
        if module.is_cross_attention:
            self.query, self.key_value = linear(module.q_proj), linear(module.k_proj, module.v_proj)
        else:
            self.query_key_value = linear(module.q_proj, module.k_proj, module.v_proj)

    def source(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, (sentences, heads, length, head_dim) each."""
        key, value = self.key_value(memory).chunk(2, dim=-1)
        split_heads = self.module.split_heads
        return split_heads("key", key).contiguous(), split_heads("value", value).contiguous()

    def attend_to_source(self, cache: "SourceCache", layer: int, hidden_states: Tensor, **kwargs: Any) -> Any:
        query = self.module.split_heads("query", self.query(hidden_states))
        return self._attend(hidden_states, query, *cache.layers[layer], cache.mask, **kwargs)

    def attend_to_target(self, cache: "TargetCache", layer: int, hidden_states: Tensor, **kwargs: Any) -> Any:
        rows = self.query_key_value(hidden_states).flatten(0, 1).unsqueeze(1)  # of one token each
        query, key, value = map(self.module.split_heads, ROLES, rows.chunk(3, dim=-1))
        return self._attend(hidden_states, query, *cache.append(layer, key, value), None, **kwargs)

    def _attend(
        self,
        hidden_states: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        score_residual: tuple[Tensor | None, float] | None = None,
    ) -> tuple[Any, ...]:
        """Outputs shaped like `hidden_states`, and what `eager_attention_forward` returns for RealFormer."""
        module, rest = self.module, []
        if score_residual is None:
            output = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=module.scaling)
            output = output.transpose(1, 2)
        else:
            output, *rest = eager_attention_forward(module, query, key, value, mask, module.scaling, score_residual)
        output = slot(module.inner, "heads", output.reshape(*hidden_states.shape[:2], -1))
        return slot(module.inner, "output", self.output(output)), *rest


class PreparedFeedForward:
    """`ResidualFeedForward` without dropout."""

    def __init__(self, module: ResidualFeedForward):
        self.inner, self.activation = module.inner, module.activation
        self.fc1, self.fc2 = linear(module.fc1), linear(module.fc2)

    def __call__(self, hidden_states: Tensor) -> tuple[Tensor]:
        hidden_states = self.activation(slot(self.inner, "pre_activation", self.fc1(hidden_states)))
        return (slot(self.inner, "output", self.fc2(slot(self.inner, "inner", hidden_states))),)


class TargetCache:
    """Keys and values of all layers in one tensor, (2, layers, rows, heads, tokens, head_dim), that grows in steps."""

    GROWTH = 32

    def __init__(self, states: Tensor):
        """`states`: an empty tensor of that shape, with room for no token."""
        self.length = 0
        self.written: set[int] = set()  # layers with the newest token
        self._hold(states)

    def _hold(self, states: Tensor) -> None:
        self.states = states
        self.layers = list(zip(*(part.unbind(0) for part in states.unbind(0)), strict=True))

    def grow(self) -> None:
        """Make room for a token."""
        if self.length == self.states.shape[4]:
            room = self.states.new_empty(*self.states.shape[:4], self.GROWTH, self.states.shape[5])
            self._hold(torch.cat((self.states, room), dim=4))
        self.length += 1
        self.written.clear()

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest token of each row, (rows, heads, 1, head_dim); returns all, (rows, heads, tokens, ...)."""
        if layer in self.written:
            raise ValueError(RUNS_ONCE)
        self.written.add(layer)
        keys, values = self.layers[layer]
        keys.narrow(2, self.length - 1, 1).copy_(key)
        values.narrow(2, self.length - 1, 1).copy_(value)
        return keys.narrow(2, 0, self.length), values.narrow(2, 0, self.length)

    def select(self, rows: Tensor) -> None:
        """Continue with these rows; rows that stay where they are are not copied."""
        if len(rows) > self.states.shape[2]:
            return self._hold(self.states.index_select(2, rows))
        moved = (rows != torch.arange(len(rows))).nonzero()[:, 0]
        if len(moved) > 0:
            written = self.states.narrow(4, 0, self.length)
            written.index_copy_(2, moved, written.index_select(2, rows[moved]))
        if len(rows) < self.states.shape[2]:
            self._hold(self.states[:, :, : len(rows)])


class SourceCache:
    """Keys and values of cross-attention and its mask.

    Args:
        layers: keys and values, (sentences, heads, source length, head_dim) each, of every layer.
        mask: nonzero at source tokens, (sentences, source length), or None: there is no padding.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], mask: Tensor | None):
        self.layers, self.mask = layers, None
        if mask is not None and not mask.all():
            scores = layers[0][0].new_zeros(mask.shape)
            self.mask = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)[:, None, None]

    @property
    def sentences(self) -> int:
        return len(self.layers[0][0])

    def select(self, sentences: Tensor) -> None:
        """Continue with these sentences."""
        self.layers = [(key[sentences], value[sentences]) for key, value in self.layers]
        self.mask = None if self.mask is None else self.mask[sentences]


class LayerDecoder(Decoder):
    """A batch that is being decoded in PyTorch.

    Args:
        memory: output of the encoder, (sentences, length, d_model).
        memory_mask: nonzero at its tokens, (sentences, length), or None: there is no padding.
        beams: rows per sentence that are selected; at first there is one.
    """

    def __init__(self, prepared: PreparedDecoder, memory: Tensor, memory_mask: Tensor | None, beams: int):
        self.decoder, self.logits, self.beams = prepared.decoder, prepared.logits, beams
        keys_and_values = [cross.source(memory) for _, cross, _ in prepared.branches]
        heads, head_dim = keys_and_values[0][0].shape[1::2]
        self.source = SourceCache(keys_and_values, memory_mask)
        self.target = TargetCache(memory.new_empty(2, len(prepared.branches), len(memory), heads, 0, head_dim))
        self.sublayers: list[tuple[ResidualConnection, Sublayer]] = []
        layers = zip(self.decoder.layers, prepared.branches, strict=True)
        for index, (layer, (own, cross, feed_forward)) in enumerate(layers):
            connections = layer.self_attn_residual, layer.encoder_attn_residual, layer.ffn_residual
            branches: tuple[Branch, ...] = (
                partial(own.attend_to_target, self.target, index),
                partial(cross.attend_to_source, self.source, index),
                feed_forward,
            )
            sublayers = (Sublayer(branch, no_dropout, layer.branch_factor()) for branch in branches)
            self.sublayers += zip(connections, sublayers, strict=True)

    def step(self, tokens: Array) -> Tensor:
        embeddings = self.decoder.embed(torch.from_numpy(tokens)[:, None], None)
        hidden_states = self.decoder.add_positions(embeddings, None, self.target.length)
        self.target.grow()
        stream = self.decoder.boundary.begin(hidden_states.view(self.source.sentences, -1, hidden_states.shape[-1]))
        for connection, sublayer in self.sublayers:
            stream = connection(stream, sublayer)
        return self.logits(self.decoder.boundary.end(stream)).flatten(0, 1).float()

    def select(self, rows: Array) -> None:
        selected = torch.from_numpy(rows)
        sentences = selected[:: self.beams] // (self.target.states.shape[2] // self.source.sentences)
        if len(sentences) < self.source.sentences:
            self.source.select(sentences)
        self.target.select(selected)


ROLES = ("query", "key", "value")
no_dropout: Any = nn.Identity()


def linear(*modules: nn.Module) -> Map:
    """The map to the outputs of all `modules`, one after another.

    Its weights are stored as (inputs, outputs): few rows multiply with them in two thirds of the time.
    """
    plain = (m for m in modules if type(m) in (nn.Linear, Projection) and type(m.weight) is nn.Parameter)
    parameters: list[Any] = [(m.weight, m.bias) for m in plain]
    weights = [weight.T for weight, _ in parameters]
    biases: list[Tensor] = [bias for _, bias in parameters if bias is not None]
    if len(weights) < len(modules) or len(biases) not in (0, len(modules)):  # adapters, quantized weights
        return lambda states: torch.cat([module(states) for module in modules], dim=-1)
    weight = torch.cat(weights, dim=1).contiguous().T
    return partial(nn.functional.linear, weight=weight, bias=torch.cat(biases) if biases else None)
