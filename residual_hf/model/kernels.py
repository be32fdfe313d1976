# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Registry of faster functions for the modules of a model.

A `kernel` has the module as its first argument and then those of `forward`. A module without one, as all are outside
of such a run, computes as its class says. Residual connections have a `kernel` too, which their layers call.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Kernel = Callable[..., Any]


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`."""

    kernel: Kernel | None = None

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) if self.kernel is None else self.kernel(self, values)


class Projection(nn.Linear):
    """`torch.nn.Linear`, of a sub-layer or from states to logits."""

    init_style: str  # of a sub-layer, with its gain
    init_gain: float
    kernel: Kernel | None = None

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) if self.kernel is None else self.kernel(self, values)
