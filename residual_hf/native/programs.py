# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The residual connections of a stack as operations for the kernels, whatever its mode.

The graphs of the connections run once on symbols. What they do between two sub-layers becomes a list of operations on
the registers of a row: sums, norms, and functions of numbers. Nothing here knows a mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from residual_hf.model.stacks import ResidualStack
from residual_hf.tracing import Untraceable, trace

from .recorder import NOWHERE, NoKernel, Operation, Recorder
from .symbols import Symbol, evaluate


class StackPrograms:
    """The operations before the first sub-layer and after each of them.

    Attributes:
        programs: lists of operations. The last one ends with the output of the stack as `hidden`.
        vectors, numbers: how many registers they need. Register 0 holds the embeddings at the start.

    Raises:
        NoKernel: a connection does something that the kernels cannot.
    """

    @torch.no_grad()
    def __init__(self, stack: ResidualStack):
        recorder = Recorder(stack.config.d_model)
        embeddings = run_module(stack.embed_norm, [Symbol(recorder.embeddings(), is_vector=True)], call_on_stream)
        stream = run_module(stack.boundary, [embeddings], lambda boundary, stream, _: boundary.begin(*stream))
        layers: Any = stack.layers
        for layer in layers:
            for name, connection in layer.named_children():
                if name.endswith("_residual"):
                    inner = getattr(layer, name.removesuffix("_residual")).inner
                    run_branch = partial(branch, recorder, inner)
                    stream = run_module(connection, stream, branch=run_branch, factor=layer.branch_factor())
        output = run_module(stack.boundary, stream, lambda boundary, stream, _: boundary.end(stream))
        recorder.read(output.cell)
        self.programs = recorder.programs
        remove_unused(self.programs)
        self.vectors, self.numbers = assign_registers(self.programs)


def run_module(
    module: nn.Module,
    stream: Sequence[Any],
    run: Callable[..., Any] | None = None,
    branch: Callable[..., Any] | None = None,
    factor: Tensor | None = None,
) -> Any:
    """What a module makes of symbols; the arguments are those of `trace`, with values."""
    try:
        graph = trace(module, len(stream), run, inline=True, is_warming=factor is not None)
    except Untraceable as error:
        raise NoKernel(str(error)) from error
    return evaluate(graph, module, (*stream, branch, lambda values: values, factor))


def call_on_stream(module: nn.Module, stream: Sequence[Any], _: Any) -> Any:
    return module.forward(*stream)


def branch(recorder: Recorder, inner: nn.ModuleDict, states: Symbol, **options: Any) -> tuple[Any]:
    """The output of a sub-layer, and what its last slot does to it."""
    if options:
        raise NoKernel(f"a sub-layer with {', '.join(options)}")
    output = Symbol(recorder.branch(states.cell), is_vector=True)
    return (run_module(inner["output"], [output], call_on_stream) if "output" in inner else output,)


def remove_unused(programs: list[list[Operation]]) -> None:
    """Remove results that nothing reads, and operations without results."""
    vectors: set[int] = set()
    numbers: set[int] = set()
    for program in reversed(programs):
        for operation in reversed(program):
            made = vectors if operation.function == "sum" else numbers
            operation.sum = operation.sum if operation.sum in vectors else NOWHERE
            operation.output = operation.output if operation.output in made else NOWHERE
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

    def take(self, name: int) -> int:
        if name == NOWHERE:
            return NOWHERE
        if not self.free:
            self.free.append(self.count)
            self.count += 1
        self.places[name] = self.free.pop()
        return self.places[name]

    def release(self, names: set[int]) -> None:
        self.free += sorted((self.places.pop(name) for name in names if name in self.places), reverse=True)

    def __getitem__(self, name: int) -> int:
        return self.places.get(name, name)


def assign_registers(programs: list[list[Operation]]) -> tuple[int, int]:
    """Replace the numbers of values by those of registers; returns how many of vectors and of numbers there are."""
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
            operation.output = numbers.take(operation.output)
    return vectors.count, numbers.count
