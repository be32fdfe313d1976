"""Learning rate schedules: those of Transformers after the warm-up of fairseq."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from residual_hf.model.options import option

from .optimization import OptimizerSettings

logger = logging.getLogger(__name__)

TRANSFORMERS_SCHEDULES = ("cosine", "cosine_with_restarts", "cosine_with_min_lr", "polynomial", "warmup_stable_decay")
SCHEDULES = ("inverse_sqrt", "linear", "constant", *TRANSFORMERS_SCHEDULES)


@dataclass(frozen=True)
class ScheduleSettings(OptimizerSettings):
    """The optimizer of a run and the schedule of its learning rate."""

    schedule: str = option(
        "inverse_sqrt",
        choices=SCHEDULES,
        help="decay after the warm-up; `linear` reaches 0 at the last update; `cosine` and the following are "
        "schedules of `transformers.get_scheduler`",
    )
    schedule_options: dict = option(
        {}, help="arguments of a Transformers schedule, such as `{num_cycles: 2}` or `{lr_end: 1.0e-6, power: 2}`"
    )
    warmup_updates: int = option(4000, minimum=0, help="updates of linear warm-up")
    warmup_init_lr: float = option(1e-7, minimum=0, help="learning rate at the start of the warm-up")
    timescale: int | None = option(
        None,
        minimum=1,
        help="T in `sqrt(T / (T + t))`, the decay of `inverse_sqrt` t updates after the warm-up; default: "
        "`warmup_updates`",
    )

    def check_schedule(self, max_updates: int | None) -> None:
        """Raise `InputError` unless the fields fit each other and the number of updates."""
        name, kind = self.schedule, f"schedule {self.schedule!r}"
        self.require(self.warmup_init_lr <= self.lr, "warmup_init_lr", f"<= lr ({self.lr:g})")
        self.require(self.timescale is None or name == "inverse_sqrt", "timescale", f"null with {kind}")
        self.require(
            not self.schedule_options or name in TRANSFORMERS_SCHEDULES, "schedule_options", f"empty with {kind}"
        )
        end = math.inf if name in ("inverse_sqrt", "constant") else max_updates or math.inf
        self.require(self.warmup_updates < end, "warmup_updates", f"< max_updates with {kind}")
        numbers = {name: value for name, value in self.schedule_options.items() if isinstance(value, float | int)}
        fit = numbers.get("min_lr", 0) <= self.lr and numbers.get("num_decay_steps", 0) <= end - self.warmup_updates
        self.require(
            fit and all(0 <= value < math.inf for value in numbers.values()),
            "schedule_options",
            f"without numbers that are negative or not finite, and with a min_lr of at most lr ({self.lr:g}) and "
            "num_decay_steps of at most max_updates - warmup_updates",
        )
        self.require(
            "num_stable_steps" not in self.schedule_options,
            "schedule_options",
            "without num_stable_steps, which follows from the number of updates",
        )
        try:
            for update in (self.warmup_updates, updates := max_updates or self.warmup_updates + 1):
                decay_of(self, updates)(update)
        except (KeyError, TypeError, ValueError) as error:
            self.require(False, "schedule_options", f"arguments of {kind} of Transformers: {error}")


def build_schedule(settings: ScheduleSettings, optimizer: Optimizer, total_updates: int) -> LambdaLR:
    """The learning rate schedule of a run; call its `step()` after every update.

    With t the number of updates made, w = `warmup_updates` and n = `total_updates`, the learning rate is

        warmup_init_lr + t * (lr - warmup_init_lr) / w    for t < w
        lr * decay(t)                                     for t >= w

    where decay(t) is

        sqrt(T / (t - w + T))     inverse_sqrt, with T = timescale or w (fairseq: sqrt(w / t)), 10,000 if both are 0
        (n - t) / (n - w)         linear
        1                         constant

    or another schedule of `transformers.get_scheduler`, which computes all of them, with `schedule_options`.
    """
    warmup, start = settings.warmup_updates, settings.warmup_init_lr / settings.lr
    if warmup >= total_updates:
        message = "training.warmup_updates: %d given, but the run has %d updates: lr is not reached"
        logger.warning(message, warmup, total_updates)
    after_warmup = max(total_updates - warmup, 0)
    settings.require(
        settings.schedule_options.get("num_decay_steps", 0) <= after_warmup,
        "schedule_options",
        f"with num_decay_steps of at most {after_warmup}, the updates of this run after the warm-up",
    )
    decay = decay_of(settings, total_updates)
    return LambdaLR(optimizer, lambda t: start + t * (1.0 - start) / warmup if t < warmup else decay(t))


def decay_of(settings: ScheduleSettings, total_updates: int) -> Callable[[int], float]:
    """The factor of the learning rate after `t` updates, from the end of the warm-up on."""
    placeholder = SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.lr)
    options = settings.schedule_options if settings.timescale is None else {"timescale": settings.timescale}
    schedule: Any = get_scheduler(
        settings.schedule, placeholder, settings.warmup_updates, total_updates, scheduler_specific_kwargs=options
    )
    return schedule.lr_lambdas[0]
