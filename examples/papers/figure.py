"""Draw the figures of the papers: measure all modes and seeds, write NAME.png, NAME.svg and NAME.csv."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from generated import new_model
from points import Panel, Point, check_matplotlib, write_points
from tqdm.auto import tqdm

from residual_hf.analysis.short_training import profiled
from residual_hf.base.errors import InputError
from residual_hf.base.modes import check_modes
from residual_hf.model.connections import ResidualConnection, get_ln_mode
from residual_hf.probes.undisturbed import Batch

BASELINES = ("post_ln", "pre_ln", "resi_dual")
INITIAL = "Fresh models without dropout, 16 sentences of 20 random tokens, mean cross-entropy of random targets."
VOCABULARY = 1000

LEGACY = {"init_style": "fairseq_legacy"}
"""The initial weights of the code of Admin, in all modes that have none of their own."""

Measure = Callable[[str, int, dict[str, Any]], Iterable[Point]]
"""(mode, seed, sizes) to points."""
Probe = Callable[[Any, Batch, str, int], Iterable[Point]]
"""(model, batch, name of the series, seed) to points."""


def panels_of(names: Iterable[str], x: str, y: str, **options: bool) -> tuple[Panel, ...]:
    return tuple(Panel(name, x, y, **options) for name in names)


def model_of_sizes(mode: str, seed: int, sizes: dict[str, Any], **fields: Any) -> Any:
    """A fresh model; `init_style` of the sizes is for modes that have no initialization of their own."""
    if get_ln_mode(mode).default_init_style == ResidualConnection.default_init_style:
        fields["init_style"] = sizes.get("init_style")
    return new_model(mode, sizes["layers"], sizes["width"], ffn=sizes["ffn"], seed=seed, **fields)


def fresh_model(mode: str, seed: int, sizes: dict[str, Any]) -> tuple[Any, Batch]:
    """A model at initialization and a random batch, of the sizes that ResiDual's figure 2 uses; Admin is profiled."""
    fields = {"vocab_size": VOCABULARY, "decoder_layers": sizes.get("decoder_layers", sizes["layers"])}
    model = model_of_sizes(mode, seed, sizes, **fields)
    source, target = torch.randint(4, VOCABULARY, (2, 16, 20), generator=torch.Generator().manual_seed(seed))
    batch = {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}
    return profiled(model, batch), batch


@dataclass(frozen=True)
class Figure:
    """A published figure and how to measure it.

    Args:
        protocol, models: the caption: what is measured, and on which models by default.
        sizes: names and values by default, at which a CPU needs less than ten minutes; `full` those of the paper or of
            a longer run.
        modes: those of the published figure.
        any_mode: whether further modes can be shown.
        probe: draws the figure of a given model; None if it needs trainings of its own.
        measure: what is measured by default, if it is not `probe` of a `fresh_model`.
    """

    name: str
    source: str
    protocol: str
    panels: tuple[Panel, ...]
    sizes: dict[str, Any] = field(default_factory=lambda: {"layers": 18, "width": 512, "ffn": 2048})
    full: dict[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = BASELINES
    any_mode: bool = True
    models: str = INITIAL
    probe: Probe | None = None
    measure: Measure | None = None

    def points(self, mode: str, seed: int, sizes: dict[str, Any]) -> Iterable[Point]:
        if self.measure is not None:
            return self.measure(mode, seed, sizes)
        assert self.probe is not None
        return self.probe(*fresh_model(mode, seed, sizes), mode, seed)


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
        full: the full sizes where the default ones are smaller.

    Raises:
        InputError: an unknown mode or one that the figure cannot show, or matplotlib is missing.
    """
    check_modes(modes)
    if not figure.any_mode and not {*modes} <= {*figure.modes}:
        raise InputError(f"{figure.name}: {', '.join(modes)} given, but it shows {' and '.join(figure.modes)} only")
    check_matplotlib()
    sizes = {**figure.sizes, **(figure.full if full else {})}
    models = list(product(dict.fromkeys([*figure.modes, *modes]), seeds))
    points: list[Point] = []
    for mode, seed in tqdm(models, desc=figure.name, unit="model", disable=None):
        points += figure.points(mode, seed, sizes)
    caption = f"{figure.source}. {figure.models} {figure.protocol} Sizes: {describe(sizes)}. "
    caption += f"Seeds: {', '.join(map(str, seeds))}."
    if figure.full and not full:
        caption += f" Reduced: --full has {describe(figure.full)}."
    return write_points(output_dir, figure.name, figure.panels, points, caption)


def describe(sizes: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in sizes.items()) or "none"
