# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Columns and rows for the nodes of one part of a stack.

Each member of the stream has a column, its *lane*, and so has the branch. Row 0 holds the inputs; a node is in the
lowest row in which no edge to it runs through another node or along another edge. An edge goes up in the column of
its source and then, in the row of its target, sideways.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .tracing import Node, Part

MOST_ROWS = 40


@dataclass(frozen=True, eq=False)
class Edge:
    """From a node to a node; `scale` is drawn on it, `detour` leads it around a node in the column of its source."""

    source: Node
    target: Node
    scale: Node | None = None
    detour: bool = False


@dataclass
class Layout:
    """Where the nodes of a part are; `lanes` are the columns in which its outputs leave it."""

    part: Part
    lanes: list[int]
    column: dict[Node, float]
    row: dict[Node, int] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    wide: list[list[Node]] = field(default_factory=list)  # weighted sums that are drawn as one box

    @property
    def tracks(self) -> dict[float, list[Node]]:
        """For each column the sources of its detours, which run next to it."""
        found: dict[float, list[Node]] = {}
        for edge in self.edges:
            sources = found.setdefault(self.column[edge.source], [])
            if edge.detour and edge.source not in sources:
                sources.append(edge.source)
        return found

    @property
    def rows(self) -> int:
        return 1 + max(self.row.values(), default=0)


def branch_column(parts: list[Part]) -> float:
    """Between the first lane and the others; to the right of all where the lanes are mixed with each other."""
    return 100.0 if any(wide_sums(part) for part in parts) else 0.5


def wide_sums(part: Part) -> list[list[Node]]:
    """Weighted sums of all members of the stream by the same tensor, one for each member."""
    found: dict[str, list[Node]] = {}
    for node in part.nodes:
        if node.kind == "mix" and node.inputs == part.inputs:
            found.setdefault(node.label, []).append(node)
    return [group for group in found.values() if len(group) == len(part.inputs)]


def lay_out(part: Part, lanes: list[int], branch: float) -> Layout:
    """Place the nodes of a part whose inputs arrive in `lanes`; `branch` is the column of the branch."""
    flow = Flow(part)
    layout = Layout(part, flow.output_lanes(lanes), {})
    layout.wide = wide_sums(part)
    for node, lane in zip(part.inputs, lanes, strict=True):
        layout.column[node], layout.row[node] = lane, 0
    for node in part.nodes:
        layout.column[node] = flow.column(node, layout, branch)
    Placement(flow, layout).run()
    return layout


class Flow:
    """Which node leads where in a part."""

    def __init__(self, part: Part):
        self.part = part
        self.users: dict[Node, list[Node]] = {node: [] for node in [*part.inputs, *part.nodes]}
        for node in part.nodes:
            for source in node.inputs:
                self.users[source].append(node)
        self.pure: set[Node] = set()  # made of the output of the branch alone
        for node in part.nodes:
            if node.kind == "branch" or (node.inputs and all(source in self.pure for source in node.inputs)):
                self.pure.add(node)
        self.ends: dict[Node, set[int]] = {}  # the outputs that a node reaches without passing the branch
        self.feeds: set[Node] = set()  # nodes that reach the branch
        for node in reversed([*part.inputs, *part.nodes]):
            users = self.users[node]
            own = {i for i, output in enumerate(part.outputs) if output is node}
            self.ends[node] = own.union(*(self.ends[user] for user in users if user.kind != "branch"))
            if any(user.kind == "branch" or user in self.feeds for user in users):
                self.feeds.add(node)

    def uses(self, node: Node) -> int:
        return len(self.users[node]) + sum(output is node for output in self.part.outputs)

    def output_lanes(self, lanes: list[int]) -> list[int]:
        """Unchanged members keep their lane, what replaces a member takes its lane, all others get a new one.

        A stream of one member is in lane 0.
        """
        inputs, outputs = self.part.inputs, self.part.outputs
        if len(outputs) == 1:
            return [0]
        chosen: dict[int, int] = {}

        def claim(i: int, lane: int) -> None:
            if i not in chosen and lane not in chosen.values():
                chosen[i] = lane

        for i, node in enumerate(outputs[: len(inputs)]):
            if node is inputs[i]:
                claim(i, lanes[i])
        for i, node in enumerate(outputs[: len(inputs)]):
            if node not in self.pure and node not in inputs:
                claim(i, lanes[i])
        for i, node in enumerate(outputs):
            if node in inputs:
                claim(i, lanes[inputs.index(node)])
        for i in range(len(outputs)):
            if i < len(inputs):
                claim(i, lanes[i])
            claim(i, next(lane for lane in range(99) if lane not in {*lanes, *chosen.values()}))
        return [chosen[i] for i in range(len(outputs))]

    def column(self, node: Node, layout: Layout, branch: float) -> float:
        ends = self.ends[node]
        if node.kind == "scores":
            return layout.lanes[min(ends)]
        if node in self.pure or not ends:
            return branch
        if len(node.inputs) == 1 and self.uses(node.inputs[0]) == 1:
            return layout.column[node.inputs[0]]
        return layout.lanes[min(ends)]


class Placement:
    """Gives every node the lowest row that keeps its edges apart from the others."""

    def __init__(self, flow: Flow, layout: Layout):
        self.flow, self.layout = flow, layout
        self.nodes: dict[tuple[float, int], Node] = {}
        self.lines: dict[tuple[float, int], Node] = {}  # vertical ones, by their source
        self.sides: dict[int, list[tuple[float, float, Node, Node]]] = {}  # horizontal ones: ends, source, target
        self.kept: dict[float, Node] = {}  # columns in which a member of the stream goes straight through the part
        self.on_edge = {node for node in flow.part.nodes if self.is_on_edge(node)}

    def is_on_edge(self, node: Node) -> bool:
        users = self.flow.users[node]
        if node.kind != "scale" or node not in self.flow.pure or self.flow.uses(node) != 1 or not users:
            return False
        apart = self.layout.column[users[0]] != self.layout.column[node]
        return users[0].kind == "add" and apart and node.inputs[0].kind != "scale"

    def run(self) -> None:
        layout, part = self.layout, self.flow.part
        taps = []
        for node, lane in zip(part.outputs, layout.lanes, strict=True):
            if layout.column[node] == lane:
                layout.outputs.append(node)
                if node in part.inputs:
                    self.kept[lane] = node
            else:  # a value that continues in another lane
                taps.append(Node("tap", inputs=[node], is_state=node.is_state))
                layout.column[taps[-1]] = lane
                layout.outputs.append(taps[-1])
        waiting = [node for node in [*part.nodes, *taps] if node not in self.on_edge]
        waiting.sort(key=self.priority)
        while waiting:
            node = next(n for n in waiting if all(edge.source in layout.row for edge in self.edges_to(n)))
            group = next((wide for wide in layout.wide if node in wide), [node])
            self.place(group)
            waiting = [n for n in waiting if n not in group]

    def priority(self, node: Node) -> int:
        if node.kind == "tap":
            return 0 if node.inputs[0] in self.flow.part.inputs else 2
        return 1 if node.kind == "branch" or node in self.flow.feeds else 2

    def edges_to(self, node: Node) -> list[Edge]:
        scaled = self.on_edge.intersection(node.inputs)
        wide = any(node in group for group in self.layout.wide)
        sources = [s for s in node.inputs if not wide or self.layout.column[s] == self.layout.column[node]]
        return [Edge(s.inputs[0], node, s) if s in scaled else Edge(s, node) for s in sources]

    def place(self, group: list[Node]) -> None:
        if group[0].kind == "scores":
            self.layout.row[group[0]] = self.layout.row[group[0].inputs[0]]
            self.layout.edges += self.edges_to(group[0])
            return
        edges = [edge for node in group for edge in self.edges_to(node)]
        lowest = 1 + max(self.layout.row[edge.source] for edge in edges)
        rows = range(lowest, MOST_ROWS)
        row = next((r for r in rows if self.blocked(group, edges, r) == []), None)
        detours: list[Edge] = []
        if row is None:
            row = next(r for r in rows if all(self.is_free(node, r) for node in group))
            detours = self.blocked(group, edges, row)
        for node in group:
            self.layout.row[node] = row
            self.nodes[self.layout.column[node], row] = node
        for edge in edges:
            if edge in detours:
                edge = Edge(edge.source, edge.target, edge.scale, detour=True)
            else:
                self.draw(edge, row)
            self.layout.edges.append(edge)

    def is_free(self, node: Node, row: int) -> bool:
        column = self.layout.column[node]
        crossed = any(left < column < right for left, right, *_ in self.sides.get(row, []))
        taken = (column, row) in self.nodes or (column, row) in self.lines or column in self.kept
        return not (crossed or taken)

    def blocked(self, group: list[Node], edges: list[Edge], row: int) -> list[Edge]:
        """The edges that cannot be drawn with the group in this row; all of them if it cannot be there itself."""
        if not all(self.is_free(node, row) for node in group):
            return edges
        return [edge for edge in edges if not self.is_clear(edge, row)]

    def is_clear(self, edge: Edge, row: int) -> bool:
        start, end = self.layout.column[edge.source], self.layout.column[edge.target]
        for r in range(self.layout.row[edge.source] + 1, row if start == end else row + 1):
            if (start, r) in self.nodes or self.lines.get((start, r), edge.source) is not edge.source:
                return False
        left, right = sorted((start, end))
        if any(left < column < right for column, r in self.nodes if r == row):
            return False
        others = (s for s in self.sides.get(row, []) if edge.source is not s[2] and edge.target is not s[3])
        return start == end or all(right <= other[0] or other[1] <= left for other in others)

    def draw(self, edge: Edge, row: int) -> None:
        start, end = self.layout.column[edge.source], self.layout.column[edge.target]
        for r in range(self.layout.row[edge.source] + 1, row if start == end else row + 1):
            self.lines[start, r] = edge.source
        if start != end:
            left, right = sorted((start, end))
            self.sides.setdefault(row, []).append((left, right, edge.source, edge.target))
