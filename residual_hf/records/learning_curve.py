"""The picture of a learning curve."""

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

GRAY, ORANGE = "#8a8f98", "#c2410c"


def learning_curve(records: Sequence[dict[str, Any]]) -> bytes | None:
    """A PNG of NLL and validation BLEU over updates, from the lines of `metrics.jsonl`.

    None without matplotlib, or with less than two points.
    """
    training, validation, bleu = (series(records, name) for name in ("nll", "eval_nll", "eval_bleu"))
    if max(len(training), len(validation)) < 2 or find_spec("matplotlib") is None:
        return None
    panels = 2 if len(bleu) > 1 else 1
    figure = _figure_class()(figsize=(4.5 * panels, 3.2), dpi=150, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    axes[0].plot(training.keys(), training.values(), color=GRAY, linewidth=1.2, label="training")
    axes[0].plot(validation.keys(), validation.values(), color=ORANGE, marker=".", label="validation")
    axes[0].set_ylabel("NLL per target token (nats)")
    axes[0].legend(frameon=False)
    if panels == 2:
        axes[1].plot(bleu.keys(), bleu.values(), color=ORANGE, marker=".")
        axes[1].set_ylabel("BLEU on the validation set")
    for panel in axes:
        panel.set_xlabel("update")
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    return picture.getvalue()


def _figure_class() -> Any:
    """`Figure` of matplotlib, which is also imported where the backend that `MPLBACKEND` names is not installed.

    Jupyter sets it for the programs that it starts, whose Python may be another.
    """
    backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    from matplotlib import figure, rcParams

    if backend is not None:
        os.environ["MPLBACKEND"] = backend
        with suppress(ValueError):
            rcParams["backend"] = backend
    return figure.Figure


def series(records: Sequence[dict[str, Any]], name: str) -> dict[int, float]:
    """Update -> value in order; of an update that was logged twice, by a resumed run, the later value."""
    return dict(sorted({record["step"]: record[name] for record in records if name in record}.items()))
