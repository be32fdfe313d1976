# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The fourth stage of a run: updates of the model, from the last checkpoint of a resumed run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from residual_hf.base.files import check_space, entries_until, number_of, write_json_lines
from residual_hf.data.pipeline import PreparedData
from residual_hf.records.run_record import RunRecord
from residual_hf.training.callbacks import (
    AfterFirstUpdate,
    EvaluationSummary,
    InterruptCallback,
    RecordCallback,
    StopWithoutImprovement,
    show_progress,
)
from residual_hf.training.checkpoints import KeepCheckpoints, complete_checkpoints
from residual_hf.training.diagnostics import DiagnosticsCallback
from residual_hf.training.divergence import TrainingDivergedError
from residual_hf.training.trainer import ResidualTrainer
from residual_hf.training.training_settings import TrainingSettings

from .preparation import training_data
from .recipe import Recipe
from .resuming import tokenizer_hashes
from .validation import Validation

logger = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """Training was stopped by the user; it can be resumed from a checkpoint."""


class RecordTime(TrainerCallback):
    """Writes the duration of a run to its record with every checkpoint."""

    def __init__(self, folder: Path, started: float):
        self.folder, self.started = folder, started

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            RunRecord.update(self.folder, seconds=round(time.time() - self.started, 1))


def build_trainer(
    recipe: Recipe,
    settings: TrainingSettings,
    data: PreparedData,
    model: Any,
    folder: Path,
    ready: Callable[[], None] | None = None,
) -> ResidualTrainer:
    """The trainer of a run, with what it logs, keeps and watches.

    `settings` are those of the recipe with numbers for the batch size; `ready` is called after the first update.
    """
    trainer = ResidualTrainer(
        model,
        settings,
        str(folder / "checkpoints"),
        training_data(recipe, settings, data, model),
        data.encoded["valid"],
        score=Validation(recipe, data).figures if settings.eval_bleu and not recipe.data.is_text else None,
        processing_class=data.tokenizer,
        callbacks=[
            RecordCallback(folder / "metrics.jsonl"),
            EvaluationSummary(folder / "learning_curve.png", settings.metric),
            *([] if ready is None else [AfterFirstUpdate(ready)]),
            KeepCheckpoints(folder / "checkpoints", settings.keep_last, settings.keep_best, settings.metric),
            StopWithoutImprovement(settings.patience, settings.metric),
        ],
    )
    show_progress(trainer)
    if settings.diagnostics is not None:
        trainer.add_callback(DiagnosticsCallback(folder, settings.diagnostics.every, log=trainer.log))
    log_model(model)
    return trainer


def fit(trainer: ResidualTrainer, folder: Path, started: float, *, resume: bool = False) -> None:
    """Train to the last update, in a run that began at the time `started`, without pauses.

    Raises `Interrupted` after Ctrl-C, and `TrainingDivergedError`.
    """
    checkpoints = complete_checkpoints(folder / "checkpoints") if resume else []
    if trainer.is_world_process_zero():
        begin_log(folder / "metrics.jsonl", number_of(checkpoints[-1]) if checkpoints else 0)
        check_space(folder, bytes_to_write(trainer.model, trainer.settings, folder / "checkpoints"))
        RunRecord.update(folder, tokenizer=tokenizer_hashes(folder))
        RunRecord.add_precision(folder, trainer.precision)
    interrupt = InterruptCallback()
    trainer.add_callback(interrupt)
    trainer.add_callback(RecordTime(folder, started))
    try:
        trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    except TrainingDivergedError as error:
        if trainer.is_world_process_zero():
            RunRecord.update(folder, diverged=str(error))
        raise
    finally:
        interrupt.restore()
    if interrupt.interrupted:
        raise Interrupted(f"stopped at update {trainer.state.global_step}; use --resume to continue")


def bytes_to_write(model: Any, settings: TrainingSettings, checkpoints: Path) -> int:
    """Disk space for the checkpoints and the final model, without those that exist."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    each = weights + trained * (3 if settings.ema_decay else 2)  # with the two moments of Adam
    existing = sum(path.stat().st_size for path in checkpoints.rglob("*") if path.is_file())
    return each * (settings.keep_last + settings.keep_best + 1) + weights - existing


def begin_log(path: Path, update: int) -> None:
    """Drop the entries that a run wrote after the update from which it continues, and those of its final scores."""
    kept = [entry for entry in entries_until(update, path) if not {"valid_loss", "test_loss"} & entry.keys()]
    write_json_lines(path, kept)


def log_model(model: Any) -> None:
    config = model.config
    logger.info(
        "%s, %s layers of width %d, %.2f M parameters",
        "/".join(config.stack_ln_mode(stack) for stack in config.stacks),
        "+".join(str(getattr(config, f"{stack}_layers")) for stack in config.stacks),
        config.d_model,
        sum(p.numel() for p in model.parameters()) / 1e6,
    )
