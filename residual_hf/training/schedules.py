# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Learning rate schedules: fairseq's, and those of Transformers by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

if TYPE_CHECKING:
    from .training_settings import TrainingSettings

TRANSFORMERS_SCHEDULES = (
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "polynomial",
    "warmup_stable_decay",
)
SCHEDULES = ("inverse_sqrt", "linear", "constant", *TRANSFORMERS_SCHEDULES)
TRANSFORMERS_TIMESCALE = 10_000


def build_schedule(settings: TrainingSettings, optimizer: Optimizer, total_updates: int) -> LambdaLR:
    """The learning rate schedule of a run; call its `step()` after every update.

    With t the number of updates made, w = `warmup_updates` and n = `total_updates`, the learning rate is

        warmup_init_lr + t * (lr - warmup_init_lr) / w    for t < w
        lr * decay(t)                                     for t >= w

    where decay(t) is

        sqrt(T / (t - w + T))     inverse_sqrt, with T = timescale or w (fairseq: sqrt(w / t)), 10,000 if both are 0
        (n - t) / (n - w)         linear
        1                         constant

    or what `transformers.get_scheduler` computes with `schedule_options`.
    """
    warmup, start = settings.warmup_updates, settings.warmup_init_lr / settings.lr
    decay = decay_of(settings, total_updates)
    return LambdaLR(optimizer, lambda t: start + t * (1.0 - start) / warmup if t < warmup else decay(t))


def decay_of(settings: TrainingSettings, total_updates: int) -> Callable[[int], float]:
    """The factor of the learning rate after `t` updates, from the end of the warm-up on."""
    warmup = settings.warmup_updates
    if settings.schedule == "constant":
        return lambda t: 1.0
    if settings.schedule == "linear":
        return lambda t: max(0.0, (total_updates - t) / max(1, total_updates - warmup))
    if settings.schedule == "inverse_sqrt":
        scale = settings.timescale or warmup or TRANSFORMERS_TIMESCALE
        return lambda t: math.sqrt(scale / (t - warmup + scale))
    placeholder = SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.lr)
    schedule: Any = get_scheduler(settings.schedule, placeholder, warmup, total_updates, settings.schedule_options)
    return schedule.lr_lambdas[0]
