"""What is drawn of a connection, from its trace.

The branch and child modules are nodes, and so are additions, scales and weighted sums of hidden states. Values of any
other shape than (batch, length, d_model) are coefficients: they appear in the labels of the scales and sums that use
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx, nn

from residual_hf.model.norms import NORM_TYPES
from residual_hf.tracing import operation_of

STATE = (2, 3, 16)  # batch, length, d_model of the traced stack
NORMS = (*NORM_TYPES.values(), nn.RMSNorm)
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
UNCHANGED = {"to", "type_as", "float", "contiguous", "clone"}
LONGEST = 18  # characters of an expression


@dataclass(eq=False)
class Node:
    """One operation: `kind` is input, branch, scores, norm, add, scale, mix (a weighted sum), module or op.

    `inner`, of a branch: kinds and labels of the modules in its slots. Nodes of a `lane` are one above the other.
    """

    kind: str
    label: str = ""
    inputs: "list[Node]" = field(default_factory=list)
    inner: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    lane: int | None = None

    @property
    def is_of_branch(self) -> bool:
        """Whether it is made of the outputs of branches alone."""
        return self.kind == "branch" or (bool(self.inputs) and all(node.is_of_branch for node in self.inputs))


@dataclass
class Coefficient:
    """A value that is not a hidden state: a short expression, its nearest parameter, the states it depends on."""

    expression: str
    nearest: str = ""
    states: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nearest = self.nearest or self.expression
        if len(self.expression) > LONGEST:
            self.expression = self.nearest


class Named(float):
    """A constant of a mode that remembers its name through a trace."""

    name: str

    def __new__(cls, value: float, name: str) -> "Named":
        constant = super().__new__(cls, value)
        constant.name = name
        return constant


class GraphReader(fx.Interpreter):
    """Runs a traced graph on values, and finds for each value the node or coefficient to draw.

    Args:
        stream: what is drawn for the members of the stream.
        branch: the node of the sub-layer.
    """

    def __init__(self, module: nn.Module, graph: fx.Graph, stream: list[Any], branch: Node):
        super().__init__(module, graph=graph)
        self.extra_traceback = False
        self.stream, self.branch = iter(stream), branch
        self.found: dict[fx.Node, Any] = {}
        self.nodes: list[Node] = []  # in the order of the computation
        self.outputs: list[Any] = []  # what is drawn for the stream after it

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.found[n] = self.find(n, value)
        return value

    def find(self, node: fx.Node, value: Any) -> Any:
        name, arguments = str(node.target).rsplit(".", 1)[-1], self.drawn(node.args)
        if node.op == "placeholder":
            return next(self.stream) if name.startswith("h") else name
        if node.op == "output":
            self.outputs = arguments[0]
            return None
        if node.op == "get_attr":
            return Coefficient(name)
        operation, first, states = operation_of(node), arguments[0], states_of(arguments)
        is_state = isinstance(value, Tensor) and tuple(value.shape) == STATE
        if operation == "__call__":
            return self.call_branch(arguments[1:], node.kwargs) if first == "branch" else arguments[1]
        if operation == "getitem" and isinstance(first, list):
            return first[arguments[1]]
        if node.op == "call_module":
            if not is_state:
                return Coefficient(f"{name}(h)", nearest_name(arguments) or name, states)
            module = self.fetch_attr(str(node.target))
            return states[0] if isinstance(module, nn.Identity) else self.add(*kind_and_label(module), states)
        if operation in ("stack", "unbind") or (is_state and operation in UNCHANGED):
            return first
        if operation == "weighted_sums":
            return [self.add("mix", f"Σ {label_of(first)}", arguments[1]) for _ in range(value.shape[-2])]
        if operation == "squeeze" and isinstance(first, list):
            return first[0]
        if not is_state:
            return coefficient(operation, arguments)
        if operation in SIGNS:
            return self.arithmetic(operation, first, arguments[1], self.drawn(node.kwargs.get("alpha", 1)))
        return self.add("op", operation, states)

    def drawn(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.found[value]
        if isinstance(value, Tensor):
            return Coefficient("constant")
        return [self.drawn(v) for v in value] if isinstance(value, (list, tuple)) else value

    def add(self, kind: str, label: str, inputs: list[Node]) -> Node:
        self.nodes.append(Node(kind, label, inputs))
        return self.nodes[-1]

    def call_branch(self, inputs: list[Any], options: Mapping[str, Any]) -> list[Any]:
        """The outputs of the branch: states, weights and, for a mode with scores in its stream, scores."""
        self.branch.inputs = states_of([inputs, self.drawn(options.get("score_residual", ()))])
        self.nodes.append(self.branch)
        return [self.branch, None, self.add("scores", "scores", [self.branch])]

    def arithmetic(self, operation: str, a: Any, b: Any, alpha: Any) -> Node:
        if isinstance(a, Node) and isinstance(b, Node):
            if operation in ("mul", "div"):
                return self.add("op", "×" if operation == "mul" else "÷", [a, b])
            return self.add("add", "", [a, self.scaled(self.scaled(b, alpha), 1 if operation == "add" else -1)])
        state, factor = (a, b) if isinstance(a, Node) else (b, a)
        if operation == "mul":
            return self.scaled(state, factor)
        sign, label = SIGNS[operation], label_of(factor)
        return self.add("scale", f"{sign} {label}" if state is a else f"{label} {sign}", [state])

    def scaled(self, state: Node, factor: Any) -> Node:
        is_one = type(factor) in (int, float) and factor == 1
        return state if is_one else self.add("scale", f"× {label_of(factor)}", [state])


def coefficient(operation: str, arguments: list[Any]) -> Coefficient:
    if operation == "cat":
        return Coefficient(", ".join(map(nearest_name, arguments[0])), states=states_of(arguments))
    if operation in SIGNS:
        expression = f" {SIGNS[operation]} ".join(map(expression_of, arguments))
    else:
        inside = expression_of(arguments[0])
        expression = inside if operation == "getitem" else f"{operation}({inside})"
    return Coefficient(expression, nearest_name(arguments), states_of(arguments))


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
    expression = expression_of(value)
    is_of_states = isinstance(value, Coefficient) and value.states and "(h)" not in expression
    return f"{expression}(h)" if is_of_states else expression


def kind_and_label(module: nn.Module) -> tuple[str, str]:
    label = "LN" if isinstance(module, nn.LayerNorm) else type(module).__name__
    return "norm" if isinstance(module, NORMS) else "module", label
