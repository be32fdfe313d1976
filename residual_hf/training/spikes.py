"""Spikes in series of positive figures, such as loss and gradient norm, and which series moved first.

The score of a value is how far its logarithm is above the median of the `RECENT` values before it, in robust standard
deviations of the noise: 1.4826 times the median absolute difference of neighbors among the `WINDOW` values before it,
divided by the root of 2, and at least `SMALLEST_DEVIATION`. An earlier spike or a steady fall changes it little. The
score is 0 before there are `RECENT` values, and infinite for a value that is not finite. A score above `THRESHOLD` is
a spike. OLMo 2 (2025) counts spikes above seven standard deviations from a mean of 1,000 values.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

FILE = "diagnostics.jsonl"
"""The file of a run with its diagnostics and alerts, see `DiagnosticsCallback`."""
WINDOW = 128
RECENT = 32
SMALLEST_DEVIATION = 0.02
THRESHOLD = 7.0


@dataclass(frozen=True)
class Alert:
    """A spike at update `step`, with its `spike_scores`. `first`: the sub-layer whose gradient moved first."""

    step: int
    loss_score: float
    grad_norm_score: float
    first: dict[str, Any] | None

    def __str__(self) -> str:
        found = f"spike at update {self.step:,}: score {self.loss_score:.1f} of the loss and "
        found += f"{self.grad_norm_score:.1f} of the gradient norm"
        if self.first is None:
            return f"{found}; no sub-layer moved before the others"
        where = "{stack} layer {layer} {sublayer} moved first, at update {step:,} (score {score:.1f})"
        return f"{found}; {where.format_map(self.first)}"


def spike_scores(values: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Scores of `values` (series,), given those of earlier updates, (updates, series)."""
    before = before[-WINDOW:]
    scores = np.zeros(len(values))
    if len(before) >= RECENT:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(np.isfinite(before), before, np.inf))
            steps = np.nan_to_num(abs(np.diff(logs, axis=0)), nan=np.inf, posinf=np.inf)
            deviation = 1.4826 * np.median(steps, axis=0) / 2**0.5
            scores = np.log(values) - np.median(logs[-RECENT:], axis=0)
            scores /= np.maximum(deviation, SMALLEST_DEVIATION)
        scores = np.where(np.isfinite(scores), scores, 0.0)  # of a series that is or was 0, or was seldom finite
    return np.where(np.isfinite(values), scores, np.inf)


def first_mover(history: np.ndarray) -> tuple[int, int, float] | None:
    """(updates before the last one, series, score) where a spike began; None if no series has one.

    From the last update of `history` (updates, series) back as long as some series has a spike: at the earliest of
    these updates, the series with the highest score. Of equal scores (not finite) the last one, whose gradient a
    backward pass computes first.
    """
    found = None
    for back in range(len(history)):
        end = len(history) - 1 - back
        scores = spike_scores(history[end], history[max(0, end - WINDOW) : end])
        if scores.max(initial=0.0) <= THRESHOLD:
            break
        series = len(scores) - 1 - int(scores[::-1].argmax())
        found = back, series, float(scores[series])
    return found
