# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Shapes of a wiring diagram as SVG text: boxes, lines with rounded corners, arrows, labels.

One file serves light and dark pages: lines and text have the color of the surrounding text, fills are translucent.
"""

from __future__ import annotations

import re
from html import escape

from .tracing import Node

Point = tuple[float, float]

CORNER, MARGIN = 6.0, 8.0
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "omega": "ω", "lambda": "λ"}
HEADS = ("query", "key", "value")
STEPS = {  # what a branch does, in order; the slots that a mode may fill are in brackets
    "feed-forward": ("W₁", "[pre_activation]", "activation", "[inner]", "W₂", "[output]"),
    "attention": ("softmax", "[heads]", "W_O", "[output]"),
}
STYLE = """
.wiring{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif;color:#1f2328}
.wiring .page{fill:#fff}
@media(prefers-color-scheme:dark){.wiring{color:#e6edf3}.wiring .page{fill:#0d1117}}
.wiring text{fill:currentColor;text-anchor:middle;dominant-baseline:central}
.wiring path{fill:none;stroke:currentColor;stroke-width:1.4}
.wiring .dashed{stroke-dasharray:4 3}
.wiring .dot,.wiring path.arrow{fill:currentColor;stroke:none}
.wiring rect,.wiring circle{stroke-width:1.4}
.wiring .panel{fill:#8b949e17;stroke:#8b949e59;stroke-width:1}
.wiring .branch{fill:#4a90d933;stroke:#4a90d9}
.wiring .norm{fill:#e3a00838;stroke:#d99a00}
.wiring .add{fill:#8b949e26;stroke:currentColor}
.wiring .scale{fill:#3fb9502e;stroke:#3fa34d}
.wiring .mix,.wiring .module,.wiring .op{fill:#a371f733;stroke:#a371f7}
.wiring .small{font-size:11px;opacity:.8}
.wiring .name{font-size:11px;font-style:italic;text-anchor:start}
.wiring .start{text-anchor:start}
.wiring .title{font-weight:600;font-size:14px}
"""


def document(shapes: list[str], width: float, height: float, title: str) -> str:
    """An SVG file: shapes on a page of the background that suits the color scheme."""
    left, top, width, height = -MARGIN, -MARGIN, width + 2 * MARGIN, height + 2 * MARGIN
    page = f'<rect class="page" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="wiring" viewBox="{left:g} {top:g} {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style>{page}{''.join(shapes)}</svg>\n"
    )


def text(x: float, y: float, content: str, style: str = "") -> str:
    content = re.sub("[a-z]+", lambda word: GREEK.get(word[0], word[0]), content)
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(content)}</text>'


def text_width(content: str) -> float:
    return 7.0 * len(content)


def box(style: str, x: float, y: float, width: float, height: float, corner: float = 4.0) -> str:
    """A box around (x, y)."""
    return (
        f'<rect class="{style}" x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" '
        f'height="{height:g}" rx="{corner:g}"/>'
    )


def dot(x: float, y: float) -> str:
    return f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="3"/>'


def line(points: list[Point], dashed: bool = False) -> str:
    """A line along points, its corners rounded."""
    path = f"M{points[0][0]:g} {points[0][1]:g}"
    for before, (x, y), after in zip(points, points[1:], points[2:], strict=False):
        (ax, ay), (bx, by) = toward((x, y), before), toward((x, y), after)
        path += f"L{ax:g} {ay:g}Q{x:g} {y:g} {bx:g} {by:g}"
    x, y = points[-1]
    return f'<path class="{"dashed" if dashed else "line"}" d="{path}L{x:g} {y:g}"/>'


def toward(corner: Point, end: Point) -> Point:
    """Where the rounding of a corner ends on the way to the next one."""
    dx, dy = end[0] - corner[0], end[1] - corner[1]
    share = min(1.0, CORNER / max(abs(dx) + abs(dy), 1e-9))
    return corner[0] + share * dx, corner[1] + share * dy


def arrow(before: Point, tip: Point) -> str:
    """The head of an arrow that arrives from `before`, upwards or from a side."""
    x, y = tip
    vertical = abs(before[0] - x) < 0.1
    sides = "l-3.5 7h7z" if vertical else f"l{-7 if before[0] < x else 7} -3.5v7z"
    return f'<path class="arrow" d="M{x:g} {y:g}{sides}"/>'


def inside(branch: Node) -> list[Node]:
    """The steps of a branch whose slots a mode has filled, in order; empty for a plain branch."""
    if not branch.inner:
        return []
    heads: dict[tuple[str, str], list[str]] = {}
    for slot in HEADS:
        for module in branch.inner.get(slot, []):
            heads.setdefault((module.kind, module.label), []).append(slot[0])
    found = [Node(kind, f"{label} on {', '.join(on)}") for (kind, label), on in heads.items()]
    for step in STEPS["feed-forward" if branch.label == "feed-forward" else "attention"]:
        slot = step.strip("[]")
        found += branch.inner.get(slot, []) if step != slot else [Node("step", step)]
    return found


def size(node: Node) -> Point:
    """Width and height of the shape of a node."""
    if node.kind == "add":
        return 20.0, 20.0
    if node.kind in ("tap", "scores", "input"):
        return 0.0, 0.0
    if node.kind == "scale":
        return text_width(node.label) + 12, 19.0
    if node.kind == "branch":
        steps = inside(node)
        width = max(text_width(step.label) for step in [node, *steps])
        return width + 30, 30.0 + 22 * len(steps) + (6 if steps else 0)
    return max(44.0, text_width(node.label) + 16), 24.0


def shape(node: Node, x: float, y: float) -> str:
    """A node around (x, y)."""
    width, height = size(node)
    if not width:
        return ""
    if node.kind == "add":
        return f'<circle class="add" cx="{x:g}" cy="{y:g}" r="10"/><path d="M{x - 5:g} {y:g}h10M{x:g} {y - 5:g}v10"/>'
    outline = box(node.kind, x, y, width, height, 9.5 if node.kind == "scale" else 4)
    steps = inside(node)
    if not steps:
        return outline + text(x, y, node.label)
    shapes = [outline, text(x, y - height / 2 + 15, node.label)]
    for i, step in enumerate(steps):
        middle = y + height / 2 - 15 - 22 * i
        if step.kind != "step":
            shapes.append(box(step.kind, x, middle, width - 16, 18))
        shapes.append(text(x, middle, step.label, "small"))
    return "".join(shapes)
