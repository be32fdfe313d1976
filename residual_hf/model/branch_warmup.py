# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Branch warm-up: a factor on all branches that grows from 0 to 1 during the first updates, deeper layers later.

The number of updates is a buffer: it is saved with the weights, and a change compiles nothing again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .initialization import BareParameters
from .options import Settings, option

SCHEDULES = {"linear": 1.0, "linear_square": 2.0, "linear_sqrt": 0.5, "equal": 1.0}  # the power of the progress
STAGES: dict[str, Callable[[int, int], float]] = {  # the factor with which layer l of L waits for its stage
    "stagewise_0": lambda layer, layers: 0.0,
    "stagewise_L": lambda layer, layers: 1 / layers,
    "stagewise_sqrt_L": lambda layer, layers: layers**-0.5,
    "stagewise_sqrt_l": lambda layer, layers: layer**-0.5,
}


@dataclass(frozen=True)
class BranchWarmupSettings(Settings):
    """The field `branch_warmup` of a config."""

    schedule: str = option(
        "linear",
        choices=(*SCHEDULES, *STAGES),
        help="a = min(1, t / (T*l)) in layer l = 1, 2, ... at update t, its square or square root; `equal`: T in all "
        "layers; `stagewise`: layers in turn, T updates each, from 0, 1/L, 1/sqrt(L) or 1/sqrt(l) in a stack of L",
    )
    updates: int = option(1000, minimum=1, help="T, the number of updates in which the first layer warms up")


class BranchWarmup(BareParameters):
    """The factor on the branches of a layer.

    Source: Chen et al. 2026, Progressive Residual Warmup for Language Model Pretraining, equation 3 and table 1, here
    with layers counted in each stack; Liu et al. 2023, BranchNorm, whose schedule is "equal". The stagewise schedules
    follow the official code of the former.
    """

    updates: Tensor

    def __init__(self, settings: BranchWarmupSettings, layer: int, num_layers: int):
        super().__init__()
        wait = STAGES.get(settings.schedule)
        self.power = SCHEDULES.get(settings.schedule, 1.0)
        self.floor = 0.0 if wait is None else wait(layer + 1, num_layers)
        self.start = 0 if wait is None else settings.updates * layer
        self.duration = settings.updates * (1 if settings.schedule == "equal" else layer + 1)
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))  # other types follow `model.to(dtype)`

    def forward(self) -> Tensor:
        """The factor, a scalar in fp32."""
        progress = (self.updates - self.start).float() / (self.duration - self.start)
        return self.floor + (1 - self.floor) * progress.clamp(0.0, 1.0) ** self.power

    @property
    def is_finished(self) -> bool:
        return int(self.updates) >= self.duration


def branch_warmups(model: nn.Module) -> list[BranchWarmup]:
    """The warm-ups of all layers of a model."""
    return [module for module in model.modules() if isinstance(module, BranchWarmup)]


def advance_branch_warmup(model: nn.Module) -> None:
    """Count one update. Call it after each step of the optimizer; the trainers of residual_hf do.

    `BranchWarmupCallback` does so in a `Seq2SeqTrainer`. Otherwise the factors stay as they begin.
    """
    for warmup in branch_warmups(model):
        warmup.updates.add_(1)


@contextmanager
def finished_branch_warmup(model: nn.Module) -> Iterator[None]:
    """Context in which the factors of all branches are 1."""
    before = [(warmup, warmup.updates.clone()) for warmup in branch_warmups(model)]
    for warmup, _ in before:
        warmup.updates.fill_(warmup.duration)
    try:
        yield
    finally:
        for warmup, updates in before:
            warmup.updates.copy_(updates)
