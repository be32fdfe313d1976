# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Weights of a model in the layout that the kernels read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from residual_hf.model.embeddings import SinusoidalPositions, first_position, positions_padding, unit_vectors
from residual_hf.model.search import Array
from residual_hf.model.stacks import ResidualStack

from . import loaded_library, recorder
from .programs import StackPrograms
from .structures import CONSTANTS, ENUMS, Layer, Linear, Norm, Operation, Program, Stack, Term

PADDING, HEAD_PADDING = CONSTANTS["PADDING"], CONSTANTS["HEAD_PADDING"]
ACTIVATIONS = {"relu": 1, "gelu": 2, "silu": 3, "swish": 3}


def round_up(value: int, multiple: int = PADDING) -> int:
    return -(-value // multiple) * multiple


def pad_to(tensor: Tensor, *shape: int, value: float = 0.0) -> Tensor:
    """`tensor` with more of `value` at the end of each dimension."""
    missing = [width - present for width, present in zip(shape, tensor.shape, strict=True)]
    return pad(tensor, [n for width in reversed(missing) for n in (0, width)], value=value)


def pad_heads(weight: Tensor, heads: int) -> Tensor:
    """(heads * head size, inputs) with zeros after each head and after the last, so that kernels need no tails."""
    inputs, head_size = weight.shape[1], len(weight) // heads
    weight = pad_to(weight.view(heads, head_size, inputs), heads, round_up(head_size, HEAD_PADDING), inputs)
    weight = weight.flatten(0, 1)
    return pad_to(weight, round_up(len(weight)), inputs)


class Packer:
    """Makes the structures of the kernels and keeps the tensors alive to which they point.

    Args:
        dtype: of the weights, "float32", "bfloat16" or "int8". Biases, norms and embeddings are fp32.
    """

    def __init__(self, dtype: str):
        self.dtype = dtype
        self.tensors: list[Tensor] = []

    def address(self, tensor: Tensor) -> int:
        kept = tensor.detach().contiguous()
        self.tensors.append(kept)
        return kept.data_ptr()

    def linear(self, weight: Tensor, bias: Tensor | None, padding_bias: float = 0.0) -> Linear:
        """A linear map of `weight` (outputs, inputs), with `padding_bias` on outputs that are padding."""
        outputs, inputs = round_up(weight.shape[0]), round_up(weight.shape[1])
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        weight = pad_to(weight.float(), outputs, inputs)
        packed = Linear(ENUMS["Type"].index(self.dtype), inputs, outputs)
        packed.bias = self.address(pad_to(bias.float(), outputs, value=padding_bias))
        if self.dtype == "bfloat16":
            weight = weight.bfloat16()
        elif self.dtype == "int8":
            scales = weight.abs().amax(dim=1) / 127
            weight = (weight / scales.clamp(min=1e-30).unsqueeze(1)).round().to(torch.int8)
            packed.scales = self.address(scales)
            packed.offsets = self.address(128 * weight.sum(dim=1, dtype=torch.int32))
        together = 4 // weight.itemsize  # inputs that fill 32 bits
        panels = weight.view(-1, loaded_library().panel_width(), inputs // together, together)
        packed.weights = self.address(panels.transpose(1, 2))
        return packed

    def query(self, attention: Any, heads: int) -> Linear:
        """The projection of queries, times what `scaling` is other than that of the kernels."""
        return self.attention_inputs([attention.q_proj], heads, attention.scaling / attention.head_dim**-0.5)

    def attention_inputs(self, maps: list[nn.Linear], heads: int, factor: float = 1.0) -> Linear:
        """Projections to heads of the same states, one after another, times a factor."""
        biases = [m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in maps]
        weight = torch.cat([pad_heads(factor * m.weight, heads) for m in maps])
        bias = torch.cat([pad_heads(factor * bias.unsqueeze(1), heads) for bias in biases])
        return self.linear(weight, bias.squeeze(1))

    def norm(self, weights: recorder.NormWeights | None) -> Norm:
        if weights is None:
            return Norm()
        bias = torch.zeros_like(weights.gain) if weights.bias is None else weights.bias
        return Norm(self.vector(weights.gain), self.vector(bias), weights.epsilon, weights.centered)

    def vector(self, values: Tensor) -> int:
        return self.address(pad_to(values.float(), round_up(len(values))))

    def term(self, key: recorder.Key, weight: Array) -> Term:
        """A weight times registers, see `recorder.Cell`."""
        if weight.ndim == 0:
            return Term(*key, float(weight))
        return Term(*key, 1.0, self.vector(torch.tensor(weight)))

    def program(self, operations: list[recorder.Operation]) -> Program:
        """What happens to the stream between two sub-layers."""
        packed = (Operation * len(operations))()
        for i, operation in enumerate(operations):
            function = ENUMS["Function"].index(operation.function)
            terms = (Term * len(operation.terms))(*(self.term(*term) for term in operation.terms))
            results = operation.sum, operation.output, operation.hidden
            packed[i] = Operation(function, len(terms), terms, self.norm(operation.norm), *results)
        return Program(len(operations), packed)

    def attention_output(self, projection: nn.Linear, heads: int) -> Linear:
        return self.linear(pad_heads(projection.weight.T, heads).T, projection.bias)

    def layer(self, layer: Any, heads: int, after: list[Program]) -> Layer:
        """A layer with what follows its sub-layers."""
        own, ffn = layer.self_attn, layer.ffn
        packed = Layer(
            query=self.query(own, heads),
            key_value=self.attention_inputs([own.k_proj, own.v_proj], heads),
            attention_output=self.attention_output(own.out_proj, heads),
            ffn_in=self.linear(ffn.fc1.weight, ffn.fc1.bias),
            ffn_out=self.linear(ffn.fc2.weight, ffn.fc2.bias),
            after_attention=after[0],
            after_ffn=after[-1],
        )
        if len(after) == 3:
            cross = layer.encoder_attn
            packed.cross_query = self.query(cross, heads)
            packed.cross_key_value = self.attention_inputs([cross.k_proj, cross.v_proj], heads)
            packed.cross_output = self.attention_output(cross.out_proj, heads)
            packed.after_cross = after[1]
        return packed

    def stack(self, stack: ResidualStack) -> Stack:
        """An encoder, or a decoder still without its output projection. Raises `NoKernel`, see `StackPrograms`."""
        config, name = stack.config, stack.stack
        recorded = StackPrograms(stack)
        heads = getattr(config, f"{name}_attention_heads")
        head_size, stride = config.d_model // heads, round_up(config.d_model)
        packed = Stack(
            type=int(self.dtype != "float32"),
            layers=len(stack.layers),
            vocabulary=stack.embed_tokens.num_embeddings,
            width=config.d_model,
            stride=stride,
            heads=heads,
            head_size=round_up(head_size, HEAD_PADDING),
            attention_width=round_up(heads * round_up(head_size, HEAD_PADDING)),
            ffn_width=round_up(getattr(config, f"{name}_ffn_dim")),
            activation=ACTIVATIONS[config.activation_function],
            vectors=recorded.vectors,
            registers=recorded.vectors * stride + round_up(recorded.numbers),
            embedding_scale=stack.embed_tokens.scale,
            attention_scale=head_size**-0.5,
        )
        tokens = stack.embed_tokens.weight.float()
        packed.tokens = self.address(unit_vectors(tokens) if config.fix_norm else tokens)
        if stack.embed_positions is not None:
            packed.positions = self.address(position_table(stack.embed_positions).float())
        packed.start, *after = (self.program(operations) for operations in recorded.programs)
        packed.layer = (Layer * len(stack.layers))()
        per_layer = len(after) // len(stack.layers)
        for i, layer in enumerate(stack.layers):
            packed.layer[i] = self.layer(layer, heads, after[i * per_layer : (i + 1) * per_layer])
        return packed


def last_position(stack: ResidualStack) -> int | None:
    """The largest number of tokens that a stack has positions for; None if it has no table."""
    if stack.embed_positions is None:
        return None
    return len(position_table(stack.embed_positions)) - first_position(positions_padding(stack.config))


def position_table(positions: nn.Embedding | SinusoidalPositions) -> Tensor:
    return positions.weight if isinstance(positions, nn.Embedding) else positions.table
