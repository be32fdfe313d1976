# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The wiring of a stack: its parts, traced one by one, and which of its layers are alike."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from residual_hf.base.errors import InputError
from residual_hf.model import catalogue as _  # noqa: F401  registers the modes
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import ResidualConnection, build_connections, get_ln_mode

from .tracing import STATE, Node, Part, PartBuilder, TracedPart, TracedSublayer, module_node, name_constants

DEPTH = 4
FEW = {"streams": 2}  # smaller values of options that only make a diagram wider


@dataclass
class Block:
    """Consecutive layers that are wired alike: the parts of one of them."""

    title: str
    parts: list[Part]
    layers: int


@dataclass
class Wiring:
    """A stack: how its stream begins, its layers, how it ends."""

    name: str
    begin: Part
    blocks: list[Block]
    end: Part
    note: str = ""

    @property
    def parts(self) -> Iterator[Part]:
        yield self.begin
        for block in self.blocks:
            yield from block.parts
        yield self.end


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
    config = ResidualConfig(
        ln_mode=name,
        ln_mode_options=few,
        d_model=STATE[2],
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        vocab_size=10,
    )
    try:
        with torch.no_grad():
            wiring = trace(config, mode, stack, depth)
    except (fx.proxy.TraceError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(f"ln_mode {name!r}: torch.fx cannot trace {mode.__name__}.forward: {error}") from error
    if depth > 2 and len(wiring.blocks) > 2:
        return trace_stack(name, stack, 2)
    wiring.note = ", ".join(f"{option} = {value}" for option, value in few.items())
    return wiring


def trace(config: ResidualConfig, mode: type[ResidualConnection], stack: str, depth: int) -> Wiring:
    boundary = mode.Boundary(config, stack)
    name_constants(boundary)
    stream: tuple[Tensor, ...] = (torch.randn(STATE),)

    def build(title: str, run: Callable, *modules: nn.Module, inner: dict[str, list[Node]] | None = None) -> Part:
        nonlocal stream
        builder = PartBuilder(TracedPart(run, len(stream), *modules), title, stream, inner or {})
        part = builder.build()
        part.names = stream_names(mode, len(part.inputs))
        stream = builder.results
        return part

    begin = build("begin", lambda stream: boundary.begin(*stream), boundary)
    layers: list[list[Part]] = []
    for layer in range(depth):
        connections = build_connections(config, stack, layer)
        parts = []
        for connection in connections:
            name_constants(connection)
            inner = {
                slot: [module_node(m) for m in (module if isinstance(module, nn.Sequential) else [module])]
                for slot, module in mode.inner_modules(config, connection.place).items()
            }
            sublayer = TracedSublayer()
            title = connection.place.kind.replace("_", "-")
            parts.append(build(title, partial(join, connection, sublayer), sublayer, *connections, inner=inner))
        layers.append(parts)
    end = build("end", lambda stream: (boundary.end(stream),), boundary)
    return Wiring(mode.name, begin, group(layers), end)


def join(connection: ResidualConnection, sublayer: TracedSublayer, stream: tuple[Tensor, ...]) -> Any:
    return connection(stream, sublayer)


def group(layers: list[list[Part]]) -> list[Block]:
    """Neighboring layers that are wired alike, as blocks."""
    blocks: list[Block] = []
    first = 0
    for i, layer in enumerate(layers):
        following = layers[i + 1] if i + 1 < len(layers) else None
        if following is None or [p.signature() for p in following] != [p.signature() for p in layer]:
            numbers = f"layer {i + 1}" if i == first else f"layers {first + 1} to {i + 1}"
            title = "each layer" if i + 1 - first == len(layers) else f"{numbers} of {len(layers)}"
            blocks.append(Block(title, layer, layers=i + 1 - first))
            first = i + 1
    return blocks
