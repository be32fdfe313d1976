# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Noticing that a run has diverged, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

MINIMUM_LOSS_SCALE = 1e-4
"""fairseq's `min_loss_scale`."""


class TrainingDivergedError(RuntimeError):
    """Training went wrong beyond repair; the checkpoints of before are there."""


class DivergenceGuard:
    """Raises `TrainingDivergedError` when a logged loss is not finite or exceeds `factor` times the lowest (0: off).

    With loss scaling a gradient that is no number is no more than a skipped update that halves the scale; there it is
    a scale below `MINIMUM_LOSS_SCALE` that ends the run.
    """

    def __init__(self, factor: float):
        self.factor = factor

    def check(
        self,
        logs: Sequence[Mapping[str, float]],
        model: nn.Module,
        batch: Mapping[str, Tensor] | None,
        loss_scale: float | None = None,
    ) -> None:
        """`logs` are all figures of the run, the last ones those to check; `batch` the last model inputs, for finding
        the layer; `loss_scale` that of fp16."""
        step, last = logs[-1].get("step", 0), logs[-1]
        figures = ("nll", "loss", "grad_norm") if loss_scale is None else ("nll", "loss")
        broken = [name for name in figures if not math.isfinite(last.get(name, 0.0))]
        if broken:
            where = first_not_finite(model, batch)
            raise TrainingDivergedError(self.message(step, f"{broken[0]} is {last[broken[0]]}; {where}"))
        if loss_scale is not None and loss_scale < MINIMUM_LOSS_SCALE:
            where = first_not_finite(model, batch)
            reason = (
                f"the loss scale of fp16 is {loss_scale:g}, below {MINIMUM_LOSS_SCALE:g}: gradients overflow; {where}"
            )
            raise TrainingDivergedError(self.message(step, reason + ". bf16 or fp32 has the range"))
        before = [record["nll"] for record in logs[:-1] if "nll" in record]
        nll = last.get("nll", 0.0)
        if self.factor and before and nll > self.factor * min(before):
            reason = f"nll is {nll:.3f} and was {min(before):.3f}: above divergence_factor {self.factor:g}"
            raise TrainingDivergedError(self.message(step, reason))

    @staticmethod
    def message(step: int, reason: str) -> str:
        return (
            f"diverged by update {step}: {reason}. The checkpoints of before are kept. A lower training.lr, more "
            "warmup_updates, clip_norm, or a mode that needs no warm-up (residual-hf modes) may help."
        )


@torch.no_grad()
def first_not_finite(model: nn.Module, batch: Mapping[str, Any] | None) -> str:
    """Where values stop being finite: the first such parameter, or the first module with such an output on a batch."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the first weights that are not finite: {name}"
    found: list[str] = []
    hooks = [
        module.register_forward_hook(lambda _m, _i, output, name=name: _note(found, name, output))
        for name, module in model.named_modules()
        if not any(True for _ in module.children())
    ]
    try:
        if batch is not None:
            model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    return f"the first output that is not finite: {found[0]}" if found else "weights and outputs are still finite"


def _note(found: list[str], name: str, output: Any) -> None:
    if not found and isinstance(output, Tensor) and not output.isfinite().all():
        found.append(name)
