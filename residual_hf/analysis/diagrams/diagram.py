# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Wiring diagrams of residual connections as SVG, drawn from a trace of their classes; streams run upwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from . import svg
from .layout import Edge, Layout, branch_column, lay_out
from .svg import Point
from .tracing import Node, Part
from .wiring import Wiring, trace_stack

ROW_GAP, COLUMN_GAP, MARGIN, TRACK = 16.0, 30.0, 14.0, 8.0
Route = tuple[Node, list[Point], Node | None]  # from a node, along corners, to a node or out of the part


def draw_modes(names: Sequence[str], stack: str = "encoder") -> str:
    """Wiring diagrams of one or several modes next to each other, as the text of an SVG file.

    Args:
        names: registered modes, including your own.
        stack: `encoder` or `decoder`.

    Raises `ValueError` for an unknown mode and `InputError` for a mode that `torch.fx` cannot trace.
    """
    return draw(*(trace_stack(name, stack) for name in names))


def draw(*wirings: Wiring) -> str:
    """Stacks next to each other, with their names if there are several."""
    drawings = [Drawing(wiring) for wiring in wirings]
    height = max(drawing.height for drawing in drawings)
    shapes, x = [], 0.0
    for wiring, drawing in zip(wirings, drawings, strict=True):
        if len(wirings) > 1:
            shapes.append(svg.text(x + drawing.width / 2, height + 14, wiring.name, "title"))
        shapes.append(f'<g transform="translate({x:g} {height - drawing.height:g})">{"".join(drawing.shapes)}</g>')
        x += drawing.width + COLUMN_GAP
    title = f"Wiring of {', '.join(wiring.name for wiring in wirings)}"
    return svg.document(shapes, x - COLUMN_GAP, height + (28 if len(wirings) > 1 else 0), title)


class Drawing:
    """One stack: shapes within a rectangle of `width` and `height`."""

    def __init__(self, wiring: Wiring):
        self.shapes: list[str] = []
        parts = list(wiring.parts)
        branch = branch_column(parts)
        self.layouts: list[Layout] = []
        lanes = [0]
        for part in parts:
            self.layouts.append(lay_out(part, lanes, branch))
            lanes = self.layouts[-1].lanes
        self.x = self.place_columns()
        bounds = dict(zip(parts, self.place_parts(wiring), strict=True))
        self.wanted = wanted_outputs(wiring)
        for layout in self.layouts:
            starts = any(layout.part is block.parts[0] for block in wiring.blocks)
            self.draw_part(layout, *bounds[layout.part], padding=12 if starts else 0)
        for block in wiring.blocks:
            self.draw_panel(block.title, bounds[block.parts[-1]][0], bounds[block.parts[0]][1])
        self.draw_ends(bounds[wiring.begin][1], bounds[wiring.end][0], wiring.note)

    def place_columns(self) -> dict[float, float]:
        """The middle of each column, wide enough for its nodes and for what is drawn on edges to the next one."""
        left: dict[float, float] = defaultdict(lambda: 8.0)
        right: dict[float, float] = defaultdict(lambda: 8.0)
        between: dict[float, float] = defaultdict(lambda: COLUMN_GAP)
        left[0] = right[0] = 32.0
        for layout in self.layouts:
            for node, column in layout.column.items():
                left[column] = max(left[column], svg.size(node)[0] / 2)
                right[column] = max(right[column], svg.size(node)[0] / 2)
            for node, name in zip(layout.part.inputs, layout.part.names, strict=False):
                right[layout.column[node]] = max(right[layout.column[node]], svg.text_width(name))
        columns = sorted(left.keys() | right.keys())
        for layout in self.layouts:
            for edge in layout.edges:
                if edge.scale:
                    before = scale_gap(layout, edge, columns)
                    between[before] = max(between[before], svg.size(edge.scale)[0] + 22)
        x, position = {}, MARGIN
        for column in columns:
            tracks = max(len(layout.tracks.get(column, [])) for layout in self.layouts)
            x[column] = position + TRACK * max(0, tracks - 1) + left[column]
            position = x[column] + right[column] + between[column]
        self.width = position - between[columns[-1]] + MARGIN
        self.columns, self.left, self.right = columns, left, right
        return x

    def place_parts(self, wiring: Wiring) -> list[Point]:
        """Top and bottom of each part, from the beginning of the stack at the bottom."""
        heights = [self.row_heights(layout) for layout in self.layouts]
        blocks = {block.parts[0] for block in wiring.blocks}
        ends = {block.parts[-1] for block in wiring.blocks}
        y = 22.0
        bounds: list[Point] = []
        for layout, rows in zip(reversed(self.layouts), reversed(heights), strict=True):
            top = y
            y += 26 if layout.part in ends else 0  # the title of a panel
            y += sum(rows) + ROW_GAP * (len(rows) + 0.7 if rows else 0)
            y += 12 if layout.part in blocks else 0
            bounds.append((top, y))
        self.height = y + 24
        return bounds[::-1]

    def row_heights(self, layout: Layout) -> list[float]:
        rows = [0.0] * (layout.rows - 1)
        for node, row in layout.row.items():
            if row:
                rows[row - 1] = max(rows[row - 1], svg.size(node)[1])
        return rows

    def draw_part(self, layout: Layout, top: float, bottom: float, padding: float) -> None:
        self.y: dict[Node, float] = {}
        self.padding = padding
        heights = self.row_heights(layout)
        middles, y = [bottom], bottom - ROW_GAP * 0.25 - padding
        for height in heights:
            y -= ROW_GAP + height
            middles.append(y + height / 2)
        for node, row in layout.row.items():
            self.y[node] = middles[row]
        paths = {edge: self.route(layout, edge) for edge in layout.edges}
        routes: list[Route] = []
        for edge, points in paths.items():
            if edge.scale:
                before, after = self.around_scale(layout, edge, points)
                routes += [(edge.source, before, edge.scale), (edge.scale, after, edge.target)]
            elif edge.target.kind != "tap":
                routes.append((edge.source, points, edge.target))
        for output, wanted in zip(layout.outputs, self.wanted[layout.part], strict=True):
            if not wanted:
                continue
            start = next((p for e, p in paths.items() if e.target is output and output.kind == "tap"), None)
            points = start or [(self.x[layout.column[output]], self.top_of(output))]
            source = output.inputs[0] if output.kind == "tap" else output
            routes.append((source, [*points, (points[-1][0], top)], None))
        self.draw_routes(routes)
        if padding:
            sources = {source for source, _, _ in routes}
            for node, name in zip(layout.part.inputs, layout.part.names, strict=False):
                if node in sources:
                    self.shapes.append(svg.text(self.x[layout.column[node]] + 5, bottom - padding, name, "name"))
        for group in layout.wide:
            self.draw_wide(layout, group)
        for node in layout.row:
            if not any(node in group for group in layout.wide):
                self.shapes.append(svg.shape(node, self.x[layout.column[node]], self.y[node]))

    def around_scale(self, layout: Layout, edge: Edge, points: list[Point]) -> tuple[list, list]:
        """Draws the scale of an edge; the edge before and after it."""
        left = scale_gap(layout, edge, self.columns)
        right = self.columns[self.columns.index(left) + 1]
        x, y = (self.x[left] + self.right[left] + self.x[right] - self.left[right]) / 2, points[-1][1]
        assert edge.scale is not None
        self.shapes.append(svg.shape(edge.scale, x, y))
        half = svg.size(edge.scale)[0] / 2 * (1 if points[-2][0] < points[-1][0] else -1)
        return [*points[:-1], (x - half, y)], [(x + half, y), points[-1]]

    def top_of(self, node: Node) -> float:
        return self.y[node] - (7 if node.kind == "scores" else svg.size(node)[1] / 2)

    def route(self, layout: Layout, edge: Edge) -> list[Point]:
        """The corners of an edge."""
        source, target = edge.source, edge.target
        start, end = self.x[layout.column[source]], self.x[layout.column[target]]
        y, (width, height) = self.y[target], svg.size(target)
        if target.kind == "scores":
            return [(start + svg.size(source)[0] / 2, y - 7), (end, y - 7)]
        bottom = self.top_of(source)
        if start == end and not edge.detour:
            return [(start, bottom), (start, y + height / 2)]
        y += self.port(layout, edge)
        if edge.detour:
            tracks = layout.tracks[layout.column[source]]
            track = start - self.left[layout.column[source]] - 4 - TRACK * tracks.index(source)
            leave = bottom - 8 - (self.padding if source.kind == "input" else 0)
            around = [(start, bottom), (start, leave), (track, leave), (track, y)]
        else:
            around = [(start, bottom), (start, y)]
        return [*around, (end + self.side(layout, edge) * width / 2, y)]

    def port(self, layout: Layout, edge: Edge) -> float:
        """Edges that enter a node from the same side do so at different heights."""
        if edge.target.kind == "branch":
            return 7.0 if not edge.source.is_state else 0.0
        if edge.target.kind in ("add", "tap"):
            return 0.0
        side = self.side(layout, edge)
        together = [e for e in layout.edges if e.target is edge.target and self.side(layout, e) == side]
        together.sort(key=lambda e: abs(layout.column[e.source] - layout.column[e.target]))
        return (together.index(edge) - (len(together) - 1) / 2) * -6.0

    def side(self, layout: Layout, edge: Edge) -> int:
        """Where an edge enters its target: -1 from the left, 0 from below, 1 from the right."""
        start, end = layout.column[edge.source], layout.column[edge.target]
        return 1 if start > end else -1 if edge.detour or start < end else 0

    def draw_routes(self, routes: list[Route]) -> None:
        """Lines, with a dot where those of one value branch."""
        by_start: dict[Point, list[Route]] = defaultdict(list)
        for route in routes:
            by_start[route[1][0]].append(route)
        for together in by_start.values():
            together.sort(key=lambda route: route[1][1][1])
            for i, (source, points, target) in enumerate(together):
                if i > 0 and len(points) == 2:  # the same line once more, as in x + x
                    continue
                if i > 0:  # the first one goes highest, the others turn off
                    points = points[1:]
                    self.shapes.append(svg.dot(*points[0]))
                dashed = not source.is_state or (target is not None and not target.is_state)
                self.shapes.append(svg.line(points, dashed))
                if target is not None and target.kind not in ("scale", "scores", "tap"):
                    self.shapes.append(svg.arrow(points[-2], points[-1]))

    def draw_wide(self, layout: Layout, group: list[Node]) -> None:
        """Weighted sums of the same lanes by one matrix, as one box over these lanes."""
        xs = [self.x[layout.column[node]] for node in group]
        x, y = (min(xs) + max(xs)) / 2, self.y[group[0]]
        self.shapes += [svg.box("mix", x, y, max(xs) - min(xs) + 44, 24), svg.text(x, y, group[0].label)]

    def draw_panel(self, title: str, top: float, bottom: float) -> None:
        panel = svg.box("panel", self.width / 2, (top + bottom) / 2, self.width - 2, bottom - top - 10, 8)
        self.shapes.insert(0, panel + svg.text(self.x[0] + 12, top + 17, title, "small start"))

    def draw_ends(self, bottom: float, top: float, note: str) -> None:
        x = self.x[0]
        self.shapes += [svg.line([(x, bottom + 4), (x, bottom)]), svg.arrow((x, top), (x, top - 4))]
        self.shapes += [svg.text(x, bottom + 14, "embeddings", "small"), svg.text(x, top - 13, "output", "small")]
        if note:
            self.shapes.append(svg.text(self.width - svg.text_width(note) / 2 - 4, bottom + 14, note, "small"))


def wanted_outputs(wiring: Wiring) -> dict[Part, list[bool]]:
    """For each part which of its outputs the part after it reads, or the same layer when it is repeated."""
    wanted: dict[Part, list[bool]] = {}
    repeated = {block.parts[-1] for block in wiring.blocks if block.layers > 1}
    parts = list(wiring.parts)
    for part, following in zip(parts, parts[1:], strict=False):
        read = {node for reader in following.nodes for node in reader.inputs}.union(following.outputs)
        wanted[part] = [node in read or part in repeated for node in following.inputs]
    wanted[parts[-1]] = [True]
    return wanted


def scale_gap(layout: Layout, edge: Edge, columns: list[float]) -> float:
    """The column to the left of the gap in which the scale of an edge is drawn: next to its source."""
    source, target = layout.column[edge.source], layout.column[edge.target]
    return source if source < target else columns[columns.index(source) - 1]
