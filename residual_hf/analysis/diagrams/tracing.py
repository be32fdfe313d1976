# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""One part of a stack as a graph of tensor operations, from a `torch.fx` trace of the classes of its mode.

The branch and all child modules are leaves. What remains becomes the nodes of a `Part`: additions, scales, weighted
sums, norms, the branch. Values of any other shape than (batch, length, d_model) are coefficients: they appear in the
labels of the scales and sums that use them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from residual_hf.model.connections import ResidualConnection, StreamBoundary
from residual_hf.model.modes_multi_stream import weighted_sums
from residual_hf.model.norms import NORM_TYPES

STATE = (2, 3, 16)  # batch, length, d_model of the traced stack
NORMS = (*NORM_TYPES.values(), nn.RMSNorm)
ADD, SUBTRACT, MULTIPLY, DIVIDE = "add", "sub", "mul", "div"
OPERATORS = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), ADD),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), SUBTRACT),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul", "mul_"), MULTIPLY),
    **dict.fromkeys((operator.truediv, torch.div, "div", "div_"), DIVIDE),
}
SIGNS = {ADD: "+", SUBTRACT: "-", MULTIPLY: "*", DIVIDE: "/"}
UNCHANGED = {"to", "type_as", "float", "contiguous", "clone"}


@dataclass(eq=False)
class Node:
    """One operation: `kind` is input, branch, scores, norm, add, scale, mix (a weighted sum), module or op."""

    kind: str
    label: str = ""
    inputs: list[Node] = field(default_factory=list)
    inner: dict[str, list[Node]] = field(default_factory=dict)  # of a branch: the modules in its slots
    is_state: bool = True  # False: attention scores


@dataclass(eq=False)
class Part:
    """What happens to the stream in one sub-layer, or at the beginning or end of a stack."""

    title: str
    inputs: list[Node]
    nodes: list[Node]  # in the order of the computation, inputs left out
    outputs: list[Node]
    names: list[str] = field(default_factory=list)  # of the members of the stream, as the class calls them

    def signature(self) -> Any:
        """Equal for parts that are drawn alike."""
        index = {node: i for i, node in enumerate([*self.inputs, *self.nodes])}
        inner = {n: [(slot, [m.label for m in modules]) for slot, modules in n.inner.items()] for n in self.nodes}
        nodes = [(n.kind, n.label, inner[n], [index[i] for i in n.inputs]) for n in self.nodes]
        return len(self.inputs), nodes, [index[node] for node in self.outputs]


class Named(float):
    """A constant of a mode that remembers its name through a trace."""

    name: str


def name_constants(module: nn.Module) -> None:
    for name, value in list(vars(module).items()):
        if type(value) is float:
            vars(module)[name] = named(value, name)
        elif name == "options" and is_dataclass(value) and not isinstance(value, type):
            floats = {f.name: getattr(value, f.name) for f in fields(value)}
            changed = {name: named(v, name) for name, v in floats.items() if type(v) is float}
            vars(module)[name] = replace(value, **changed)


def named(value: float, name: str) -> Named:
    constant = Named(value)
    constant.name = name
    return constant


class Branch(nn.Module):
    """Placeholder for a sub-layer in a trace."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + 0.0


class ScoredBranch(nn.Module):
    """Attention whose scores are in the stream."""

    def forward(self, hidden_states: Tensor, previous: Tensor | None, divisor: float) -> tuple[Tensor, Tensor]:
        scores = torch.zeros(STATE[0], 2, STATE[1], STATE[1])
        return hidden_states + 0.0, scores if previous is None else scores + previous


class TracedSublayer(nn.Module):
    """The `sublayer` of a connection in a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.scored = Branch(), ScoredBranch()

    def forward(self, hidden_states: Tensor, norm: nn.Module | None = None) -> Tensor:
        output = self.branch(hidden_states)
        return output if norm is None else norm(output)

    def with_scores(self, hidden_states: Tensor, previous: Tensor | None, divisor: float = 1.0) -> Any:
        return self.scored(hidden_states, previous, divisor)


class TracedPart(nn.Module):
    """One part of a stack as a function of its stream; `modules` are those that it calls."""

    def __init__(self, run: Callable[[tuple[Tensor, ...]], Any], size: int, *modules: nn.Module):
        super().__init__()
        self.run, self.size = run, size
        self.called = nn.ModuleList(modules)

    def forward(self, stream: Any) -> Any:
        return self.run(tuple(stream[i] for i in range(self.size)))


class LeafTracer(fx.Tracer):
    """Traces connections and boundaries; all other modules are leaves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, (ResidualConnection, StreamBoundary, TracedSublayer))


@dataclass
class Coefficient:
    """A value that is not a hidden state: a short expression, its nearest parameter, the states it depends on."""

    expression: str
    nearest: str
    states: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.expression) > 18:
            self.expression = self.nearest

    @property
    def label(self) -> str:
        return f"{self.expression}(h)" if self.states and "(h)" not in self.expression else self.expression


class PartBuilder:
    """Turns the graph of a trace into the nodes of a part."""

    def __init__(self, part: TracedPart, title: str, values: tuple[Tensor, ...], inner: dict[str, list[Node]]):
        self.title, self.inner, self.part = title, inner, part
        graph = LeafTracer().trace(part)
        interpreter = fx.Interpreter(fx.GraphModule(part, graph), garbage_collect_values=False)
        self.results = interpreter.run(values)
        self.values = interpreter.env
        self.graph = graph
        self.found: dict[fx.Node, Any] = {}
        self.nodes: list[Node] = []
        shared = {id(parameter): name.rsplit(".", 1)[-1] for name, parameter in part.named_parameters()}
        self.stream = [  # a parameter in the stream is a coefficient
            Coefficient(shared[id(value)], shared[id(value)])
            if id(value) in shared
            else Node("input", is_state=tuple(value.shape) == STATE)
            for value in values
        ]
        self.inputs = [member for member in self.stream if isinstance(member, Node)]

    def build(self) -> Part:
        outputs: list[Node] = []
        for node in self.graph.nodes:
            if node.op == "output":
                outputs = [value for value in self.argument(node.args[0]) if isinstance(value, Node)]
            else:
                self.found[node] = self.visit(node)
        return Part(self.title, self.inputs, used(self.nodes, outputs), outputs)

    def visit(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self.stream
        if node.op == "get_attr":
            name = str(node.target).rsplit(".", 1)[-1]
            return Coefficient(name, name)
        arguments = [self.argument(a) for a in node.args]
        if node.target is operator.getitem and isinstance(arguments[0], (list, Node)):
            return self.member(arguments[0], cast(int, node.args[1]))
        if node.op == "call_module":
            return self.module(node, self.part.get_submodule(str(node.target)), arguments)
        if node.target is torch.stack:
            return arguments[0]
        if node.target is weighted_sums:
            count = self.values[node].shape[-2]
            return [self.add_node("mix", f"Σ {label_of(arguments[0])}", arguments[1]) for _ in range(count)]
        if node.target in ("unbind", "squeeze") and isinstance(arguments[0], list):
            return arguments[0] if node.target == "unbind" else arguments[0][0]
        if not self.is_state(node):
            return self.coefficient(node, arguments)
        if node.target in UNCHANGED:
            return arguments[0]
        if node.target in OPERATORS:
            return self.arithmetic(OPERATORS[node.target], arguments, node.kwargs)
        return self.add_node("op", function_name(node), states_of(arguments))

    def member(self, owner: list[Any] | Node, index: int) -> Node | Coefficient:
        if isinstance(owner, list):
            return owner[index]
        if index == 0:
            return owner
        self.nodes.append(Node("scores", inputs=[owner], is_state=False))
        return self.nodes[-1]

    def argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.found[value]
        return [self.argument(v) for v in value] if isinstance(value, (list, tuple)) else value

    def is_state(self, node: fx.Node) -> bool:
        value = self.values[node]
        return isinstance(value, Tensor) and tuple(value.shape) == STATE

    def add_node(self, kind: str, label: str, inputs: list[Node]) -> Node:
        node = Node(kind, label, inputs, self.inner if kind == "branch" else {})
        self.nodes.append(node)
        return node

    def module(self, node: fx.Node, module: nn.Module, arguments: list[Any]) -> Any:
        states = states_of(arguments)
        if isinstance(module, Branch | ScoredBranch):
            return self.add_node("branch", self.title, states)
        if not self.is_state(node):
            name = str(node.target).rsplit(".", 1)[-1]
            return Coefficient(f"{name}(h)", nearest_name(arguments) or name, states)
        if isinstance(module, nn.Identity):
            return states[0]
        leaf = module_node(module)
        return self.add_node(leaf.kind, leaf.label, states)

    def coefficient(self, node: fx.Node, arguments: list[Any]) -> Coefficient:
        sign = SIGNS.get(OPERATORS.get(node.target, ""))
        if node.target is operator.getitem:
            expression = expression_of(arguments[0])
        elif sign:
            expression = f" {sign} ".join(expression_of(a) for a in arguments)
        elif node.target is torch.cat:
            expression = ", ".join(nearest_name(a) for a in arguments[0])
            return Coefficient(expression, expression, states_of(arguments))
        else:
            expression = f"{function_name(node)}({', '.join(expression_of(a) for a in arguments[:1])})"
        return Coefficient(expression, nearest_name(arguments) or expression, states_of(arguments))

    def arithmetic(self, kind: str, arguments: list[Any], kwargs: Any) -> Node:
        a, b = arguments[:2]
        if kind in (ADD, SUBTRACT):
            factor = self.argument(kwargs.get("alpha", 1))
            if isinstance(a, Node) and isinstance(b, Node):
                b = self.scaled(self.scaled(b, factor), 1 if kind == ADD else -1)
                return self.add_node("add", "", [a, b])
            return self.shifted(SIGNS[kind], a, b)
        if isinstance(a, Node) and isinstance(b, Node):
            return self.add_node("op", "×" if kind == MULTIPLY else "÷", [a, b])
        if kind == DIVIDE:
            return self.shifted("/", a, b)
        state, factor = (a, b) if isinstance(a, Node) else (b, a)
        return self.scaled(state, factor)

    def shifted(self, sign: str, a: Any, b: Any) -> Node:
        """A state and a coefficient, in their order."""
        if isinstance(a, Node):
            return self.add_node("scale", f"{sign} {label_of(b)}", [a])
        return self.add_node("scale", f"{label_of(a)} {sign}", [b])

    def scaled(self, state: Node, factor: Any) -> Node:
        if type(factor) in (int, float) and factor == 1:
            return state
        return self.add_node("scale", f"× {label_of(factor)}", [state])


def states_of(value: Any) -> list[Node]:
    """Hidden states in arguments, each once, those that coefficients depend on included."""
    if isinstance(value, Node):
        return [value]
    members = value.states if isinstance(value, Coefficient) else value if isinstance(value, list) else []
    return list(dict.fromkeys(node for member in members for node in states_of(member)))


def nearest_name(value: Any) -> str:
    """The first parameter that arguments name."""
    if isinstance(value, Coefficient):
        return value.nearest
    return next(filter(None, map(nearest_name, value)), "") if isinstance(value, list) else ""


def expression_of(value: Any) -> str:
    if isinstance(value, Coefficient):
        return value.expression
    if isinstance(value, Named):
        return value.name
    return f"{value:g}" if isinstance(value, (int, float)) else "h" if isinstance(value, (Node, list)) else str(value)


def label_of(value: Any) -> str:
    return value.label if isinstance(value, Coefficient) else expression_of(value)


def function_name(node: fx.Node) -> str:
    return str(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target))


def module_node(module: nn.Module) -> Node:
    label = "LN" if isinstance(module, nn.LayerNorm) else type(module).__name__
    return Node("norm" if isinstance(module, NORMS) else "module", label)


def used(nodes: list[Node], outputs: list[Node]) -> list[Node]:
    """Without those that nothing is made of."""
    needed: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.inputs
    return [node for node in nodes if node in needed]
