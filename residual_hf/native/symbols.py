"""Symbols in place of hidden states: the operations of a traced connection, as those of a recorder."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from residual_hf.model.search import Array
from residual_hf.tracing import operation_of

from .recorder import Cell, NoKernel, NormWeights, Recorder


class Symbol:
    """A tensor (batch, length, ...) without its first two dimensions, as an array of cells.

    If it `is_vector`, each cell holds the last dimension, d_model.
    """

    def __init__(self, cells: Any, is_vector: bool):
        self.cells: Any = np.asarray(cells, dtype=object)
        self.is_vector = is_vector

    @property
    def cell(self) -> Cell:
        if self.cells.ndim or not self.is_vector:
            raise NoKernel("a sub-layer that reads something else than one hidden state")
        return self.cells[()]

    def axis(self, dim: int) -> int:
        """The axis of the cells for a dimension, counted from the end."""
        axis = dim + self.is_vector
        if axis >= 0:
            raise NoKernel(f"dimension {dim} of hidden states")
        return axis

    def map(self, function: Callable[[Cell], Cell], is_vector: bool) -> "Symbol":
        return Symbol(np.frompyfunc(function, 1, 1)(self.cells, order="C"), is_vector)


@dataclass(frozen=True)
class Scores:
    """The sums of the attention scores of a kind of sub-layer up to layer `layer`."""

    kind: str
    layer: int


class Joined:
    """The vectors of a symbol one after another as a single vector, (..., n * d_model)."""

    def __init__(self, cells: list[Cell]):
        self.cells = cells


def evaluate(graph: fx.Graph, module: nn.Module, inputs: Sequence[Any]) -> Any:
    """The output of the graph of a module for symbols, and for tensors that do not depend on hidden states."""
    values: dict[fx.Node, Any] = {}
    waiting = list(inputs)
    for node in graph.nodes:
        arguments: Any = fx.node.map_arg(node.args, values.__getitem__)
        options = fx.node.map_arg(node.kwargs, values.__getitem__)
        if node.op == "placeholder":
            values[node] = waiting.pop(0)
        elif node.op == "get_attr":
            values[node] = attrgetter(str(node.target))(module)
        elif node.op == "output":
            return arguments[0]
        elif has_symbols(arguments):
            name = operation_of(node)
            known = OF_JOINED if isinstance(arguments[0], Joined) else FUNCTIONS
            if name not in known:
                raise NoKernel(f"{name} of hidden states")
            values[node] = known[name](*arguments, **options)
        elif node.op == "call_method":
            values[node] = getattr(arguments[0], str(node.target))(*arguments[1:], **options)
        else:
            values[node] = node.target(*arguments, **options)


def has_symbols(value: Any) -> bool:
    parts = value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, (Symbol, Joined, Scores)) or any(map(has_symbols, parts))


def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return function(*arguments, **options)


def attribute(values: Symbol, name: str) -> torch.dtype:
    if name != "dtype":
        raise NoKernel(f"{name} of hidden states")
    return torch.float32


def item(values: Any, index: Any) -> Any:
    if not isinstance(values, Symbol):
        return values[index]
    index = index if isinstance(index, tuple) else (index,)
    if index[0] is not Ellipsis or (values.is_vector and index[-1] not in (Ellipsis, slice(None))):
        raise NoKernel("single rows or values of hidden states")
    return Symbol(values.cells[index[:-1] if values.is_vector else index], values.is_vector)


def operand(value: Any, is_vector: bool, recorder: Recorder) -> Array:
    """The cells of a symbol, tensor or number in a calculation with vectors or with numbers."""
    if isinstance(value, Symbol):
        if value.is_vector == is_vector:
            return value.cells
        if value.cells.shape[-1:] != (1,):
            raise NoKernel("numbers in place of the values of hidden states")
        return value.cells[..., 0]
    constants = value.detach().double().numpy() if isinstance(value, Tensor) else np.array(float(value))
    if is_vector and constants.shape[-1:] == (1,):
        constants = constants[..., 0]
        is_vector = False
    cells = np.empty(constants.shape[:-1] if is_vector else constants.shape, dtype=object)
    for index in np.ndindex(cells.shape):
        cells[index] = recorder.constant(np.asarray(constants[index]), is_number=not is_vector)
    return cells


def elementwise(operation: Callable[[Array, Array], Any], a: Any, b: Any, alpha: Any = 1.0) -> Symbol:
    """An operation on two operands, of which one is a symbol, and the second is multiplied by `alpha`."""
    b = b if alpha == 1.0 else multiply(b, alpha)
    symbols = [value for value in (a, b) if isinstance(value, Symbol)]
    is_vector, recorder = any(s.is_vector for s in symbols), symbols[0].cells.flat[0].recorder
    return Symbol(operation(operand(a, is_vector, recorder), operand(b, is_vector, recorder)), is_vector)


add, subtract = partial(elementwise, np.add), partial(elementwise, np.subtract)
multiply, divide = partial(elementwise, np.multiply), partial(elementwise, np.true_divide)


def matmul(weights: Any, members: Any) -> Symbol:
    """Sums of vectors: weights (..., m, n) and vectors (..., n, d_model)."""
    if not (isinstance(members, Symbol) and members.is_vector):
        raise NoKernel("a matrix product of numbers")
    recorder = members.cells.flat[0].recorder
    return Symbol(np.matmul(operand(weights, False, recorder), members.cells), is_vector=True)


def linear(values: Symbol, weight: Tensor, bias: Tensor | None = None) -> Symbol:
    """Numbers (..., m) of vectors, or of numbers."""
    if values.is_vector:
        outputs = stack([multiply(values, row).map(Cell.sum, is_vector=False) for row in weight], -1)
    else:
        columns = operand(weight.mT, False, values.cells.flat[0].recorder)
        outputs = Symbol(np.matmul(values.cells, columns), is_vector=False)
    return outputs if bias is None else add(outputs, bias)


def total(values: Symbol, dim: int, keepdim: bool = False) -> Symbol:
    if not values.is_vector or dim != -1:
        raise NoKernel("a sum over another dimension than d_model")
    numbers = function("number", values.map(Cell.sum, is_vector=False))
    return Symbol(numbers.cells[..., None], False) if keepdim else numbers


def function(name: str, values: Symbol) -> Symbol:
    if values.is_vector:
        raise NoKernel(f"{name} of hidden states")
    return values.map(lambda cell: cell.recorder.function(name, [cell]), is_vector=False)


def softmax(values: Symbol, dim: int, _stacklevel: int = 0, dtype: Any = None) -> Symbol:
    if values.is_vector or dim != -1:
        raise NoKernel("softmax over another dimension than the last one of numbers")
    cells = np.empty(values.cells.shape, dtype=object)
    for index in np.ndindex(cells.shape[:-1]):
        row = values.cells[index]
        recorder = row[0].recorder
        for cell in row:
            recorder.number(cell)
        normalizer = recorder.function("log_sum_exp", row)
        for i, cell in enumerate(row):
            cells[index + (i,)] = recorder.function("exp", [cell - normalizer])
    return Symbol(cells, is_vector=False)


def sinkhorn(logits: Symbol) -> Symbol:
    """Doubly stochastic matrices (..., n, n), see `model.modes_multi_stream.sinkhorn`."""
    cells = np.empty(logits.cells.shape, dtype=object)
    for index in np.ndindex(cells.shape[:-2]):
        matrix = logits.cells[index].flatten()
        for cell in matrix:
            cell.recorder.number(cell)
        entries = matrix[0].recorder.functions("sinkhorn", matrix, len(matrix))
        cells[index] = np.array(entries, dtype=object).reshape(cells.shape[-2:])
    return Symbol(cells, is_vector=False)


def norm(values: Symbol, weight: Any, bias: Any, eps: Any, centered: bool) -> Symbol:
    if not values.is_vector or not isinstance(weight, Tensor) or weight.ndim != 1:
        raise NoKernel("a norm of numbers, without a gain, or over several dimensions")
    weights = NormWeights(weight, bias, torch.finfo(torch.float32).eps if eps is None else eps, centered)
    return values.map(lambda cell: cell.recorder.norm(cell, weights), is_vector=True)


def layer_norm(values: Symbol, shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Symbol:
    return norm(values, weight, bias, eps, centered=True)


def rms_norm(values: Symbol, shape: Any, weight: Any = None, eps: Any = None) -> Symbol:
    return norm(values, weight, None, eps, centered=False)


def gelu(values: Symbol, approximate: str = "none") -> Symbol:
    """0.5 z (1 + tanh(u)) = z sigmoid(2u) with u = sqrt(2/pi) (z + 0.044715 z^3)."""
    if approximate != "tanh":
        raise NoKernel("a GELU that is not approximated by tanh")
    square = multiply(values, values)
    inner = multiply(multiply(add(multiply(square, 0.044715), 1.0), values), 2 * (2 / math.pi) ** 0.5)
    return multiply(values, function("sigmoid", inner))


def joined_rms_norm(values: Joined, shape: Any, weight: Tensor, eps: float) -> Joined:
    recorder, gains = values.cells[0].recorder, weight.detach().double().numpy().reshape(len(values.cells), -1)
    scale = recorder.inverse_length(values.cells, eps)
    return Joined([cell.times(gain) * scale for cell, gain in zip(values.cells, gains, strict=True)])


def joined_linear(values: Joined, weight: Tensor, bias: Tensor | None = None) -> Symbol:
    """Numbers (m) of all vectors."""
    parts = weight.unflatten(1, (len(values.cells), -1)).unbind(1)
    total, *others = (linear(Symbol(c, True), part) for c, part in zip(values.cells, parts, strict=True))
    for other in others:
        total = add(total, other)
    return total if bias is None else add(total, bias)


def flatten(values: Symbol, start: int = 0, end: int = -1) -> Symbol | Joined:
    if values.is_vector and (start, end, values.cells.ndim) == (-2, -1, 1):
        return Joined(list(values.cells))
    first, last = values.axis(start) % values.cells.ndim, values.axis(end) % values.cells.ndim
    shape = values.cells.shape
    return Symbol(values.cells.reshape(*shape[:first], -1, *shape[last + 1 :]), values.is_vector)


def unflatten(values: Symbol, dim: int, sizes: Sequence[int]) -> Symbol:
    axis, shape = values.axis(dim) % values.cells.ndim, values.cells.shape
    return Symbol(values.cells.reshape(*shape[:axis], *sizes, *shape[axis + 1 :]), values.is_vector)


def split(values: Symbol, sizes: int | Sequence[int], dim: int = 0) -> list[Symbol]:
    axis = values.axis(dim)
    ends = range(0, values.cells.shape[axis], sizes) if isinstance(sizes, int) else np.cumsum([0, *sizes[:-1]])
    return [Symbol(part, values.is_vector) for part in np.split(values.cells, ends[1:], axis)]


def join(function: Callable[..., Array], values: Sequence[Symbol], dim: int = 0) -> Symbol:
    return Symbol(function([value.cells for value in values], values[0].axis(dim)), values[0].is_vector)


stack, concatenate = partial(join, np.stack), partial(join, np.concatenate)


def unbind(values: Symbol, dim: int = 0) -> list[Symbol]:
    return [Symbol(member, values.is_vector) for member in np.moveaxis(values.cells, values.axis(dim), 0)]


def squeeze(values: Symbol, dim: int) -> Symbol:
    return Symbol(values.cells.squeeze(values.axis(dim)), values.is_vector)


def transpose(values: Symbol, a: int, b: int) -> Symbol:
    return Symbol(values.cells.swapaxes(values.axis(a), values.axis(b)), values.is_vector)


def unchanged(values: Symbol, *args: Any, **kwargs: Any) -> Symbol:
    return values


FUNCTIONS: dict[str, Callable] = {
    **{"add": add, "sub": subtract, "mul": multiply, "div": divide, "neg": lambda values: multiply(values, -1.0)},
    **{"matmul": matmul, "weighted_sums": matmul, "linear": linear},
    **{"__call__": call, "getattr": attribute, "getitem": item},
    **{"layer_norm": layer_norm, "rms_norm": rms_norm, "sum": total, "softmax": softmax, "gelu": gelu},
    **{name: partial(function, name) for name in ("tanh", "sigmoid", "exp")},
    **{"flatten": flatten, "unflatten": unflatten, "split": split, "sinkhorn": sinkhorn},
    **{"stack": stack, "cat": concatenate, "unbind": unbind, "squeeze": squeeze, "transpose": transpose},
    **dict.fromkeys(("to", "float", "type_as", "detach", "clone", "contiguous"), unchanged),
}
"""Symbolic functions by the name of the operation."""
OF_JOINED: dict[str, Callable] = {"to": unchanged, "rms_norm": joined_rms_norm, "linear": joined_linear}
