"""The wiring of a stack: its connections, traced one by one, and which of its layers are alike."""

import inspect
import re
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import groupby
from typing import Any

import torch
from nodes import STATE, GraphReader, Named, Node, kind_and_label
from torch import Tensor, nn

from residual_hf.base.errors import input_errors
from residual_hf.model import catalogue as _  # noqa: F401  registers the modes
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import STACKS, ResidualConnection, build_connections, get_ln_mode
from residual_hf.tracing import Untraceable, trace

DEPTH = 4
FEW = {"streams": 2}  # smaller values of options that only make a diagram wider


@dataclass(eq=False)
class Part:
    """What happens to the stream in consecutive layers that are alike, or, without a title, at an end of the stack."""

    inputs: list[Node]
    nodes: list[Node]  # in the order of the computation, inputs left out
    outputs: list[Node]
    title: str = ""
    layers: int = 1

    def signature(self) -> Any:
        """Equal for layers that are drawn alike."""
        index = {node: i for i, node in enumerate([*self.inputs, *self.nodes])}
        nodes = [(n.kind, n.label, n.inner, [index[i] for i in n.inputs]) for n in self.nodes]
        return len(self.inputs), nodes, [index[node] for node in self.outputs]


@dataclass
class Wiring:
    """A stack of a mode: its beginning, its layers and its end."""

    name: str
    parts: list[Part]
    note: str = ""


def trace_stack(name: str, stack: str = "encoder", depth: int = DEPTH) -> Wiring:
    """The wiring of a stack of `depth` layers; neighbors that are alike are one part.

    Modes whose layers all differ, because each reads what the layers before it left, are shown with two layers.
    Raises `InputError` for a mode that `torch.fx` cannot trace, such as one that branches on the values of tensors.
    """
    mode = get_ln_mode(name)
    few = {f.name: FEW[f.name] for f in fields(mode.Options) if f.name in FEW}
    sizes = {"layers": depth, "attention_heads": 2, "ffn_dim": 32}
    stacks = {f"{side}_{field}": size for side in STACKS for field, size in sizes.items()}
    config = ResidualConfig(ln_mode=name, ln_mode_options=few, d_model=STATE[2], vocab_size=10, **stacks)
    prefix = f"ln_mode {name!r}: torch.fx cannot trace {mode.__name__}.forward: "
    with input_errors(prefix, Untraceable, TypeError, AttributeError, RuntimeError), torch.no_grad():
        parts = StackReader(config.of(stack), mode).read(depth)
    if depth > 2 and len(parts) > 4:
        return trace_stack(name, stack, 2)
    return Wiring(name, parts, ", ".join(f"{option} = {value}" for option, value in few.items()))


class StackReader:
    """Reads a stack from its beginning to its end; `values` and `drawn` are the stream between two connections."""

    def __init__(self, config: Any, mode: type[ResidualConnection]):
        self.config, self.mode = config, mode
        self.values: Any = (torch.randn(STATE),)
        self.drawn: list[Any] = [Node("input")]

    def read(self, depth: int) -> list[Part]:
        boundary = self.mode.Boundary(self.config)
        begin = self.part((boundary, Node("branch"), lambda module, stream, sublayer: module.begin(*stream)))
        layers = [self.layer(i) for i in range(depth)]
        end = self.part((boundary, Node("branch"), lambda module, stream, sublayer: (module.end(stream),)))
        return [begin, *group(layers), end]

    def layer(self, layer: int) -> Part:
        connections: list[tuple[nn.Module, Node, Any]] = []
        for connection in build_connections(self.config, layer):
            inner = {
                slot: [*map(kind_and_label, module if isinstance(module, nn.Sequential) else [module])]
                for slot, module in self.mode.inner_modules(self.config, connection.place).items()
            }
            branch = Node("branch", connection.place.kind.replace("_", "-"), inner=inner)
            connections.append((connection, branch, None))
        return self.part(*connections)

    def part(self, *modules: tuple[nn.Module, Node, Any]) -> Part:
        """The stream through modules, each with the node of its branch and what is traced in place of `forward`."""
        names = iter(stream_names(self.mode, len(self.drawn)))
        self.drawn = [Node("input", next(names)) if isinstance(member, Node) else member for member in self.drawn]
        inputs, nodes = states_in(self.drawn), []
        for module, branch, run in modules:
            name_constants(module)
            reader = GraphReader(module, trace(module, len(self.values), run), self.drawn, branch)
            self.values = reader.run(*self.values, run_branch, lambda states: states, None)
            self.drawn = reader.outputs
            set_lanes(reader.nodes, self.drawn)
            nodes += reader.nodes
        return Part(inputs, nodes, states_in(self.drawn))


def states_in(stream: list[Any]) -> list[Node]:
    return [member for member in stream if isinstance(member, Node)]


def run_branch(states: Tensor, score_residual: Any = None) -> tuple[Any, ...]:
    """A sub-layer, also attention whose scores are in the stream."""
    return states + 0.0, None, torch.zeros(STATE[0], 2, STATE[1], STATE[1])


def name_constants(module: nn.Module) -> None:
    def named(values: Any) -> dict[str, Any]:
        return {name: Named(value, name) for name, value in vars(values).items() if type(value) is float}

    vars(module).update(named(module))
    options = vars(module).get("options")
    if is_dataclass(options) and not isinstance(options, type):
        vars(module)["options"] = replace(options, **named(options))


def set_lanes(nodes: list[Node], stream: list[Any]) -> None:
    """Number the nodes on the way of each member of the stream."""
    for lane, node in enumerate(states_in(stream)):
        way: Node | None = node
        while way in nodes and way.lane is None and not way.is_of_branch:
            way.lane = lane
            way = next((n for n in way.inputs if not n.is_of_branch), None)


def group(layers: list[Part]) -> list[Part]:
    """Neighboring layers that are wired alike, as one part."""
    parts: list[Part] = []
    last = 0
    for _signature, neighbors in groupby(layers, key=Part.signature):
        alike = list(neighbors)
        first, last = last + 1, last + len(alike)
        numbers = f"layer {last}" if first == last else f"layers {first} to {last}"
        title = "each layer" if len(alike) == len(layers) else f"{numbers} of {len(layers)}"
        parts.append(replace(alike[-1], title=title, layers=len(alike)))
    return parts


def stream_names(mode: type[ResidualConnection], size: int) -> list[str]:
    """Names of the members of the stream where `forward` unpacks it, as in `x, r = stream`; otherwise `h[0]`, ..."""
    names: list[str] = []
    with suppress(OSError):  # a class of an interactive session
        unpacking = r"(?m)^ +\(?([\w*]+,[\w, *]*)\)? = (?=.*\bstream\b)(?!.*\w\()"
        line = re.search(unpacking, inspect.getsource(mode.forward))
        for name in re.findall(r"\*?\w+", line[1]) if line else []:
            names += [f"{name[1:]}[{i}]" for i in range(size)] if name.startswith("*") else [name]
    return [*names, *(f"h[{i}]" for i in range(len(names), size))][:size]
