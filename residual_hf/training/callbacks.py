"""Trainer callbacks: logs, the position of a stream, and when training ends."""

import logging
import math
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from residual_hf.base.errors import InputError
from residual_hf.base.files import append_json_lines, delete_replaced, write_atomically
from residual_hf.base.interrupts import signals_handled
from residual_hf.base.tables import duration, figure
from residual_hf.model.branch_warmup import advance_branch_warmup
from residual_hf.records.learning_curve import learning_curve

from .training_settings import METRICS

logger = logging.getLogger(__name__)


class RecordCallback(TrainerCallback):
    """Appends every log entry to a JSON Lines file and, with the remaining time, to the log."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started, self.first = time.monotonic(), state.global_step
        if state.is_world_process_zero:
            logger.info("training: update %d to %d", state.global_step + 1, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        append_json_lines(self.path, {"step": state.global_step, **logs})
        left = ""
        if "loss" in logs:
            per_update = (time.monotonic() - self.started) / (state.global_step - self.first)
            left = f" of {state.max_steps}, {duration(per_update * (state.max_steps - state.global_step))} left"
        figures = "  ".join(f"{k} {figure(v) if isinstance(v, float) else v}" for k, v in logs.items())
        logger.info("update %d%s  %s", state.global_step, left, figures)


class EvaluationSummary(TrainerCallback):
    """Logs the best evaluation so far, draws the learning curve, and warns of a BLEU of 0 and of long evaluations.

    Args:
        picture: file of the learning curve, which needs matplotlib; drawn at most once in ten seconds, and at the end.
        metric: of the best checkpoint.
    """

    def __init__(self, picture: Path, metric: str):
        self.picture, self.metric = picture, metric
        self.last_picture = self.last_update = self.last_evaluation = time.monotonic()
        self.advised = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.last_update = time.monotonic()

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        name = f"eval_{self.metric}"
        if not state.is_world_process_zero or not metrics:
            return
        scores = [entry["eval_bleu"] for entry in state.log_history if "eval_bleu" in entry]
        if "eval_bleu" in metrics and len(scores) == 3 and max(scores) < 0.05:
            logger.warning(
                "validation BLEU is still 0 at update %d. If the NLL falls, check that source and target are aligned "
                "line by line, that evaluation.tokenize fits the target language, and that the warm-up is over "
                "(training.warmup_updates)",
                state.global_step,
            )
        if name not in metrics:
            return
        step, best = min(evaluations(state.log_history, self.metric).items(), key=lambda entry: entry[1])
        shown = figure(metrics[name]), figure(abs(best))
        logger.info("%s %s, best %s at update %d", self.metric, *shown, step)
        if time.monotonic() - self.last_picture >= 10:
            self._draw(state)
        self._advise()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._draw(state)

    def _draw(self, state: Any) -> None:
        if picture := learning_curve(state.log_history):
            write_atomically(self.picture, picture)
        self.last_picture = time.monotonic()

    def _advise(self) -> None:
        now = time.monotonic()
        spent, total = now - self.last_update, now - self.last_evaluation
        if not self.advised and spent > max(0.1 * total, 10):
            logger.warning(
                "evaluation took %s, %.0f%% of the time since the last one; to reduce it, raise training.eval_every "
                "or lower eval_sentences or eval_beams",
                duration(spent),
                100 * spent / total,
            )
            self.advised = True
        self.last_evaluation = now


class ProgressBar(ProgressCallback):
    """Transformers' progress bar with the latest figures; `RecordCallback` writes the log entries themselves."""

    SHOWN = ("nll", "tokens_per_second", "learning_rate", "grad_norm", "eval_nll", "eval_bleu")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.training_bar is not None and logs:
            self.training_bar.set_postfix({name: figure(logs[name]) for name in self.SHOWN if name in logs})


def show_progress(trainer: Trainer) -> None:
    """Replace the output of Transformers by a progress bar, unless bars are disabled."""
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ProgressBar)
    trainer.remove_callback(PrinterCallback)


class StreamPosition(TrainerCallback, ExportableState):
    """Stores the position of a `StreamedBatches` data set in the trainer's state, and resumes from it.

    Transformers writes the state of callbacks to `trainer_state.json` in each checkpoint and restores it.
    """

    def __init__(self) -> None:
        self.position: dict[str, Any] | None = None
        self.stream: Any = None
        self.consumed = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        self.stream = train_dataloader.dataset
        if self.position is not None:
            self.stream.start_from(self.position)
            self.consumed = self.position["batches"]
        elif state.global_step:
            raise InputError("data.stream: true, but the run to resume was started without it")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.consumed += args.gradient_accumulation_steps * args.world_size

    def state(self) -> dict[str, Any]:
        if self.stream is not None:
            self.position = self.stream.state(self.consumed)
        return {"args": {}, "attributes": {"position": self.position}}


class DeleteReplaced(TrainerCallback):
    """Deletes what a run replaces, see `emptied_folder`, after the first update of this process."""

    def __init__(self, folder: Path):
        self.folder, self.is_first = folder, True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.is_first and state.is_world_process_zero:
            delete_replaced(self.folder)
        self.is_first = False


class BranchWarmupCallback(TrainerCallback):
    """Counts updates for the branch warm-up of a model (`branch_warmup` in its config); for any `Trainer`."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        advance_branch_warmup(model)


class StopWithoutImprovement(TrainerCallback):
    """Stops after `patience` evaluations without improvement of `metric`; never with None.

    It reads the log, so that a resumed run has the patience of its recipe: Transformers' `EarlyStoppingCallback`
    restores that of the checkpoint.
    """

    def __init__(self, patience: int | None, metric: str):
        self.patience, self.metric = patience, metric

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= is_out_of_patience(state.log_history, self.patience, self.metric)


def is_out_of_patience(history: Iterable[Mapping[str, Any]], patience: int | None, metric: str) -> bool:
    """Whether a log has `patience` evaluations after the first one with the best value of `metric`."""
    values = list(evaluations(history, metric).values())
    return patience is not None and bool(values) and len(values) - 1 - values.index(min(values)) >= patience


def evaluations(history: Iterable[Mapping[str, Any]], metric: str) -> dict[int, float]:
    """`metric` of each evaluation in a log by its update, negative if greater is better; infinite instead of NaN."""
    name, sign = f"eval_{metric}", -1 if METRICS[metric] else 1
    values = {entry["step"]: sign * entry[name] for entry in history if name in entry}
    return {step: math.inf if math.isnan(value) else value for step, value in values.items()}


class StepsOfTheSettings(TrainerCallback):
    """Logs, evaluates and saves as often as the settings say; without it, a resumed run would do so as often as its
    checkpoint says."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)


class InterruptCallback(TrainerCallback):
    """Saves a checkpoint and stops training on the first Ctrl-C, SIGTERM or SIGHUP; a second stops immediately.

    Under `torchrun`, which passes signals on, a second one that comes at once is the first one again.

    A signal that the process ignores stays ignored: SIGHUP under `nohup`, Ctrl-C of a job that a script starts with
    `&`. After `max_minutes` it evaluates too, so that a model can be made of the checkpoint. Several processes agree
    every `AGREE_EVERY` updates, so that none waits for one that has stopped.
    """

    AGREE_EVERY = 10

    def __init__(self, max_minutes: float | None = None):
        self.interrupted = self.out_of_time = False
        self._noted: float | None = None
        self._one_signal = 2.0 if "TORCHELASTIC_RUN_ID" in os.environ else 0.0  # seconds
        self.seconds = math.inf if max_minutes is None else 60 * max_minutes
        self._handlers = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.monotonic()
        self._handlers.enter_context(signals_handled(self._note))

    def _note(self, number: int, frame: Any) -> None:
        if self._noted is None:
            self.interrupted, self._noted = True, time.monotonic()
            logger.warning("interrupted: saving a checkpoint; a second signal stops immediately")
        elif time.monotonic() - self._noted > self._one_signal:
            self.restore()
            signal.raise_signal(number)

    def restore(self) -> None:
        """Handle signals as before training."""
        self._handlers.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        out_of_time = time.monotonic() - self.started >= self.seconds
        if args.world_size > 1:
            if state.global_step % self.AGREE_EVERY:
                return
            self.interrupted, out_of_time = map(
                any, zip(*gather_object([(self.interrupted, out_of_time)]), strict=True)
            )
        if self.interrupted or out_of_time:
            self.out_of_time = not self.interrupted and state.global_step < state.max_steps
            if self.out_of_time:
                control.should_evaluate = True
            control.should_save = control.should_training_stop = True
