"""The operations on the registers of a row that make up the residual connections of a stack.

A `Cell` is a sum of weights times registers that no operation has computed yet. It is computed when a norm, a function
or a sub-layer needs its values, so that the operations are few: Pre-LN has one between two sub-layers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np
from torch import Tensor

from residual_hf.model.search import Array

NOWHERE, BRANCH = -1, -2
Key = tuple[int, int]  # a register of vectors, `BRANCH` or `NOWHERE`, and one of numbers or `NOWHERE`
Terms = dict[Key, Array]  # with weights of shape () or (d_model,)
CONSTANT: Key = (NOWHERE, NOWHERE)
ONE = np.array(1.0)


class NoKernel(Exception):
    """The kernels cannot do what a connection does."""


@dataclass(frozen=True)
class NormWeights:
    gain: Tensor
    bias: Tensor | None
    epsilon: float
    centered: bool  # LayerNorm; RMSNorm takes the mean to be 0


@dataclass(eq=False)
class Operation:
    """A program as in `native.h`, with values in place of registers, each of which is made once."""

    function: str
    terms: list[tuple[Key, Array]]
    norm: NormWeights | None = None
    sum: int = NOWHERE
    output: int = NOWHERE
    outputs: int = 1  # numbers that follow each other
    hidden: bool = False


class Cell:
    """A vector of d_model values, or a number, of each row.

    In a number, a term with a register of vectors is the sum over the values.
    """

    def __init__(self, recorder: "Recorder", terms: Terms, is_number: bool = False):
        self.recorder, self.terms, self.is_number = recorder, terms, is_number
        if any(source == BRANCH for source, _ in terms):
            recorder.pending.add(self)

    def held(self) -> Key:
        """The register whose value this is, if there is nothing left to compute."""
        (key, weight), *others = self.terms.items()
        return CONSTANT if others or weight.ndim or weight != 1 else key

    @property
    def is_constant(self) -> bool:
        return self.terms.keys() == {CONSTANT}

    def of_vectors(self) -> Terms:
        """The terms in a sum of vectors, to which a number adds the same to all values."""
        if not self.is_number or self.is_constant:
            return self.terms
        return {(NOWHERE, self.recorder.number(self)): ONE}

    def __add__(self, other: "Cell") -> "Cell":
        is_number = self.is_number and other.is_number
        first, second = (self.terms, other.terms) if is_number else (self.of_vectors(), other.of_vectors())
        terms = {**first, **{key: first[key] + weight if key in first else weight for key, weight in second.items()}}
        return Cell(self.recorder, terms, is_number)

    def __sub__(self, other: "Cell") -> "Cell":
        return self + other.times(np.array(-1.0))

    def __mul__(self, other: "Cell") -> "Cell":
        for constant, cell in ((self, other), (other, self)):
            if constant.is_constant:
                return cell.times(constant.terms[CONSTANT])
        if self.is_number and other.is_number:
            for cell in (self, other):
                self.recorder.number(cell)
            return self.recorder.function("product", (self, other))
        number, vector = (self, other) if self.is_number else (other, self)
        if not number.is_number:
            raise NoKernel("a product of two values that depend on the hidden states")
        if any(factor != NOWHERE for _, factor in vector.terms):
            self.recorder.vector(vector)
        factor = self.recorder.number(number)
        return Cell(self.recorder, {(source, factor): weight for (source, _), weight in vector.terms.items()})

    def __truediv__(self, other: "Cell") -> "Cell":
        if not other.is_constant:
            raise NoKernel("a division by a value that depends on the hidden states")
        return self.times(1.0 / other.terms[CONSTANT])

    def times(self, factor: Array) -> "Cell":
        return Cell(self.recorder, {key: weight * factor for key, weight in self.terms.items()}, self.is_number)

    def sum(self) -> "Cell":
        """The number that is the sum over the values of a vector."""
        width = self.recorder.width
        terms = {k: np.broadcast_to(w, width).sum() if k[0] == NOWHERE else w for k, w in self.terms.items()}
        return Cell(self.recorder, terms, is_number=True)


class Recorder:
    """The operations of a stack on vectors of `width` values: a list before the first sub-layer, one after each."""

    def __init__(self, width: int):
        self.width = width
        self.programs: list[list[Operation]] = [[]]
        self.vectors, self.numbers = 1, 0  # values so far; the first vector is that of the embeddings
        self.pending: WeakSet[Cell] = WeakSet()  # what still needs the output of the last sub-layer
        self.outputs: dict[int, Operation] = {}  # of the newest list, by value

    def constant(self, values: Array, is_number: bool) -> Cell:
        return Cell(self, {CONSTANT: values}, is_number)

    def vector(self, cell: Cell) -> int:
        """Compute a vector."""
        source, factor = cell.held()
        if source >= 0 and factor == NOWHERE:
            return source
        output = self._sum(cell).output
        cell.terms = {(output, NOWHERE): ONE}
        return output

    def number(self, cell: Cell) -> int:
        """Compute a number."""
        source, number = cell.held()
        if source == NOWHERE and number >= 0:
            return number
        cell.terms = self.function("number", [cell]).terms
        return cell.held()[1]

    def function(self, name: str, cells: Iterable[Cell]) -> Cell:
        """A function of the sum of numbers, or of all of them."""
        return self.functions(name, cells, 1)[0]

    def functions(self, name: str, cells: Iterable[Cell], count: int) -> list[Cell]:
        """A function of numbers with several values."""
        terms = [term for cell in cells for term in cell.terms.items()]
        self.programs[-1].append(Operation(name, terms, output=self.numbers, outputs=count))
        self.numbers += count
        return [Cell(self, {(NOWHERE, self.numbers + i): ONE}, is_number=True) for i in range(-count, 0)]

    def inverse_length(self, members: Iterable[Cell], epsilon: float) -> Cell:
        """1 / sqrt(mean + epsilon) of the squares of the values of several vectors."""
        sources = [(self.vector(member), NOWHERE) for member in members]
        share = np.array(1.0 / (len(sources) * self.width))
        cells = [Cell(self, {source: share}, is_number=True) for source in sources]
        return self.function("inverse_length", [*cells, self.constant(np.array(epsilon), is_number=True)])

    def norm(self, cell: Cell, weights: NormWeights) -> Cell:
        operation = self._sum(cell, weights)
        operation.sum = self._new_vector()
        cell.terms = {(operation.sum, NOWHERE): ONE}
        return Cell(self, {(operation.output, NOWHERE): ONE})

    def read(self, cell: Cell) -> None:
        """A sub-layer, or who uses the stack, reads a vector."""
        operation = self.outputs.get(self.vector(cell)) or self._sum(cell)
        operation.hidden = True

    def branch(self, cell: Cell) -> Cell:
        """The output of the sub-layer that reads a vector."""
        self.read(cell)
        for waiting in list(self.pending):
            (self.number if waiting.is_number else self.vector)(waiting)
        self.pending.clear()
        self.programs.append([])
        self.outputs = {}
        return Cell(self, {(BRANCH, NOWHERE): ONE})

    def _sum(self, cell: Cell, norm: NormWeights | None = None) -> Operation:
        terms = {k: np.broadcast_to(w, self.width) if k[0] == NOWHERE else w for k, w in cell.terms.items()}
        operation = Operation("sum", list(terms.items()), norm, output=self._new_vector())
        self.programs[-1].append(operation)
        self.outputs[operation.output] = operation
        return operation

    def _new_vector(self) -> int:
        self.vectors += 1
        return self.vectors - 1
