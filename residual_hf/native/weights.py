"""Weights of a model in the layout that the kernels read."""

import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from residual_hf.model.embeddings import (
    SinusoidalPositions,
    first_position,
    positions_padding,
    rotary_frequencies,
    unit_vectors,
)
from residual_hf.model.search import Array
from residual_hf.model.stacks import ResidualStack

from . import loaded_library, recorder
from .programs import InnerProgram, StackPrograms
from .structures import CONSTANTS, ENUMS, AttentionLayer, Layer, Linear, Norm, Operation, Program, Stack, Term

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


class RoundedRows(NamedTuple):
    """Outputs of a linear map: weights (outputs, inputs), and for each its bias and for int8 scale and offset."""

    weight: Tensor
    bias: Tensor
    scales: Tensor
    offsets: Tensor


class LargePages:
    """Memory for weights, in pages of 2 MiB where the system has them: with small pages, the time of a step that reads
    all weights once differs by half between processes, by where those pages happen to be."""

    BLOCK = 32 << 20

    def __init__(self) -> None:
        self.free = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy that begins at a multiple of 64 bytes."""
        size = round_up(tensor.nbytes, 64)
        if len(self.free) < size:
            self.free = self.block(max(size, self.BLOCK))
        place, self.free = self.free[: tensor.nbytes], self.free[size:]
        return place.view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def block(self, size: int) -> Tensor:
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(size, dtype=torch.uint8)
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # of a system without such pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)


class Packer:
    """Makes the structures of the kernels and keeps the tensors alive to which they point.

    Args:
        dtype: of the weights, "float32", "bfloat16" or "int8". Biases, norms and embeddings are fp32.
        panel_width: outputs whose weights are together; default: those of the loaded library.
    """

    def __init__(self, dtype: str, panel_width: int | None = None):
        self.dtype = dtype
        self.panel_width = panel_width or loaded_library().panel_width()
        self.tensors: list[Tensor] = []
        self.pages = LargePages()
        self.inner_registers = 0  # that a row needs within the sub-layers of a stack

    def address(self, tensor: Tensor) -> int:
        kept = tensor.detach().contiguous()
        self.tensors.append(kept)
        return kept.data_ptr()

    def linear(self, weight: Tensor, bias: Tensor | None, padding_bias: float = 0.0) -> Linear:
        """A linear map of `weight` (outputs, inputs), with `padding_bias` on outputs that are padding."""
        return self.panels(self.rounded(weight, bias, padding_bias=padding_bias), self.pages.copy)

    def rounded(self, weight: Tensor, bias: Tensor | None, *, padding_bias: float = 0.0) -> RoundedRows:
        """A linear map in the precision of the kernels, but not in their layout."""
        outputs, inputs = round_up(weight.shape[0]), round_up(weight.shape[1])
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        bias = pad_to(bias.detach().float(), outputs, value=padding_bias)
        weight, empty = pad_to(weight.detach().float(), outputs, inputs), torch.empty(outputs, 0)
        if self.dtype != "int8":
            return RoundedRows(weight.to(getattr(torch, self.dtype)), bias, empty, empty)
        scales = weight.abs().amax(dim=1) / 127
        weight = (weight / scales.clamp(min=1e-30).unsqueeze(1)).round().to(torch.int8)
        return RoundedRows(weight, bias, scales, 128 * weight.sum(dim=1, dtype=torch.int32))

    def panels(self, rows: RoundedRows, copy: Callable[[Tensor], Tensor] = Tensor.contiguous) -> Linear:
        """The linear map of some rows, a multiple of PADDING; `copy` says where its weights are."""
        outputs, inputs = rows.weight.shape
        packed = Linear(ENUMS["Type"].index(self.dtype), inputs, outputs)
        packed.bias, packed.scales, packed.offsets = (self.address(values) for values in rows[1:])
        words = rows.weight.contiguous().view(torch.int32)  # of one to four inputs
        packed.weights = self.address(copy(words.view(-1, self.panel_width, words.shape[1]).transpose(1, 2)))
        return packed

    def attention_inputs(self, maps: list[nn.Linear], heads: int) -> Linear:
        """Projections to heads of the same states, one after another."""
        weight = torch.cat([pad_heads(m.weight, heads) for m in maps])
        bias = torch.cat([pad_heads(bias_of(m).unsqueeze(1), heads) for m in maps])
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

    def program(
        self, operations: list[recorder.Operation], width: int, stride: int, vectors: int, numbers: int
    ) -> Program:
        """Operations on vectors of `width` values, `stride` with padding, and the registers that they need."""
        packed = (Operation * len(operations))()
        for i, operation in enumerate(operations):
            function = ENUMS["Function"].index(operation.function)
            terms = (Term * len(operation.terms))(*(self.term(*term) for term in operation.terms))
            results = operation.sum, operation.output, operation.hidden
            packed[i] = Operation(function, len(terms), terms, self.norm(operation.norm), *results)
        return Program(len(operations), width, stride, vectors, vectors * stride + round_up(numbers), packed)

    def inner(self, found: InnerProgram | None, stride: int, count: int = 1) -> Program:
        """Pack the operations within a sub-layer on `count` vectors of a row; nothing for None."""
        if found is None:
            return Program()
        packed = self.program(found.operations, found.width, stride, found.vectors, found.numbers)
        self.inner_registers = max(self.inner_registers, count * packed.registers)
        return packed

    def attention(
        self, attention: Any, heads: int, inner: dict[str, InnerProgram], score_factor: float, after: Program
    ) -> AttentionLayer:
        """Attention with what happens within and after it."""
        weight, bias = map_of(attention.out_proj, before=inner.get("heads"))
        joined = None if is_affine(inner.get("heads")) else inner["heads"]
        size = round_up(attention.head_dim, HEAD_PADDING)
        packed = AttentionLayer(
            query=self.attention_inputs([attention.q_proj], heads),
            key_value=self.attention_inputs([attention.k_proj, attention.v_proj], heads),
            output=self.linear(pad_heads(weight.T, heads).T if joined is None else weight, bias),
            scale=attention.scaling,
            score_factor=score_factor,
            after=after,
        )
        own = (self.inner(inner.get(slot), size, heads) for slot in ("query", "key", "value"))
        packed.inner[:] = *own, self.inner(joined, round_up(len(weight)))
        return packed

    def layer(self, layer: Any, heads: int, recorded: StackPrograms, first: int, after: list[Program]) -> Layer:
        """A layer whose first sub-layer has the number `first`, with what follows its sub-layers."""
        parts = list(zip(recorded.inner[first:], recorded.score_factors[first:], after, strict=False))
        packed = Layer(own=self.attention(layer.self_attn, heads, *parts[0]))
        if len(parts) == 3:
            packed.cross = self.attention(layer.encoder_attn, heads, *parts[1])
        inner, _, packed.after_ffn = parts[-1]
        fc1, fc2 = layer.ffn.fc1, layer.ffn.fc2
        gate, before_activation = layer.ffn.gate, inner.get("pre_activation")
        packed.ffn_in = self.linear(*map_of(fc1, after=before_activation if gate is None else None))
        if gate is not None:
            packed.ffn_gate = self.linear(*map_of(gate, after=before_activation))
        packed.ffn_out = self.linear(*map_of(fc2, before=inner.get("inner")))
        if gate is not None or not is_affine(inner.get("inner")):
            unchanged = InnerProgram(None, fc1.out_features)
            own = unchanged if is_affine(inner.get("inner")) else inner["inner"]
            packed.ffn_inner = self.inner(own, packed.ffn_out.inputs)
        return packed

    def stack(self, stack: ResidualStack) -> Stack:
        """An encoder, or a decoder still without its output projection. Raises `NoKernel`, see `StackPrograms`."""
        config, name = stack.config, stack.stack
        recorded = StackPrograms(stack)
        heads = config.of(name).attention_heads
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
            ffn_width=round_up(config.of(name).ffn_dim),
            activation=ACTIVATIONS[config.activation_function],
            adds_scores=any(recorded.score_factors),
            embedding_scale=stack.embed_tokens.scale,
        )
        tokens = stack.embed_tokens.weight.float()
        packed.tokens = self.address(unit_vectors(tokens) if config.fix_norm else tokens)
        if stack.embed_positions is not None:
            packed.positions = self.address(position_table(stack.embed_positions).float())
        if config.position_embedding_type == "rotary":
            packed.frequencies = self.address(rotary_frequencies(config))
        sizes = config.d_model, stride, recorded.vectors, recorded.numbers
        packed.start, *after = (self.program(operations, *sizes) for operations in recorded.programs)
        self.inner_registers = 0
        packed.layer = (Layer * len(stack.layers))()
        per_layer = len(after) // len(stack.layers)
        for i, layer in enumerate(stack.layers):
            first = i * per_layer
            packed.layer[i] = self.layer(layer, heads, recorded, first, after[first : first + per_layer])
        packed.inner_registers = self.inner_registers
        return packed


def is_affine(inner: InnerProgram | None) -> bool:
    """Whether an inner module is none, or a factor and a shift, which `map_of` moves into a linear map."""
    return inner is None or inner.factor is not None


def map_of(
    linear: nn.Linear, *, before: InnerProgram | None = None, after: InnerProgram | None = None
) -> tuple[Tensor, Tensor]:
    """Weight and bias of a linear map, with the factors and shifts before and after it."""
    weight, bias = linear.weight.float(), bias_of(linear).float()  # as factors and shifts are
    if before is not None and is_affine(before):
        factor, shift = (spread(values, weight.shape[1]) for values in (before.factor, before.shift))
        weight, bias = weight * factor, bias + weight @ shift
    if after is not None:
        factor, shift = (spread(values, weight.shape[0]) for values in (after.factor, after.shift))
        weight, bias = weight * factor[:, None], bias * factor + shift
    return weight, bias


def spread(values: Any, width: int) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).expand(width)


def bias_of(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias


def last_position(stack: ResidualStack) -> int | None:
    """The largest number of tokens that a stack has positions for; None if it has no table."""
    if stack.embed_positions is None:
        return None
    return len(position_table(stack.embed_positions)) - first_position(positions_padding(stack.config))


def position_table(positions: nn.Embedding | SinusoidalPositions) -> Tensor:
    return positions.weight if isinstance(positions, nn.Embedding) else positions.table
