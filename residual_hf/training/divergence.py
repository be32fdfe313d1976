# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Noticing that a run has diverged, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Diverged(RuntimeError):
    """Training went wrong beyond repair; the checkpoints of before are there."""


class DivergenceGuard:
    """Raises `Diverged` when a logged loss is no number, or above `factor` times the lowest one (0: no such limit).

    `gradients`: also when the gradient norm is no number. With loss scaling that is no more than a skipped update.
    """

    def __init__(self, factor: float, gradients: bool = True):
        self.factor = factor
        self.figures = ("nll", "loss", "grad_norm") if gradients else ("nll", "loss")
        self.lowest = math.inf

    def check(
        self, step: int, logs: Mapping[str, float], model: nn.Module, batch: Mapping[str, Tensor] | None
    ) -> None:
        """`logs` are the figures of an update, `batch` the last model inputs, for finding the layer."""
        broken = [name for name in self.figures if not math.isfinite(logs.get(name, 0.0))]
        nll = logs.get("nll", 0.0)
        if broken:
            where = first_not_finite(model, batch)
            raise Diverged(self.message(step, f"{broken[0]} is {logs[broken[0]]}; {where}"))
        if self.factor and nll > self.factor * self.lowest:
            reason = f"nll is {nll:.3f} and was {self.lowest:.3f}: above divergence_factor {self.factor:g}"
            raise Diverged(self.message(step, reason))
        if "nll" in logs:
            self.lowest = min(self.lowest, nll)

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
