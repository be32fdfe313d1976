"""Points of measurements, written as CSV, SVG and PNG."""

import csv
import io
import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from residual_hf.base.errors import InputError
from residual_hf.base.files import write_atomically

MOST_LABELS = 9
"""On an axis of a heat map."""


@dataclass(frozen=True)
class Point:
    """One measured value. `series` is a mode, `z` the value of a heat map with the coordinates x and y."""

    panel: str
    series: str
    seed: int
    x: float
    y: float
    z: float | None = None


@dataclass(frozen=True)
class Panel:
    """Axes of one part of a figure. With `heat`, every series has a map of its own, with `rows` a row of dots."""

    name: str
    x: str
    y: str
    log_y: bool = False
    log_x: bool = False
    heat: bool = False
    rows: bool = False


def check_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise InputError("figures need matplotlib: pip install 'residual_hf[figures]'")


def write_points(
    folder: Path, name: str, panels: Sequence[Panel], points: Sequence[Point], caption: str
) -> list[Path]:
    """Write NAME.csv, NAME.svg and NAME.png; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([[f.name for f in fields(Point)], *map(astuple, points)])
    contents: dict[str, str | bytes] = {"csv": table.getvalue(), **to_pictures(name, panels, points, caption)}
    paths = {folder / f"{name}.{kind}": content for kind, content in contents.items()}
    for path, content in paths.items():
        write_atomically(path, content)
    return list(paths)


def to_pictures(name: str, panels: Sequence[Panel], points: Sequence[Point], caption: str) -> dict[str, bytes]:
    """SVG and PNG of the panels that have points, with the caption below."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    cells = [
        (panel, series)
        for panel in panels
        if (found := dict.fromkeys(p.series for p in points if p.panel == panel.name))
        for series in (found if panel.heat else [""])
    ]
    columns = 2 if len(cells) == 4 else min(3, len(cells))
    rows = -(-len(cells) // columns)
    height = max(3.4, *(0.17 * len({p.series for p in points}) for panel in panels if panel.rows), 0)
    names = dict.fromkeys(p.series for p in points)
    palette = matplotlib.colormaps["tab10" if len(names) <= 10 else "tab20"]
    colors = {name: palette(i % palette.N) for i, name in enumerate(names)}  # in all panels
    with matplotlib.rc_context({"svg.hashsalt": name, "font.size": 9}):
        canvas = Canvas(figsize=(4.4 * columns, height * rows + 0.9), dpi=150, layout="constrained")
        axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
        for axis, (panel, series) in zip(axes, cells, strict=False):
            chosen = [p for p in points if p.panel == panel.name]
            if panel.heat:
                draw_map(axis, panel, series, chosen)
                continue
            if panel.rows:
                draw_rows(axis, panel, chosen)
            else:
                draw_lines(axis, panel, chosen, colors)
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
        for axis in axes[len(cells) :]:
            axis.axis("off")
        canvas.supxlabel(textwrap.fill(caption, 72 * columns), fontsize=7, ha="left", x=0.02)
        pictures = {}
        for kind, metadata in {"svg": {"Date": None}, "png": {"Software": None}}.items():
            stream = io.BytesIO()
            canvas.savefig(stream, format=kind, metadata=metadata)
            pictures[kind] = stream.getvalue()
    return pictures


def draw_lines(axis: Any, panel: Panel, points: Sequence[Point], colors: Mapping[str, Any]) -> None:
    """One line per series in its colour: the mean over seeds, with the range as a band."""
    groups: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        groups[point.series][point.x].append(point.y)
    for series, values in groups.items():
        x = sorted(values)
        low, mean, high = ([f(values[v]) for v in x] for f in (min, fmean, max))
        axis.plot(x, mean, marker=".", markersize=4, linewidth=1.2, label=series, color=colors[series])
        axis.fill_between(x, low, high, color=colors[series], alpha=0.18, linewidth=0)
    axis.set(title=panel.name, xlabel=panel.x, ylabel=panel.y)
    axis.set_yscale("log" if panel.log_y else "linear")
    axis.set_xscale("log" if panel.log_x else "linear")
    if not panel.log_x and all(float(point.x).is_integer() for point in points):
        axis.xaxis.get_major_locator().set_params(integer=True)
    mark_single(axis.xaxis, [point.x for point in points])
    mark_single(axis.yaxis, [point.y for point in points])
    axis.legend(frameon=False, fontsize=7)


def mark_single(axis: Any, values: Sequence[float]) -> None:
    """Label an axis with its only value, around which Matplotlib would make up a range."""
    if len(set(values)) == 1:
        axis.set_ticks(values[:1])


def draw_rows(axis: Any, panel: Panel, points: Sequence[Point]) -> None:
    """A row of dots per series, in their order: y on the horizontal axis, x as the colour and the size."""
    series = list(dict.fromkeys(point.series for point in points))
    row = {name: len(series) - position for position, name in enumerate(series)}
    xs = sorted({point.x for point in points})
    for size, x in zip(range(2 + 2 * len(xs), 2, -2), xs, strict=True):
        at = [(point.y, row[point.series]) for point in points if point.x == x]
        axis.plot(*zip(*at, strict=True), "o", markersize=size, alpha=0.8, label=f"{x:g}")
    axis.set(title=panel.name, xlabel=panel.y)
    axis.set_yticks(list(row.values()), list(row), fontsize=7)
    axis.set_ylim(0.3, len(row) + 0.7)
    axis.set_xscale("log" if panel.log_y else "linear")
    mark_single(axis.xaxis, [point.y for point in points])
    axis.legend(title=panel.x, frameon=False, fontsize=7, title_fontsize=7)


def draw_map(axis: Any, panel: Panel, series: str, points: Sequence[Point]) -> None:
    """Mean over seeds of z at each (x, y) of a series, in the colours that all series of the panel share."""
    cells: dict[tuple[str, float, float], list[float]] = defaultdict(list)
    for point in points:
        cells[point.series, point.x, point.y].append(point.z or 0.0)
    means = {cell: fmean(values) for cell, values in cells.items()}
    _, *coordinates = zip(*(cell for cell in means if cell[0] == series), strict=True)
    xs, ys = (sorted(set(values)) for values in coordinates)
    grid = [[means.get((series, x, y), math.nan) for x in xs] for y in ys]
    finite = [*filter(math.isfinite, means.values())] or [0.0]
    scale = {"vmin": min(finite), "vmax": max(finite)}
    image = axis.imshow(grid, cmap="viridis", aspect="auto", interpolation="nearest", **scale)
    for line, values in ((axis.xaxis, xs), (axis.yaxis, ys)):
        step = -(-len(values) // MOST_LABELS)
        line.set_ticks(range(0, len(values), step), [f"{value:g}" for value in values[::step]])
    axis.figure.colorbar(image, ax=axis, shrink=0.8)
    axis.set(title=f"{series}: {panel.name}", xlabel=panel.x, ylabel=panel.y)
