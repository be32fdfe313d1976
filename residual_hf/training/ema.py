"""An exponential moving average (EMA) of the weights, which is evaluated and kept instead of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import TrainerCallback

from residual_hf.base.errors import input_errors
from residual_hf.base.files import atomic_file

from .checkpoints import read_tensors

EMA_FILE = "ema.safetensors"


class EMACallback(TrainerCallback):
    """After update t: average <- d_t * average + (1 - d_t) * weights,  d_t = min(decay, (1 + t) / (10 + t)).

    The growing decay, from TensorFlow's ExponentialMovingAverage, lets the average forget the initial weights. The
    average has the type and the device of the weights.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.average: dict[str, Tensor] = {}

    @torch.no_grad()
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.average:
            self.average = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        weights = [self.weights[name].detach() for name in self.average]
        torch._foreach_lerp_(list(self.average.values()), weights, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the model has the averaged weights, if training has begun."""
        own = {name: self.weights[name].detach().clone() for name in self.average}
        self.apply()
        try:
            yield
        finally:
            self._copy(own)

    def apply(self) -> None:
        """Replace the weights of the model by their average."""
        self._copy(self.average)

    def save(self, checkpoint: Path) -> None:
        if self.average:
            with atomic_file(checkpoint / EMA_FILE) as path:
                save_file({name: tensor.contiguous() for name, tensor in self.average.items()}, path)

    def load(self, checkpoint: Path) -> None:
        """Continue from the average in a checkpoint. Raises `InputError` if it has none, or that of another model."""
        with input_errors("training.ema_decay: "):
            saved = read_tensors(checkpoint / EMA_FILE, self.weights)
        self.average = {name: saved[name].to(weight) for name, weight in self.weights.items()}

    @torch.no_grad()
    def _copy(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.weights[name].copy_(value)
