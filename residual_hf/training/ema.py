# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""An exponential moving average of the weights, which is what is evaluated and kept in the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback

from residual_hf.errors import InputError

EMA_FILE = "ema.safetensors"


class EMACallback(TrainerCallback):
    """After update t: average <- d_t * average + (1 - d_t) * weights,  d_t = min(decay, (1 + t) / (10 + t)).

    The growing decay lets the average forget the initial weights; tensorflow's ExponentialMovingAverage has it so.
    The average is held in the type and on the device of the weights.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.average: dict[str, Tensor] | None = None

    @torch.no_grad()
    def start(self) -> None:
        """Begin with the present weights."""
        self.average = {name: weight.detach().clone() for name, weight in self.weights.items()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.average is None:
            self.start()

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        weights = [self.weights[name].detach() for name in self.average]
        torch._foreach_lerp_(list(self.average.values()), weights, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the averaged weights; with its own again afterwards."""
        if self.average is None:
            yield
            return
        own = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self._copy(self.average)
        try:
            yield
        finally:
            self._copy(own)

    def save(self, checkpoint: Path) -> None:
        """Write the average beside the weights of a checkpoint."""
        if self.average is not None:
            unfinished = checkpoint / f".{EMA_FILE}.tmp"
            save_file({name: tensor.contiguous() for name, tensor in self.average.items()}, unfinished)
            os.replace(unfinished, checkpoint / EMA_FILE)

    @torch.no_grad()
    def load(self, checkpoint: Path) -> None:
        """Go on from the average of a checkpoint. Raises `InputError` where it has none, or that of another model."""
        path = checkpoint / EMA_FILE
        if not path.exists():
            raise InputError(f"training.ema_decay: {checkpoint} has no {EMA_FILE}: it was written without")
        saved = load_file(path)
        if {n: t.shape for n, t in saved.items()} != {n: w.shape for n, w in self.weights.items()}:
            raise InputError(f"{path}: not the weights of this model")
        self.average = {name: saved[name].to(weight) for name, weight in self.weights.items()}

    @torch.no_grad()
    def apply(self) -> None:
        """Leave the averaged weights in the model for good."""
        self._copy(self.average)

    @torch.no_grad()
    def _copy(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.weights[name].copy_(value)
