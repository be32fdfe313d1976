"""The residual connections of a stack as operations for the kernels, whatever its mode.

The graphs of the connections run once on symbols. What they do between two sub-layers becomes a list of operations on
the registers of a row: sums, norms, and functions of numbers. Nothing here knows a mode.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from residual_hf.model.search import Array
from residual_hf.model.stacks import ResidualStack
from residual_hf.tracing import Untraceable, trace

from .recorder import BRANCH, CONSTANT, NOWHERE, ONE, Cell, NoKernel, Operation, Recorder
from .symbols import Scores, Symbol, evaluate


class StackPrograms:
    """The operations before the first sub-layer, after each of them, and within them.

    Attributes:
        programs: lists of operations. The last one ends with the output of the stack as `hidden`.
        vectors, numbers: how many registers they need. Register 0 holds the embeddings at the start.
        inner: for each sub-layer, what happens within it, by the name of its slot.
        score_factors: for each sub-layer, the factor on the sum of the scores of all layers so far; 0: no sum.

    Raises `NoKernel` for a connection that does something that the kernels cannot.
    """

    @torch.no_grad()
    def __init__(self, stack: ResidualStack):
        recorder = Recorder(stack.config.d_model)
        self.inner: list[dict[str, InnerProgram]] = []
        self.score_factors: list[float] = []
        embeddings = run_module(
            stack.embed_norm, [Symbol(Cell(recorder, {(0, NOWHERE): ONE}), is_vector=True)], call_on_stream
        )
        stream = run_module(stack.boundary, [embeddings], lambda boundary, stream, _: boundary.begin(*stream))
        layers: Any = stack.layers
        for index, layer in enumerate(layers):
            for name, connection in layer.named_children():
                if name.endswith("_residual"):
                    sublayer = getattr(layer, name.removesuffix("_residual"))
                    self.inner.append(inner_programs(sublayer))
                    self.score_factors.append(0.0)
                    run_branch = partial(self.branch, recorder, sublayer.inner, Scores(name, index))
                    stream = run_module(connection, stream, branch=run_branch, factor=layer.branch_factor())
                    if len(recorder.programs) != len(self.inner) + 1:
                        raise NoKernel("a sub-layer that does not run once")
        output = run_module(stack.boundary, stream, lambda boundary, stream, _: boundary.end(stream))
        recorder.read(output.cell)
        self.programs = recorder.programs
        self.vectors, self.numbers = assign_registers(self.programs)

    def branch(
        self,
        recorder: Recorder,
        inner: nn.ModuleDict,
        scores: Scores,
        states: Symbol,
        score_residual: tuple[Scores | None, float] | None = None,
    ) -> tuple[Any, ...]:
        """The result of a branch: its output, and from an attention that adds scores their sums."""
        output = Symbol(recorder.branch(states.cell), is_vector=True)
        output = run_module(inner["output"], [output], call_on_stream) if "output" in inner else output
        if score_residual is None:
            return (output,)
        previous, divisor = score_residual
        expected = None if scores.layer == 0 else Scores(scores.kind, scores.layer - 1)
        if previous != expected:
            raise NoKernel("a sum of other scores than those of the layer before")
        self.score_factors[-1] = 1.0 / divisor
        return output, None, scores


class InnerProgram:
    """The operation of an inner module on a vector.

    Attributes:
        operations: on registers; they read the vector as `BRANCH`, and the last one is `hidden`.
        width, vectors, numbers: of the registers.
        factor, shift: of shape () or (width,), if this is all that the operations do; else None.
    """

    factor: Array | None = None
    shift: Array | None = None

    def __init__(self, module: nn.Module | None, width: int):
        recorder = Recorder(width)
        states = Symbol(Cell(recorder, {(BRANCH, NOWHERE): ONE}), is_vector=True)
        cell = states.cell if module is None else run_module(module, [states], call_on_stream).cell
        if cell.terms.keys() <= {(BRANCH, NOWHERE), CONSTANT}:
            self.factor, self.shift = (cell.terms.get(key, 0 * ONE) for key in ((BRANCH, NOWHERE), CONSTANT))
        recorder.read(cell)
        (self.operations,), self.width = recorder.programs, width
        self.vectors, self.numbers = assign_registers([self.operations])


def inner_programs(sublayer: Any) -> dict[str, InnerProgram]:
    """Programs of the inner modules of a branch, by slot, except for `output`. Keys and values have one each."""
    inner: dict[str, nn.Module | None] = {**sublayer.inner}
    inner.pop("output", None)
    if not hasattr(sublayer, "head_dim"):
        found = {slot: InnerProgram(module, sublayer.fc1.out_features) for slot, module in inner.items()}
        if "pre_activation" in found and found["pre_activation"].factor is None:
            raise NoKernel("more than a factor and a shift before an activation")
        return found
    if inner.keys() & {"key", "value"}:
        inner = {"key": None, "value": None, **inner}
    widths = {"heads": sublayer.out_proj.in_features}
    return {slot: InnerProgram(module, widths.get(slot, sublayer.head_dim)) for slot, module in inner.items()}


def run_module(
    module: nn.Module,
    stream: Sequence[Any],
    run: Callable[..., Any] | None = None,
    branch: Callable[..., Any] | None = None,
    factor: Tensor | None = None,
) -> Any:
    """Apply a module to symbols; the arguments are those of `trace`, with values."""
    try:
        graph = trace(module, len(stream), run, inline=True, is_warming=factor is not None)
    except Untraceable as error:
        raise NoKernel(str(error)) from error
    return evaluate(graph, module, (*stream, branch, lambda values: values, factor))


def call_on_stream(module: nn.Module, stream: Sequence[Any], _: Any) -> Any:
    return module.forward(*stream)


def remove_unused(programs: list[list[Operation]]) -> None:
    """Remove results that nothing reads, and operations without results."""
    vectors: set[int] = set()
    numbers: set[int] = set()
    for program in reversed(programs):
        for operation in reversed(program):
            made = vectors if operation.function == "sum" else numbers
            operation.sum = operation.sum if operation.sum in vectors else NOWHERE
            own = range(operation.output, operation.output + operation.outputs)
            operation.output = NOWHERE if made.isdisjoint(own) else operation.output
            if has_result(operation):
                vectors.update(source for (source, _), _ in operation.terms)
                numbers.update(number for (_, number), _ in operation.terms)
        program[:] = filter(has_result, program)


def has_result(operation: Operation) -> bool:
    return operation.hidden or (operation.sum, operation.output) != (NOWHERE, NOWHERE)


class Registers:
    """Registers that are used again when nothing reads their value any more."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.free: list[int] = []
        self.count = 0

    def take(self, name: int, count: int = 1) -> int:
        """A place for a value, or places that follow each other for values with the names that follow."""
        if name == NOWHERE:
            return NOWHERE
        fits = (place for place in self.free if {*range(place, place + count)} <= {*self.free})
        first = next(fits, self.count)
        self.free = [place for place in self.free if not first <= place < first + count]
        self.count = max(self.count, first + count)
        self.places.update((name + i, first + i) for i in range(count))
        return first

    def release(self, names: set[int]) -> None:
        self.free = sorted([*self.free, *(self.places.pop(name) for name in names if name in self.places)])

    def __getitem__(self, name: int) -> int:
        return self.places.get(name, name)


def assign_registers(programs: list[list[Operation]]) -> tuple[int, int]:
    """Leave out what has no use, and replace the numbers of values by those of registers.

    Returns how many registers of vectors and of numbers there are.
    """
    remove_unused(programs)
    operations = [operation for program in programs for operation in program]
    last_reads: tuple[dict[int, Operation], dict[int, Operation]] = ({}, {})
    for operation in operations:
        for key, _ in operation.terms:
            for name, last in zip(key, last_reads, strict=True):
                last[name] = operation
    vectors, numbers = Registers(), Registers()
    vectors.take(0)
    for operation in operations:
        terms = [((vectors[source], numbers[number]), weight) for (source, number), weight in operation.terms]
        for kind, registers in enumerate((vectors, numbers)):
            registers.release({key[kind] for key, _ in operation.terms if last_reads[kind][key[kind]] is operation})
        operation.terms = terms
        if operation.function == "sum":
            operation.sum, operation.output = vectors.take(operation.sum), vectors.take(operation.output)
        else:
            operation.output = numbers.take(operation.output, operation.outputs)
    return vectors.count, numbers.count
