"""The fourth stage of a run: updates of the model, from the last checkpoint of a resumed run, and evaluations."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from residual_hf.base.files import REPLACED, check_space, entries_until, number_of, write_json_lines
from residual_hf.base.processes import this_process
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.pipeline import PreparedData
from residual_hf.evaluation.scorer import make_scorers, mean_figures
from residual_hf.generation.scoring import translate_corpus
from residual_hf.records.run_record import RunRecord, of_all_starts
from residual_hf.training.callbacks import (
    DeleteReplaced,
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


class Validation:
    """Translates `eval_sentences` of the validation corpora with `eval_beams` and scores the translations.

    The sentences are the same at every evaluation, and so are the `eval_samples` of them that it writes to the log.
    """

    def __init__(self, recipe: Recipe, data: PreparedData):
        settings, corpora = recipe.training, data.references["valid"]
        parts = spread_rows([len(corpus) for corpus in corpora], settings.eval_sentences)
        chosen = [corpus.select(rows) for corpus, rows in zip(corpora, parts, strict=True)]
        starts = np.cumsum([0, *map(len, corpora)])[:-1]
        self.rows = np.concatenate([start + rows for start, rows in zip(starts, parts, strict=True)])
        self.scorers = make_scorers(chosen, recipe.data.pretokenized, recipe.evaluation, task=recipe.chosen_task)
        self.pairs = [pair for corpus in chosen for pair in corpus]
        self.samples = spread_rows([len(self.pairs)], settings.eval_samples)[0]
        self.decoding = replace(recipe.decoding, num_beams=settings.eval_beams, shortlist=False)
        self.tokenizer, self.has_text = data.tokenizer, recipe.chosen_task.has_source_text

    def figures(self, model: Any, valid: EncodedCorpus) -> dict[str, float]:
        """Mean scores over the corpora, for logs and the choice of checkpoints."""
        read = [source if self.has_text else "" for source, _ in self.pairs]
        translations = translate_corpus(model, self.tokenizer, valid.select(self.rows), read, self.decoding)
        if this_process().is_main_process:
            for row in self.samples:
                texts = dict(zip(("source", "reference"), self.pairs[row], strict=True), translation=translations[row])
                # an untrained model repeats itself up to the length limit
                lines = [f"  {name + ':':<12} {text[:500]}" for name, text in texts.items()]
                logger.info("validation sentence %d\n%s", self.rows[row] + 1, "\n".join(lines))
        return mean_figures(self.scorers, translations)


def spread_rows(sizes: Sequence[int], limit: int | None) -> list[np.ndarray]:
    """About `limit` rows of corpora of these sizes: evenly spaced, the same number from each; all rows for None."""
    share = max(sizes) if limit is None else -(-limit // len(sizes))
    return [np.linspace(0, size - 1, min(size, share)).round().astype(int) for size in sizes]


def build_trainer(
    recipe: Recipe, settings: TrainingSettings, data: PreparedData, model: Any, folder: Path
) -> ResidualTrainer:
    """The trainer of a run, with what it logs, keeps and watches.

    `settings` are those of the recipe with numbers for the batch size.
    """
    trainer = ResidualTrainer(
        model,
        settings,
        str(folder / "checkpoints"),
        training_data(recipe, settings, data, model),
        data.encoded["valid"],
        score=Validation(recipe, data).figures if settings.eval_bleu and recipe.chosen_task.scores else None,
        processing_class=data.tokenizer,
        callbacks=[
            RecordCallback(folder / "metrics.jsonl"),
            EvaluationSummary(folder / "learning_curve.png", settings.metric),
            DeleteReplaced(folder),
            KeepCheckpoints(folder / "checkpoints", settings.keep_last, settings.keep_best, settings.metric),
            StopWithoutImprovement(settings.patience, settings.metric),
        ],
    )
    show_progress(trainer)
    if settings.diagnostics is not None:
        trainer.add_callback(DiagnosticsCallback(folder, settings.diagnostics.every, log=trainer.log))
    stacks = model.config.stack_configs
    modes, layers = "/".join(own.ln_mode for own in stacks), "+".join(str(own.layers) for own in stacks)
    size = model.num_parameters() / 1e6
    logger.info("%s, %s layers of width %d, %.2f M parameters", modes, layers, model.config.d_model, size)
    return trainer


def fit(trainer: ResidualTrainer, folder: Path, started: float, *, resume: bool = False) -> None:
    """Train to the last update or for `max_minutes`, in a run that began at the time `started`, without pauses.

    Raises `Interrupted` after Ctrl-C, and `TrainingDivergedError`.
    """
    checkpoints = complete_checkpoints(folder / "checkpoints") if resume else []
    if trainer.is_world_process_zero():
        kept = entries_until(number_of(checkpoints[-1]) if checkpoints else 0, folder / "metrics.jsonl")
        final = {"valid_loss", "test_loss"}  # of the scores of the final model
        write_json_lines(folder / "metrics.jsonl", [entry for entry in kept if not final & entry.keys()])
        check_space(folder, bytes_to_write(trainer.model, trainer.settings, folder / "checkpoints"))
        precision = of_all_starts(RunRecord.read(folder).precision, trainer.precision)
        RunRecord.update(folder, tokenizer=tokenizer_hashes(folder), precision=precision)
    interrupt = InterruptCallback(trainer.settings.max_minutes)
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
    if interrupt.out_of_time and trainer.is_world_process_zero():
        where = trainer.state.global_step, trainer.state.max_steps
        logger.info("training.max_minutes: stopped at update %d of %d; --resume trains on", *where)
        RunRecord.update(folder, out_of_time=True)


def bytes_to_write(model: Any, settings: TrainingSettings, checkpoints: Path) -> int:
    """Disk space for the checkpoints and the final model, without what exists and makes room."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    each = weights + trained * (3 if settings.ema_decay else 2)  # with the two moments of Adam
    freed = (checkpoints, *checkpoints.parent.glob(f"{REPLACED}*"))  # by rotation, and of a run that is overwritten
    existing = sum(path.stat().st_size for place in freed for path in place.rglob("*") if path.is_file())
    return each * (settings.keep_last + settings.keep_best + 1) + weights - existing
