"""Wiring diagrams of residual connections as SVG, from a trace of their classes; Graphviz places nodes and lines.

Streams run upwards. One file serves light and dark pages: lines and text have the color of the surrounding text, fills
are translucent.
"""

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import count
from typing import Any

from residual_hf.base.errors import InputError, requires

from .segments import Node, Segment
from .wiring import Block, Wiring, trace_stack

with requires("diagrams"):
    import graphviz

GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "omega": "ω", "lambda": "λ"}
HEADS = ("query", "key", "value")
STEPS = {  # what a branch does, in order; the slots that a mode may fill are in brackets
    "feed-forward": ("W₁", "[pre_activation]", "activation", "[inner]", "W₂", "[output]"),
    "attention": ("softmax", "[heads]", "W_O", "[output]"),
}
SHAPES: dict[str, dict[str, str]] = {
    "branch": {"fillcolor": "#4a90d933", "color": "#4a90d9"},
    "norm": {"fillcolor": "#e3a00838", "color": "#d99a00"},
    "scale": {"fillcolor": "#3fb9502e", "color": "#3fa34d", "height": "0.24"},
    "add": {"fillcolor": "#8b949e26", "shape": "circle", "width": "0.26", "fixedsize": "true", "style": "filled"},
    "input": {"shape": "plaintext", "style": "solid", "fontsize": "11", "height": "0.1", "margin": "0.02"},
}
OTHER = {"fillcolor": "#a371f733", "color": "#a371f7"}
FONT = {"fontname": "Helvetica,Arial,sans-serif"}
GRAPH = {"rankdir": "BT", "newrank": "true", "ranksep": "0.22", "nodesep": "0.28", "fontsize": "11", **FONT}
BOX = {"shape": "box", "style": "rounded,filled", "fontsize": "12", "height": "0.3", "width": "0.3", **FONT}
PANEL = {"style": "rounded,filled", "color": "#8b949e59", "fillcolor": "#8b949e17", "labelloc": "b", "labeljust": "l"}
STYLE = """
.wiring{color:#1f2328;background:#fff}
@media(prefers-color-scheme:dark){.wiring{color:#e6edf3;background:#0d1117}}
.wiring text{fill:currentColor}
.wiring .edge path,.wiring .add *{stroke:currentColor}
.wiring .edge polygon{fill:currentColor;stroke:currentColor}
"""


def draw_modes(names: Sequence[str], stack: str = "encoder") -> str:
    """Wiring diagrams of one or several modes next to each other, as the text of an SVG file.

    Args:
        names: registered modes, including your own.
        stack: `encoder` or `decoder`.

    Raises `ValueError` for an unknown mode, and `InputError` for a mode that cannot be traced or without Graphviz.
    """
    return draw(*(trace_stack(name, stack) for name in names))


def draw(*wirings: Wiring) -> str:
    """Stacks next to each other, with their names if there are several."""
    return render(dot_source(*wirings), f"Wiring of {', '.join(wiring.name for wiring in wirings)}")


def render(source: str, title: str) -> str:
    """An SVG file of a graph in the language of Graphviz, which the file contains."""
    try:
        svg = graphviz.Source(source).pipe(format="svg", encoding="utf-8")
    except graphviz.ExecutableNotFound as error:
        raise InputError("diagrams need Graphviz: no program `dot` found; apt-get install graphviz") from error
    drawn = re.sub(r"<title>.*?</title>\n|<!--.*?-->\n| id=\"\w+\"", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    head = f"<title>{escape(title)}</title><metadata>{escape(source)}</metadata><style>{STYLE}</style>"
    drawn = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', drawn)
    return re.sub(r"<svg ([^>]*)>", lambda m: f'<svg class="wiring" role="img" {m[1]}>{head}', drawn, count=1)


def dot_source(*wirings: Wiring) -> str:
    """The graph of stacks in the language of Graphviz."""
    graph = graphviz.Digraph(graph_attr=GRAPH, node_attr=BOX, edge_attr={"arrowsize": "0.6"})
    graph.attr(bgcolor="transparent")
    for i, wiring in enumerate(wirings):
        with graph.subgraph(name=f"cluster{i}") as part:
            title = f"<<b>{escape(wiring.name)}</b>>" if len(wirings) > 1 else wiring.note
            part.attr(label=title, pencolor="none", labelloc="t")
            Drawing(graph, part, f"m{i}_").draw_stack(wiring)
    return graph.source


class Drawing:
    """Nodes and lines of one stack: nodes in `part` of a graph and its panels, lines in the graph."""

    def __init__(self, graph: Any, part: Any, prefix: str):
        self.graph, self.part, self.prefix = graph, part, prefix
        self.number = count()

    def draw_stack(self, wiring: Wiring) -> None:
        embeddings = Wire(self.add(self.part, Node("input", "embeddings"), lane=0), lane=0)
        stream = self.draw_segment(self.part, wiring.begin, [embeddings])
        for block in wiring.blocks:
            stream = [replace(wire, is_read=False) for wire in self.draw_block(block, stream)]
        (result,) = self.draw_segment(self.part, wiring.end, stream)
        self.connect(result, self.add(self.part, Node("input", "output"), lane=0))
        for node, wire in zip(wiring.end.inputs, stream, strict=True):
            is_unread = not wire.is_read and node not in wiring.end.outputs
            if is_unread and wire.panel is None and wiring.blocks[-1].layers > 1:
                self.connect(wire, self.add(self.part, Node("input", "next layer")))

    def draw_block(self, block: Block, stream: "list[Wire]") -> "list[Wire]":
        with self.part.subgraph(name=f"cluster{self.prefix}{next(self.number)}") as panel:
            panel.attr(label=block.title, **PANEL)
            for i, wire in enumerate(stream):
                wire.name, wire.panel = (block.segments[0].names[i : i + 1] or [f"h[{i}]"])[0], panel
            for segment in block.segments:
                stream = self.draw_segment(panel, segment, stream)
        return stream

    def draw_segment(self, panel: Any, segment: Segment, stream: "list[Wire]") -> "list[Wire]":
        """Draw the nodes of a segment; returns its outputs."""
        wires = dict(zip(segment.inputs, stream, strict=True))
        lanes = find_lanes(segment)
        sums: dict[Any, str] = {}  # those of the same values by the rows of a matrix are one box
        for node in segment.nodes:
            if node.kind == "scores":
                wires[node] = Wire(wires[node.inputs[0]].source, dashed=True)
                continue
            key = (node.label, *map(id, node.inputs)) if node.kind == "mix" else node
            lane = lanes.get(node)
            if key not in sums:
                sums[key] = self.add(panel, node, lane)
                for source in node.inputs:
                    self.connect(wires[source], sums[key], lane)
            wires[node] = Wire(sums[key], lane=lane)
        return [copy.copy(wires[node]) for node in segment.outputs]

    def add(self, panel: Any, node: Node, lane: int | None = None) -> str:
        name = f"{self.prefix}{next(self.number)}"
        options = {"label": "+" if node.kind == "add" else label_of(node), "class": node.kind}
        if lane is not None:
            options["group"] = f"{self.prefix}lane{lane}"
        panel.node(name, **SHAPES.get(node.kind, OTHER), **options)
        return name

    def connect(self, wire: "Wire", target: str, lane: int | None = None) -> None:
        if wire.panel is not None:  # the first reader in a panel: the wire gets its name
            with wire.panel.subgraph(name=f"entry_{wire.panel.name}", graph_attr={"rank": "same"}) as entry:
                name = self.add(entry, Node("input", wire.name), wire.lane)
            wire.panel = None
            self.line(wire, name, arrowhead="none", weight="9")
            wire.source = name
        wire.is_read = True
        self.line(wire, target, weight="9" if lane is not None and lane == wire.lane else "1")

    def line(self, wire: "Wire", target: str, **options: str) -> None:
        self.graph.edge(wire.source, target, style="dashed" if wire.dashed else "solid", **options)


@dataclass
class Wire:
    """A value on its way: the node that it comes from, and its name where it enters a panel."""

    source: str
    dashed: bool = False  # attention scores
    lane: int | None = None
    name: str = ""
    panel: Any = None
    is_read: bool = False


def find_lanes(segment: Segment) -> dict[Node, int]:
    """For nodes on the way of a member of the stream its number, so that they are one above the other."""
    pure: set[Node] = set()  # made of the output of the branch alone
    for node in segment.nodes:
        if node.kind == "branch" or (node.inputs and pure.issuperset(node.inputs)):
            pure.add(node)
    lanes: dict[Node, int] = {}
    for i, output in enumerate(segment.outputs):
        waiting = [output]
        while waiting and waiting[0] in segment.nodes and waiting[0] not in lanes and waiting[0] not in pure:
            lanes[waiting[0]] = i
            waiting = [node for node in waiting[0].inputs if node not in pure]
    return lanes


def label_of(node: Node) -> str:
    """The label of a node; for a branch whose slots a mode has filled, a table of its steps."""
    text = re.sub("[a-z]+", lambda word: GREEK.get(word[0], word[0]), node.label)
    steps = list(inside(node)) if node.inner else []
    if not steps:
        return text
    fills = ["transparent" if s.kind == "step" else SHAPES.get(s.kind, OTHER)["fillcolor"] for s in steps]
    rows = [f'<tr><td bgcolor="{fill}">{escape(s.label)}</td></tr>' for s, fill in zip(steps, fills, strict=True)]
    return f'<<table border="0" cellspacing="3">{"".join(rows[::-1])}<tr><td><b>{escape(text)}</b></td></tr></table>>'


def inside(branch: Node) -> Iterator[Node]:
    """The steps of a branch, in order."""
    heads: dict[tuple[str, str], list[str]] = {}
    for slot in HEADS:
        for module in branch.inner.get(slot, []):
            heads.setdefault((module.kind, module.label), []).append(slot[0])
    yield from (Node(kind, f"{label} on {', '.join(on)}") for (kind, label), on in heads.items())
    for step in STEPS["feed-forward" if branch.label == "feed-forward" else "attention"]:
        slot = step.strip("[]")
        yield from branch.inner.get(slot, []) if step != slot else [Node("step", step)]
