# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""From a recipe to a folder with a trained model: read, tokenize, train, score, save."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainerCallback, set_seed

from residual_hf.base.files import (
    RECORD,
    check_output_folder,
    check_space,
    delete_replaced,
    emptied_folder,
    entries_until,
    expanded,
    read_json,
    write_atomically,
    write_json_lines,
)
from residual_hf.base.interrupts import signals_interrupt
from residual_hf.base.lock import Lock
from residual_hf.checkpoint import WEIGHT_FILES, save_checkpoint
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.pair_reader import check_files
from residual_hf.data.pipeline import Corpora, PreparedData, given_tokenizer, open_stream, prepare, read_corpora
from residual_hf.data.streaming import StreamedBatches
from residual_hf.evaluation.translation_metric import load_metric
from residual_hf.records.run_record import RunRecord, describe_data
from residual_hf.training.callbacks import (
    AfterFirstUpdate,
    EvaluationSummary,
    InterruptCallback,
    RecordCallback,
    StopWithoutImprovement,
    WarnOfZeroBLEU,
    show_progress,
)
from residual_hf.training.checkpoints import KeepCheckpoints, complete_checkpoints, disk_errors, step_of
from residual_hf.training.diagnostics import DiagnosticsCallback
from residual_hf.training.divergence import TrainingDivergedError
from residual_hf.training.launch import check_launch, keep_freed_memory, this_process
from residual_hf.training.trainer import ResidualTrainer
from residual_hf.training.training_settings import TrainingSettings

from .batch_size_finder import resolve_batch_size
from .building import build_model, model_class
from .final_model import choose_final_weights, final_scores, perplexities, record_end
from .logs import TerminalHandler, log_to
from .recipe import Recipe
from .resuming import check_run_folder, check_same_run, has_finished, tokenizer_hashes
from .validation import Validation
from .warm_start import Start, load_start

logger = logging.getLogger(__name__)

LOCK = "run.lock"


class Interrupted(KeyboardInterrupt):
    """Training was stopped by the user; it can be resumed from a checkpoint."""


def train(
    recipe: Recipe, *, overwrite: bool = False, resume: bool = False, inputs: Iterable[Path] = ()
) -> dict[str, Any]:
    """Run a recipe and return its metrics.

    `recipe.output_dir` receives:

    - `model/`: the final model with its card, see `save_checkpoint`.
    - `metrics.json`: scores with signatures; `metrics.jsonl`: all log entries; `train.log`: the log.
    - `run.json`: command, commit, versions, seed, hashes of the data and speed, see `RunRecord`; `recipe.yaml`.
    - `valid.sources.txt`, `valid.hypotheses.txt` and `valid.references.txt`, as they were scored, and those of `test`.
    - `cleaning.json`: what cleaning removed from the training corpus.
    - `tokenizer/`, `checkpoints/` and `cache/`.
    - `diagnostics.jsonl` and `spikes/`: with `training.diagnostics`, see `DiagnosticsCallback`.

    Args:
        overwrite: replace the earlier run in the folder; its files are deleted after the first update, see
            `check_output_folder`.
        resume: continue the run in the folder, see `check_same_run`; one that `has_finished` stays as it is.
        inputs: files to keep in addition to those of the recipe, such as the recipe itself.

    Raises:
        InputError: before training starts, for input that cannot be used, such as an output folder that is not empty
            without `overwrite` or `resume`, or that another process trains in.
        Interrupted: after Ctrl-C.
        TrainingDivergedError: see `DivergenceGuard`.
    """
    with log_to(TerminalHandler()) if this_process().is_main_process else nullcontext():
        return train_in_folder(recipe, overwrite, resume, inputs)


def train_in_folder(recipe: Recipe, overwrite: bool, resume: bool, inputs: Iterable[Path]) -> dict[str, Any]:
    """Check the input, prepare the output folder and train, see `train`."""
    check_launch(recipe.training)
    for name in recipe.evaluation.metrics:
        load_metric(name)
    check_files(recipe.corpora)
    start = None
    if recipe.starts_from is not None:
        logger.info("loading %s", recipe.starts_from)
        start = load_start(recipe.starts_from, recipe.model_fields, model_class(recipe))
    folder, processes = expanded(recipe.output_dir), this_process()
    if recipe.tokenizer.path is not None and not (resume and (folder / "tokenizer").exists()):
        given_tokenizer(recipe.tokenizer.path, recipe.tokenizer.kind)
    if resume:
        check_run_folder(folder)
        check_space(folder)
        check_output_folder(folder / "model", overwrite=True, holds=WEIGHT_FILES)
    else:
        check_output_folder(
            folder,
            overwrite=overwrite,
            holds=[RECORD],
            inputs=[*inputs, *recipe.input_paths],
            options="--overwrite, --resume",
        )
    if ".." in folder.parts:
        folder = folder.resolve()  # what is before ".." may be a part of an earlier run, which is moved
    logger.info("reading the corpora")
    texts = read_corpora(recipe.data)
    if resume:
        check_same_run(recipe, texts, folder)
        if has_finished(recipe, texts, folder):
            logger.info("%s has finished, and the recipe is the same: nothing to do", folder)
            return read_json(folder / "metrics.json")
    processes.wait_for_everyone()  # all have checked the folder before the first one writes to it
    with run_folder(folder, resume=resume) if processes.is_main_process else nullcontext() as ready:
        processes.wait_for_everyone()
        with disk_errors(folder):
            return train_on(recipe, texts, folder, start=start, resume=resume, ready=ready)


@contextmanager
def run_folder(folder: Path, *, resume: bool = False) -> Iterator[Callable[[], None]]:
    """Context in which this process has a run folder for itself and logs to it.

    Unless `resume`, the folder is empty. The context yields a function that deletes what was in it, see
    `emptied_folder`.
    """
    emptied = nullcontext(partial(delete_replaced, folder)) if resume else emptied_folder(folder, keep=LOCK)
    with (
        signals_interrupt(),
        Lock(folder / LOCK, f"output_dir: {folder}"),
        emptied as delete_former,
        log_to(logging.FileHandler(folder / "train.log", encoding="utf-8")),
    ):
        yield delete_former


def record_start(recipe: Recipe, texts: Corpora, folder: Path) -> None:
    """Write `run.json` and `recipe.yaml`."""
    data = describe_data(recipe.data, texts)
    RunRecord.begin(folder, recipe.training.seed, this_process().num_processes, data)
    write_atomically(folder / "recipe.yaml", yaml.safe_dump(recipe.as_dict(), sort_keys=False))


def train_on(
    recipe: Recipe,
    texts: Corpora,
    folder: Path,
    *,
    start: Start | None = None,
    resume: bool = False,
    progress: TrainerCallback | None = None,
    ready: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run a recipe on corpora that are already in memory (`train`, `valid` and optionally `test`).

    Args:
        recipe: of the run.
        texts: the corpora.
        folder: of the run, see `train`.
        start: the model to start from; None for a freshly initialized one.
        resume: continue from the last checkpoint in the folder.
        progress: replaces the progress bar.
        ready: called after the first update.
    """
    started = time.time()
    keep_freed_memory()
    set_seed(recipe.training.seed)
    if this_process().is_main_process:
        record_start(recipe, texts, folder)
    data = prepare_data(recipe, texts, folder, start)
    model = build_model(recipe, data.tokenizer, start)
    settings = resolve_batch_size(recipe, model, data.longest, folder)
    interrupt = InterruptCallback()
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
            WarnOfZeroBLEU(),
            interrupt,
            *([] if ready is None else [AfterFirstUpdate(ready)]),
            KeepCheckpoints(folder / "checkpoints", settings.keep_last, settings.keep_best, settings.metric),
            StopWithoutImprovement(settings.patience, settings.metric),
        ],
    )
    show_progress(trainer, progress)
    if settings.diagnostics is not None:
        trainer.add_callback(DiagnosticsCallback(folder, settings.diagnostics.every, log=trainer.log))
    log_model(model)
    checkpoints = complete_checkpoints(folder / "checkpoints") if resume else []
    if trainer.is_world_process_zero():
        begin_log(folder / "metrics.jsonl", step_of(checkpoints[-1]) if checkpoints else 0)
        check_space(folder, bytes_to_write(model, settings, folder / "checkpoints"))
        RunRecord.update(folder, tokenizer=tokenizer_hashes(folder))
        RunRecord.add_precision(folder, trainer.precision)
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
    averaged = choose_final_weights(trainer, folder / "checkpoints")
    if trainer.is_world_process_zero():
        RunRecord.update(folder, averaged=averaged)
        save_checkpoint(trainer.model, data.tokenizer, folder / "model", overwrite=True)
    metrics = {"updates": trainer.state.global_step, "minutes": round((time.time() - started) / 60, 2)}
    metrics |= (perplexities if recipe.data.is_text else final_scores)(trainer, recipe, data, folder)
    if trainer.is_world_process_zero():
        record_end(recipe, trainer, metrics, folder, time.time() - started)
    return metrics


def prepare_data(recipe: Recipe, texts: Corpora, folder: Path, start: Start | None = None) -> PreparedData:
    """The tokenizer and the encoded corpora of a run, for the positions of its model."""
    positions = (recipe.build_config() if start is None else start.model.config).max_position_embeddings
    recipe.check_block_size(positions)
    return prepare(
        texts,
        recipe.data,
        recipe.tokenizer,
        folder,
        target_languages=recipe.target_languages,
        positions=positions,
        max_tokens=recipe.max_tokens,
        seed=recipe.training.seed,
        context_window=recipe.evaluation.context_window,
    )


def training_data(
    recipe: Recipe, settings: TrainingSettings, data: PreparedData, model: Any
) -> StreamedBatches | EncodedCorpus:
    """The training corpus in memory, or the batches of this process, read during training."""
    if not recipe.data.stream:
        return data.encoded["train"]
    return open_stream(
        recipe.data,
        data.tokenizer,
        settings.token_budget,
        positions=model.config.max_position_embeddings,
        seed=settings.seed,
        multiple=settings.batch_size_multiple,
        order=settings.batch_order,
        rank=this_process().process_index,
        world_size=this_process().num_processes,
    )


def bytes_to_write(model: Any, settings: TrainingSettings, checkpoints: Path) -> int:
    """Disk space for the checkpoints and the final model, without those that exist."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    each = weights * (4 if settings.ema_decay else 3)  # with the two moments of Adam
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
