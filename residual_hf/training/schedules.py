# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Learning rate schedules with the arithmetic of fairseq."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from residual_hf.errors import InputError


def inverse_sqrt_schedule(
    optimizer: Optimizer, warmup_steps: int, warmup_init_lr: float = 0.0, timescale: int | None = None
) -> LambdaLR:
    """Linear warm-up, then decay with the inverse square root of the number of updates: fairseq's `inverse_sqrt`.

    With t the updates made so far (0 when the first is made), lr the optimizer's learning rate, w the warm-up, T the
    time scale:

        warmup_init_lr + t * (lr - warmup_init_lr) / w    for t < w
        lr * sqrt(T / (t - w + T))                        from then on

    T is w where it is not given, which makes the second line fairseq's `lr * sqrt(w / t)`; without warm-up, which
    fairseq does not offer, it is 10,000 as in Transformers.

    Raises:
        InputError: a negative warm-up, a time scale below 1, or `warmup_init_lr` outside [0, lr].
    """
    scale = timescale if timescale is not None else warmup_steps or 10_000
    if scale < 1:
        raise InputError(f"timescale: {timescale} given, must be at least 1")
    return _warm_up_then(
        optimizer, warmup_steps, warmup_init_lr, lambda updates: math.sqrt(scale / (updates - warmup_steps + scale))
    )


def linear_schedule(
    optimizer: Optimizer, warmup_steps: int, total_steps: int, warmup_init_lr: float = 0.0
) -> LambdaLR:
    """Linear warm-up, then linear decay to 0 at update `total_steps`.

    Raises:
        InputError: as for `inverse_sqrt_schedule`, or `total_steps` not above `warmup_steps`.
    """
    if total_steps <= warmup_steps:
        raise InputError(f"total_steps: {total_steps} given, must be above warmup_steps ({warmup_steps})")
    return _warm_up_then(
        optimizer,
        warmup_steps,
        warmup_init_lr,
        lambda updates: max(0.0, (total_steps - updates) / (total_steps - warmup_steps)),
    )


def constant_schedule(optimizer: Optimizer, warmup_steps: int, warmup_init_lr: float = 0.0) -> LambdaLR:
    """Linear warm-up, then a constant learning rate.

    Raises:
        InputError: as for `inverse_sqrt_schedule`.
    """
    return _warm_up_then(optimizer, warmup_steps, warmup_init_lr, lambda updates: 1.0)


def _warm_up_then(
    optimizer: Optimizer, warmup_steps: int, warmup_init_lr: float, decay: Callable[[int], float]
) -> LambdaLR:
    """`decay` maps the number of updates, from the warm-up on, to a factor of the learning rate."""
    if warmup_steps < 0:
        raise InputError(f"warmup_steps: {warmup_steps} given, must be at least 0")
    lowest = min(group["lr"] for group in optimizer.param_groups)
    if not 0.0 <= warmup_init_lr <= lowest:
        raise InputError(f"warmup_init_lr: {warmup_init_lr} given, must be between 0 and the learning rate {lowest}")

    def factor_for(lr: float) -> Callable[[int], float]:
        start = warmup_init_lr / lr
        return lambda updates: (
            start + updates * (1.0 - start) / warmup_steps if updates < warmup_steps else decay(updates)
        )

    return LambdaLR(optimizer, [factor_for(group["lr"]) for group in optimizer.param_groups])


SCHEDULES: dict[str, Callable[..., LambdaLR]] = {
    "inverse_sqrt": inverse_sqrt_schedule,
    "linear": linear_schedule,
    "constant": constant_schedule,
}


def build_schedule(name: str, optimizer: Optimizer, warmup_steps: int, **options: Any) -> LambdaLR:
    """The schedule of that name; call its `step()` after every update.

    Args:
        name: "inverse_sqrt", "linear" or "constant".
        optimizer: its learning rate is the top of the schedule.
        warmup_steps: updates of linear warm-up.
        options: further arguments of the schedule (`warmup_init_lr`, `timescale`, `total_steps`).

    Raises:
        InputError: an unknown name, or what the schedule refuses.
    """
    if name not in SCHEDULES:
        raise InputError(f"schedule: {name!r} given, must be one of {sorted(SCHEDULES)}")
    return SCHEDULES[name](optimizer, warmup_steps, **options)
