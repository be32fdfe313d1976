"""One segment of a stack as a graph to draw, from its trace.

The branch and child modules are nodes, and so are additions, scales and weighted sums of hidden states. Values of any
other shape than (batch, length, d_model) are coefficients: they appear in the labels of the scales and sums that use
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from residual_hf.model.norms import NORM_TYPES
from residual_hf.tracing import operation_of

STATE = (2, 3, 16)  # batch, length, d_model of the traced stack
NORMS = (*NORM_TYPES.values(), nn.RMSNorm)
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
UNCHANGED = {"to", "type_as", "float", "contiguous", "clone"}


@dataclass(eq=False)
class Node:
    """One operation: `kind` is input, branch, scores, norm, add, scale, mix (a weighted sum), module or op."""

    kind: str
    label: str = ""
    inputs: "list[Node]" = field(default_factory=list)
    inner: "dict[str, list[Node]]" = field(default_factory=dict)  # of a branch: the modules in its slots


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


@dataclass(eq=False)
class Segment:
    """What happens to the stream in one sub-layer, or at the beginning or end of a stack."""

    title: str
    inputs: list[Node]
    nodes: list[Node]  # in the order of the computation, inputs left out
    outputs: list[Node]
    names: list[str] = field(default_factory=list)  # of the members of the stream, as the class calls them

    def signature(self) -> Any:
        """Equal for segments that are drawn alike."""
        index = {node: i for i, node in enumerate([*self.inputs, *self.nodes])}
        inner = {n: [(slot, [m.label for m in modules]) for slot, modules in n.inner.items()] for n in self.nodes}
        nodes = [(n.kind, n.label, inner[n], [index[i] for i in n.inputs]) for n in self.nodes]
        return len(self.inputs), nodes, [index[node] for node in self.outputs]


class Named(float):
    """A constant of a mode that remembers its name through a trace."""

    def __new__(cls, value: float, name: str) -> "Named":
        return super().__new__(cls, value)

    def __init__(self, value: float, name: str):
        self.name = name


class GraphReader(fx.Interpreter):
    """Runs a traced graph on values, and finds for each value the node or coefficient to draw.

    Args:
        branch: the node of the sub-layer, or None at the ends of a stack.
        names: of parameters, by their `id`.
    """

    def __init__(self, module: nn.Module, graph: fx.Graph, branch: Node | None, names: Mapping[int, str]):
        super().__init__(module, graph=graph, garbage_collect_values=False)
        self.extra_traceback = False
        self.branch, self.names = branch, names
        self.found: dict[fx.Node, Any] = {}
        self.nodes: list[Node] = []

    def read(self, values: tuple[Tensor, ...], drawn: list[Any]) -> tuple[tuple[Tensor, ...], list[Any]]:
        """The stream after the segment: values, and what is drawn for them."""
        results = self.run(*values, run_branch, lambda states: states, None)
        for node in self.graph.nodes:
            if node.op == "placeholder":
                self.found[node] = drawn.pop(0) if node.target.startswith("h") else node.target
            elif node.op == "output":
                outputs = self.drawn(node.args[0])
            else:
                self.found[node] = self.visit(node)
        return results, outputs if isinstance(outputs, list) else [outputs]

    def visit(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            name = str(node.target).rsplit(".", 1)[-1]
            return Coefficient(name, name)
        operation, arguments = operation_of(node), [self.drawn(a) for a in node.args]
        first = arguments[0]
        if operation == "__call__":
            return self.call_branch(arguments[1:], node.kwargs) if first == "branch" else arguments[1]
        if operation == "getitem" and isinstance(first, list):
            return first[node.args[1]]  # type: ignore[index]
        if node.op == "call_module":
            return self.child(node, arguments)
        if operation in ("stack", "unbind"):
            return first
        if operation == "weighted_sums":
            count = self.env[node].shape[-2]
            return [self.add_node("mix", f"Σ {label_of(first)}", arguments[1]) for _ in range(count)]
        if operation == "squeeze" and isinstance(first, list):
            return first[0]
        if not self.is_state(node):
            return self.coefficient(node, operation, arguments)
        if operation in UNCHANGED:
            return first
        if operation in SIGNS:
            return self.arithmetic(operation, first, arguments[1], node.kwargs.get("alpha", 1))
        return self.add_node("op", operation, states_of(arguments))

    def drawn(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.found[value]
        if isinstance(value, Tensor):
            name = self.names.get(id(value), "constant")
            return Coefficient(name, name)
        return [self.drawn(v) for v in value] if isinstance(value, (list, tuple)) else value

    def is_state(self, node: fx.Node) -> bool:
        value = self.env[node]
        return isinstance(value, Tensor) and tuple(value.shape) == STATE

    def add_node(self, kind: str, label: str, inputs: list[Node]) -> Node:
        self.nodes.append(Node(kind, label, inputs))
        return self.nodes[-1]

    def call_branch(self, inputs: list[Any], options: Mapping[str, Any]) -> list[Any]:
        """The outputs of the branch: states, weights and, for a mode with scores in its stream, scores."""
        assert self.branch is not None
        self.branch.inputs = states_of([inputs, self.drawn(options.get("score_residual", ()))])
        self.nodes.append(self.branch)
        return [self.branch, None, self.add_node("scores", "scores", [self.branch])]

    def child(self, node: fx.Node, arguments: list[Any]) -> Any:
        states, module = states_of(arguments), self.fetch_attr(str(node.target))
        if not self.is_state(node):
            name = str(node.target).rsplit(".", 1)[-1]
            return Coefficient(f"{name}(h)", nearest_name(arguments) or name, states)
        if isinstance(module, nn.Identity):
            return states[0]
        leaf = module_node(module)
        return self.add_node(leaf.kind, leaf.label, states)

    def coefficient(self, node: fx.Node, operation: str, arguments: list[Any]) -> Coefficient:
        if operation == "getitem":
            expression = expression_of(arguments[0])
        elif operation in SIGNS:
            expression = f" {SIGNS[operation]} ".join(expression_of(a) for a in arguments)
        elif operation == "cat":
            expression = ", ".join(nearest_name(a) for a in arguments[0])
            return Coefficient(expression, expression, states_of(arguments))
        else:
            expression = f"{operation}({', '.join(expression_of(a) for a in arguments[:1])})"
        return Coefficient(expression, nearest_name(arguments) or expression, states_of(arguments))

    def arithmetic(self, operation: str, a: Any, b: Any, alpha: Any) -> Node:
        both = isinstance(a, Node) and isinstance(b, Node)
        if both and operation in ("add", "sub"):
            b = self.scaled(self.scaled(b, self.drawn(alpha)), 1 if operation == "add" else -1)
            return self.add_node("add", "", [a, b])
        if both:
            return self.add_node("op", "×" if operation == "mul" else "÷", [a, b])
        if operation == "mul":
            return self.scaled(a, b) if isinstance(a, Node) else self.scaled(b, a)
        sign = SIGNS[operation]
        if isinstance(a, Node):
            return self.add_node("scale", f"{sign} {label_of(b)}", [a])
        return self.add_node("scale", f"{label_of(a)} {sign}", [b])

    def scaled(self, state: Node, factor: Any) -> Node:
        if type(factor) in (int, float) and factor == 1:
            return state
        return self.add_node("scale", f"× {label_of(factor)}", [state])


def run_branch(states: Tensor, score_residual: Any = None) -> tuple[Any, ...]:
    """A sub-layer, also attention whose scores are in the stream."""
    scores = torch.zeros(STATE[0], 2, STATE[1], STATE[1])
    return states + 0.0, None, scores


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


def module_node(module: nn.Module) -> Node:
    label = "LN" if isinstance(module, nn.LayerNorm) else type(module).__name__
    return Node("norm" if isinstance(module, NORMS) else "module", label)


def used(nodes: list[Node], outputs: list[Node]) -> list[Node]:
    """The nodes that the outputs are made of."""
    needed: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.inputs
    return [node for node in nodes if node in needed]
