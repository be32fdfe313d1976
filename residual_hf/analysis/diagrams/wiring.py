"""The wiring of a stack: its segments, traced one by one, and which of its layers are alike."""

import ast
import inspect
import textwrap
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from residual_hf.base.errors import input_errors
from residual_hf.model import catalogue as _  # noqa: F401  registers the modes
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import STACKS, ResidualConnection, build_connections, get_ln_mode
from residual_hf.tracing import Untraceable, trace

from .segments import STATE, Coefficient, GraphReader, Named, Node, Segment, module_node, used

DEPTH = 4
FEW = {"streams": 2}  # smaller values of options that only make a diagram wider


@dataclass
class Block:
    """Consecutive layers that are wired alike: the segments of one of them."""

    title: str
    segments: list[Segment]
    layers: int


@dataclass
class Wiring:
    """A stack: how its stream begins, its layers, how it ends."""

    name: str
    begin: Segment
    blocks: list[Block]
    end: Segment
    note: str = ""


def stream_names(mode: type[ResidualConnection], size: int) -> list[str]:
    """Names of the members of the stream where `forward` unpacks it, as in `x, r = stream`; otherwise none."""
    try:
        source = textwrap.dedent(inspect.getsource(mode.forward))
    except OSError:  # a class of an interactive session
        return []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
            continue
        inside = list(ast.walk(node.value))
        if any(isinstance(n, ast.Call) for n in inside) or "stream" not in {getattr(n, "id", "") for n in inside}:
            continue
        names = []
        for target in node.targets[0].elts:
            if isinstance(target, ast.Starred):
                names += [f"{target.value.id}[{i}]" for i in range(size)]  # type: ignore[attr-defined]
            else:
                names.append(target.id)  # type: ignore[attr-defined]
        return names[:size]
    return []


def trace_stack(name: str, stack: str = "encoder", depth: int = DEPTH) -> Wiring:
    """The wiring of a stack of `depth` layers; neighbors that are alike are one block.

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
        wiring = StackReader(config, mode, stack).read(depth)
    if depth > 2 and len(wiring.blocks) > 2:
        return trace_stack(name, stack, 2)
    wiring.note = ", ".join(f"{option} = {value}" for option, value in few.items())
    return wiring


class StackReader:
    """Reads a stack from begin to end; `values` and `drawn` are the stream between two segments."""

    def __init__(self, config: ResidualConfig, mode: type[ResidualConnection], stack: str):
        self.config, self.mode = config.of(stack), mode
        self.values: Any = (torch.randn(STATE),)
        self.drawn: list[Any] = [Node("input")]

    def read(self, depth: int) -> Wiring:
        boundary: Any = self.mode.Boundary(self.config)
        begin = self.segment("begin", boundary, run=lambda module, stream, sublayer: module.begin(*stream))
        layers = [self.layer(i) for i in range(depth)]
        end = self.segment("end", boundary, run=lambda module, stream, sublayer: (module.end(stream),))
        return Wiring(self.mode.name, begin, group(layers), end)

    def layer(self, layer: int) -> list[Segment]:
        connections = build_connections(self.config, layer)
        names = {id(p): name.rsplit(".", 1)[-1] for c in connections for name, p in c.named_parameters()}
        segments = []
        for connection in connections:
            inner = {
                slot: [module_node(m) for m in (module if isinstance(module, nn.Sequential) else [module])]
                for slot, module in self.mode.inner_modules(self.config, connection.place).items()
            }
            branch = Node("branch", connection.place.kind.replace("_", "-"), inner=inner)
            segments.append(self.segment(branch.label, connection, branch, names))
        return segments

    def segment(
        self, title: str, module: nn.Module, branch: Node | None = None, names: Any = None, run: Any = None
    ) -> Segment:
        name_constants(module)
        reader = GraphReader(module, trace(module, len(self.values), run), branch, names or {})
        stream = [member if isinstance(member, Coefficient) else Node("input") for member in self.drawn]
        inputs = [member for member in stream if isinstance(member, Node)]
        self.values, self.drawn = reader.read(self.values, stream)
        outputs = [member for member in self.drawn if isinstance(member, Node)]
        return Segment(title, inputs, used(reader.nodes, outputs), outputs, stream_names(self.mode, len(inputs)))


def name_constants(module: nn.Module) -> None:
    for name, value in list(vars(module).items()):
        if type(value) is float:
            vars(module)[name] = Named(value, name)
        elif name == "options" and is_dataclass(value) and not isinstance(value, type):
            floats = {f.name: getattr(value, f.name) for f in fields(value)}
            changed = {name: Named(v, name) for name, v in floats.items() if type(v) is float}
            vars(module)[name] = replace(value, **changed)


def group(layers: list[list[Segment]]) -> list[Block]:
    """Neighboring layers that are wired alike, as blocks."""
    blocks: list[Block] = []
    first = 0
    for i, layer in enumerate(layers):
        following = layers[i + 1] if i + 1 < len(layers) else None
        if following is None or [s.signature() for s in following] != [s.signature() for s in layer]:
            numbers = f"layer {i + 1}" if i == first else f"layers {first + 1} to {i + 1}"
            title = "each layer" if i + 1 - first == len(layers) else f"{numbers} of {len(layers)}"
            blocks.append(Block(title, layer, layers=i + 1 - first))
            first = i + 1
    return blocks
