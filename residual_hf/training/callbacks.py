# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What happens beside a training run: records of its figures, and a graceful end on Ctrl-C."""

from __future__ import annotations

import json
import logging
import signal
import threading
from pathlib import Path
from typing import Any

import torch
from transformers import ProgressCallback, TrainerCallback

logger = logging.getLogger(__name__)


class RecordCallback(TrainerCallback):
    """Appends every logged figure to a JSON-lines file and to the log."""

    def __init__(self, path: Path):
        self.path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        record = {"step": state.global_step, **logs}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        logger.info(
            "update %d  %s",
            state.global_step,
            "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in logs.items()),
        )


class ProgressBar(ProgressCallback):
    """Transformers' bar with the latest figures beside it; the figures themselves are written by `RecordCallback`."""

    SHOWN = ("nll", "tokens_per_second", "learning_rate", "grad_norm", "eval_nll", "eval_bleu")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.training_bar is not None and logs:
            self.training_bar.set_postfix({name: f"{logs[name]:.3g}" for name in self.SHOWN if name in logs})


class StopAfterEpochs(TrainerCallback):
    """Ends training after so many epochs where a number of updates is given too, which Transformers obeys alone."""

    def __init__(self, epochs: int):
        self.epochs = epochs

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if round(state.epoch) >= self.epochs:
            control.should_evaluate = control.should_save = control.should_training_stop = True


class InterruptCallback(TrainerCallback):
    """The first Ctrl-C (or SIGTERM) ends training behind a checkpoint; the second one ends it at once.

    Several processes agree every few updates, or one would wait for the others forever.
    """

    AGREE_EVERY = 10

    def __init__(self) -> None:
        self.interrupted = False
        self._previous: dict[int, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.interrupted = True
        self._restore()
        logger.warning("interrupted: saving a checkpoint; once more to stop at once")

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.world_size > 1:
            if state.global_step % self.AGREE_EVERY:
                return
            interrupted = torch.tensor(float(self.interrupted), device=args.device)
            torch.distributed.all_reduce(interrupted, torch.distributed.ReduceOp.MAX)
            self.interrupted = bool(interrupted.item())
        if self.interrupted:
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._restore()
