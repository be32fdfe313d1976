"""Draw the wiring of residual connections as SVG, from a trace of their classes; Graphviz places nodes and lines.

python examples/diagrams/draw.py b2t resi_dual --stack decoder --output-dir diagrams

Streams run upwards. One file serves light and dark pages: lines and text have the color of the surrounding text, fills
are translucent.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from nodes import Node
from wiring import Part, Wiring, trace_stack

from residual_hf.base.errors import InputError, input_errors, requires
from residual_hf.base.files import check_output_file, write_atomically
from residual_hf.cli import main, script_parser
from residual_hf.model.connections import STACKS

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
    "step": {"fillcolor": "transparent"},  # in the table of a branch
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

    The file also contains the graph in the language of Graphviz. Raises `ValueError` for an unknown mode, and
    `InputError` for a mode that cannot be traced or without Graphviz.
    """
    source = dot_source([trace_stack(name, stack) for name in names])
    from graphviz import ExecutableNotFound, Source

    try:
        svg = Source(source).pipe(format="svg", encoding="utf-8")
    except ExecutableNotFound as error:
        raise InputError("diagrams need Graphviz: no program `dot` found; apt-get install graphviz") from error
    drawn = re.sub(r"<title>.*?</title>\n|<!--.*?-->\n| id=\"\w+\"", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    drawn = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', drawn)
    title = escape(f"Wiring of {', '.join(names)}")
    head = f"<title>{title}</title><metadata>{escape(source)}</metadata><style>{STYLE}</style>"
    return re.sub(r"<svg ([^>]*)>", lambda m: f'<svg class="wiring" role="img" {m[1]}>{head}', drawn, count=1)


def dot_source(wirings: Sequence[Wiring]) -> str:
    """The graph of stacks in the language of Graphviz, with their names if there are several."""
    with requires("figures"):
        from graphviz import Digraph
    graph = Digraph(graph_attr=GRAPH, node_attr=BOX, edge_attr={"arrowsize": "0.6"})
    graph.attr(bgcolor="transparent")
    for i, wiring in enumerate(wirings):
        with graph.subgraph(name=f"cluster{i}") as stack:
            title = f"<<b>{escape(wiring.name)}</b>>" if len(wirings) > 1 else wiring.note
            stack.attr(label=title, pencolor="none", labelloc="t")
            Drawing(graph, stack, f"m{i}_").draw(wiring)
    return graph.source


@dataclass
class Wire:
    """A value on its way: the node that it comes from, and its name where it enters a panel."""

    source: str
    lane: int | None = None
    is_dashed: bool = False  # attention scores
    name: str = ""
    panel: Any = None
    is_read: bool = False


class Drawing:
    """Nodes and lines of one stack: nodes in a part of a graph and its panels, lines in the graph."""

    def __init__(self, graph: Any, stack: Any, prefix: str):
        self.graph, self.stack, self.prefix = graph, stack, prefix
        self.number = count()

    def draw(self, wiring: Wiring) -> None:
        stream = [self.add(self.stack, Node("input", "embeddings", lane=0))]
        for part in wiring.parts:
            before, stream = stream, self.draw_part(part, stream)
        self.connect(stream[0], self.add(self.stack, Node("input", "output", lane=0)), is_straight=False)
        *_, layer, end = wiring.parts
        for node, wire in zip(end.inputs, before, strict=True):
            is_unread = not wire.is_read and node not in end.outputs
            if is_unread and wire.panel is None and layer.layers > 1:
                self.connect(wire, self.add(self.stack, Node("input", "next layer")))

    def draw_part(self, part: Part, stream: list[Wire]) -> list[Wire]:
        """Draw the nodes of a part, in a panel if it has a title; returns its outputs."""
        wires = dict(zip(part.inputs, stream, strict=True))
        box = self.stack.subgraph(name=f"cluster{self.prefix}{next(self.number)}") if part.title else None
        with box or nullcontext(self.stack) as panel:
            if box:
                panel.attr(label=part.title, **PANEL)
                for node, wire in wires.items():
                    wire.name, wire.panel = node.label, panel
            sums: dict[Any, Wire] = {}  # those of the same values by the rows of a matrix are one box
            for node in part.nodes:
                if node.kind == "scores":
                    wires[node] = Wire(wires[node.inputs[0]].source, is_dashed=True)
                    continue
                key = (node.label, *map(id, node.inputs)) if node.kind == "mix" else node
                if key not in sums:
                    sums[key] = self.add(panel, node)
                    for source in node.inputs:
                        self.connect(wires[source], sums[key])
                wires[node] = replace(sums[key], lane=node.lane)
        return [replace(wires[node], is_read=False) for node in part.outputs]

    def add(self, panel: Any, node: Node) -> Wire:
        name = f"{self.prefix}{next(self.number)}"
        options = {"label": "+" if node.kind == "add" else label_of(node), "class": node.kind}
        if node.lane is not None:
            options["group"] = f"{self.prefix}lane{node.lane}"
        panel.node(name, **SHAPES.get(node.kind, OTHER), **options)
        return Wire(name, node.lane)

    def connect(self, wire: Wire, target: Wire, is_straight: bool = True) -> None:
        if wire.panel is not None:  # the first reader in a panel: the wire gets its name
            with wire.panel.subgraph(name=f"entry_{wire.panel.name}", graph_attr={"rank": "same"}) as entry:
                named = self.add(entry, Node("input", wire.name, lane=wire.lane))
            self.line(wire, named, arrowhead="none", weight="9")
            wire.panel, wire.source = None, named.source
        wire.is_read = True
        self.line(wire, target, weight="9" if is_straight and None is not wire.lane == target.lane else "1")

    def line(self, wire: Wire, target: Wire, **options: str) -> None:
        self.graph.edge(wire.source, target.source, style="dashed" if wire.is_dashed else "solid", **options)


def label_of(node: Node) -> str:
    """The label of a node; for a branch whose slots a mode has filled, a table of its steps."""
    text = re.sub("[a-z]+", lambda word: GREEK.get(word[0], word[0]), node.label)
    if not node.inner:
        return text
    rows = [
        f'<tr><td bgcolor="{SHAPES.get(kind, OTHER)["fillcolor"]}">{escape(label)}</td></tr>'
        for kind, label in reversed(steps_of(node))
    ]
    return f'<<table border="0" cellspacing="3">{"".join(rows)}<tr><td><b>{escape(text)}</b></td></tr></table>>'


def steps_of(branch: Node) -> list[tuple[str, str]]:
    """Kinds and labels of the steps of a branch, in order."""
    heads: dict[tuple[str, str], list[str]] = {}
    for slot in HEADS:
        for module in branch.inner.get(slot, []):
            heads.setdefault(module, []).append(slot[0])
    steps = [(kind, f"{label} on {', '.join(on)}") for (kind, label), on in heads.items()]
    for step in STEPS.get(branch.label, STEPS["attention"]):
        slot = step.strip("[]")
        steps += branch.inner.get(slot, []) if step != slot else [("step", step)]
    return steps


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="name", help="modes to draw next to each other")
    parser.add_argument("--stack", choices=STACKS, default="encoder", help="default: encoder")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder for NAME-NAME-STACK.svg")
    parser.add_argument("--overwrite", action="store_true", help="replace existing output")


def run(options: argparse.Namespace) -> None:
    file = options.output_dir / f"{'-'.join([*options.names, options.stack])}.svg"
    with input_errors("", ValueError):
        svg = draw_modes(options.names, options.stack)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    check_output_file(file, overwrite=options.overwrite, field="--output-dir")
    write_atomically(file, svg)
    print(file)


if __name__ == "__main__":
    sys.exit(main(parser=script_parser(__doc__, add_options, run)))
