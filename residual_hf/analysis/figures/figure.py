# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Draw the figures of the papers: measure all modes and seeds, write NAME.png, NAME.svg and NAME.csv."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from residual_hf.analysis.output import Panel, Point, check_matplotlib, to_csv, to_pictures
from residual_hf.analysis.probes.undisturbed import Batch
from residual_hf.catalogue import check_modes
from residual_hf.files import write_atomically

Measure = Callable[[str, int, dict[str, int]], Iterable[Point]]
"""(mode, seed, sizes) to points."""
Probe = Callable[[Any, Batch, str, int], Iterable[Point]]
"""(model, batch, name of the series, seed) to points."""


@dataclass(frozen=True)
class Figure:
    """A published figure and how to measure it.

    Args:
        models, protocol: the caption: on which models by default, and what is measured.
        modes: those of the published figure.
        sizes: names and values by default; `full` those of the paper.
        probe: draws the figure of a given model; None if it needs trainings of its own.
    """

    name: str
    source: str
    models: str
    protocol: str
    modes: tuple[str, ...]
    panels: tuple[Panel, ...]
    measure: Measure
    sizes: dict[str, int] = field(default_factory=dict)
    full: dict[str, int] = field(default_factory=dict)
    probe: Probe | None = None


def draw_figure(
    figure: Figure,
    output_dir: Path,
    modes: Sequence[str] = (),
    seeds: Sequence[int] = (1, 2, 3),
    full: bool = False,
) -> list[Path]:
    """Measure and write NAME.csv, NAME.svg and NAME.png; returns their paths.

    Args:
        modes: further modes, or other variants of them, next to those of the figure.
        full: the sizes of the paper where the default ones are smaller.

    Raises:
        InputError: an unknown mode, or matplotlib is missing.
    """
    check_modes(modes)
    check_matplotlib()
    sizes = {**figure.sizes, **(figure.full if full else {})}
    points = list(measure_all(figure, list(dict.fromkeys([*figure.modes, *modes])), seeds, sizes))
    caption = f"{figure.source}. {figure.models} {figure.protocol} Sizes: {describe(sizes)}. "
    caption += f"Seeds: {', '.join(map(str, seeds))}."
    if not full and any(figure.sizes.get(name) != value for name, value in figure.full.items()):
        caption += f" Reduced; the paper has {describe(figure.full)}."
    return write_figure(figure, points, caption, output_dir)


def write_figure(figure: Figure, points: Sequence[Point], caption: str, output_dir: Path) -> list[Path]:
    """Write the table and the pictures of measured points; returns their paths."""
    output_dir.mkdir(parents=True, exist_ok=True)
    pictures = {"csv": to_csv(points), **to_pictures(figure.name, figure.panels, points, caption)}
    paths = [output_dir / f"{figure.name}.{kind}" for kind in pictures]
    for path, content in zip(paths, pictures.values(), strict=True):
        write_atomically(path, content)
    return paths


def measure_all(figure: Figure, modes: Sequence[str], seeds: Sequence[int], sizes: dict[str, int]) -> Iterator[Point]:
    """The points of all modes and seeds, with a progress bar."""
    with tqdm(total=len(modes) * len(seeds), desc=figure.name, unit="model", disable=None) as bar:
        for mode in modes:
            for seed in seeds:
                bar.set_postfix_str(mode)
                yield from figure.measure(mode, seed, sizes)
                bar.update()


def describe(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sizes.items()) or "none"
