# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""From a recipe to a folder with a trained model: read, tokenize, train, score, save."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accelerate.utils import broadcast_object_list
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback, set_seed

from residual_hf.checkpoint import save_checkpoint
from residual_hf.data.corpus import describe_corpus
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.pair_reader import check_files
from residual_hf.data.pipeline import Corpora, PreparedData, open_stream, prepare, read_corpora
from residual_hf.errors import InputError
from residual_hf.evaluation.scorer import Scorer, full_report, make_scorers, mean_figures
from residual_hf.evaluation.translation_metric import load_metric
from residual_hf.files import check_output_folder, make_output_folder, write_atomically, write_json
from residual_hf.generation.decode import translate_corpus
from residual_hf.hub.card import write_card

from .batch_size_finder import resolve_budget
from .building import build_model
from .callbacks import InterruptCallback, ProgressBar, RecordCallback, StopAfterEpochs
from .checkpoints import KeepCheckpoints, choose_checkpoints, complete_checkpoints, load_average
from .launch import check_launch, keep_freed_memory, this_process
from .recipe import Recipe
from .records import RunRecord, describe_corpora, log_file, measured_emissions, now
from .settings import METRICS, TrainingSettings
from .trainer import ResidualTrainer

logger = logging.getLogger(__name__)


class Interrupted(Exception):
    """Training was stopped by the user; a checkpoint is there to resume from."""


def train(recipe: Recipe, *, overwrite: bool = False, resume: bool = False) -> dict[str, Any]:
    """Run a recipe and return its metrics.

    `recipe.output_dir` receives `model/` (the final folder with its card, see `save_checkpoint`), `metrics.json`,
    `metrics.jsonl` (every logged figure), `train.log`, `run.json` (command, commit, versions, seed, hashes of the
    data, speed), `recipe.yaml`, `cleaning.json` (what was left out of the training corpus), `valid.hypotheses.txt`,
    `valid.references.txt` (as they were scored), the same of `test`, `tokenizer/`, `checkpoints/` and `cache/`.

    Raises `InputError` before any long work for input that cannot be used, in particular an output folder that holds
    something while neither `overwrite` nor `resume` is given; `Interrupted` after Ctrl-C.
    """
    data = recipe.data
    check_launch(recipe.training)
    for name in recipe.evaluation.metrics:
        load_metric(name)
    check_files([*data.train, *data.valid, *(data.test or [])])
    folder = Path(recipe.output_dir)
    check_output_folder(folder, overwrite=overwrite or resume, options="--overwrite, --resume")
    texts = read_corpora(recipe.data)
    processes = this_process()
    processes.wait_for_everyone()  # all have checked the folder before the first one writes into it
    if processes.is_main_process:
        folder.mkdir(parents=True, exist_ok=True) if resume else make_output_folder(folder, overwrite=overwrite)
        write_atomically(folder / "recipe.yaml", yaml.safe_dump(recipe.as_dict(), sort_keys=False))
    processes.wait_for_everyone()
    with log_file(folder / "train.log") if processes.is_main_process else nullcontext():
        return train_on(recipe, texts, folder, resume=resume)


def train_on(
    recipe: Recipe,
    texts: Corpora,
    folder: Path,
    *,
    resume: bool = False,
    progress: TrainerCallback | None = None,
) -> dict[str, Any]:
    """Run a recipe on corpora that are already in memory (`train`, `valid` and optionally `test`).

    `progress` replaces the progress bar.
    """
    started = time.time()
    keep_freed_memory()
    set_seed(recipe.training.seed)
    processes = this_process()
    if processes.is_main_process:
        RunRecord.begin(folder, recipe.training.seed, processes.num_processes, texts)
    positions, max_tokens = recipe.build_config().max_position_embeddings, recipe.training.max_tokens
    data = prepare(
        texts,
        recipe.data,
        recipe.tokenizer,
        folder,
        target_languages=recipe.target_languages,
        positions=positions,
        max_tokens=None if max_tokens == "auto" else max_tokens,
        seed=recipe.training.seed,
    )
    scorers = {
        split: make_scorers(corpora, recipe.data.pretokenized, recipe.evaluation)
        for split, corpora in data.references.items()
    }
    tokenizer, model = data.tokenizer, build_model(recipe, data.tokenizer)
    settings = resolve_budget(recipe, model, data.longest, folder)
    if recipe.data.stream:
        data.encoded["train"] = open_stream(
            recipe.data,
            tokenizer,
            settings.max_tokens,
            positions=positions,
            seed=settings.seed,
            multiple=settings.batch_size_multiple,
            order=settings.batch_order,
            rank=processes.process_index,
            world_size=processes.num_processes,
        )
    interrupt = InterruptCallback()

    def translate(model: Any, corpus: EncodedCorpus) -> list[str]:
        return translate_corpus(model, tokenizer, corpus, recipe.decoding)

    def score(model: Any, corpus: EncodedCorpus) -> dict[str, float]:
        return mean_figures(scorers["valid"], translate(model, corpus))

    trainer = ResidualTrainer(
        model,
        settings,
        str(folder / "checkpoints"),
        data.encoded["train"],
        data.encoded["valid"],
        score=score if settings.eval_bleu else None,
        processing_class=tokenizer,
        callbacks=[RecordCallback(folder / "metrics.jsonl"), interrupt, *keeping(settings, folder / "checkpoints")],
    )
    if trainer.pop_callback(ProgressCallback) is not None or progress is not None:
        trainer.add_callback(progress or ProgressBar)
    trainer.remove_callback(PrinterCallback)
    describe(model)
    checkpoints = complete_checkpoints(folder / "checkpoints")
    trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if resume and checkpoints else None)
    if interrupt.interrupted:
        raise Interrupted(f"stopped at update {trainer.state.global_step}; go on with --resume")
    model = trainer.gather_model()
    trainer.remove_callback(EarlyStoppingCallback)  # it would look for its metric in the final scores
    choose_final_weights(trainer, folder / "checkpoints")
    minutes = (time.time() - started) / 60
    metrics = {"updates": trainer.state.global_step, "minutes": round(minutes, 2)}
    metrics |= final_scores(trainer, data, scorers, translate, folder)
    if trainer.is_world_process_zero():
        model.criterion = None
        save_checkpoint(model, tokenizer, folder / "model", overwrite=True)
        write_json(folder / "metrics.json", metrics)
        speeds = [r["tokens_per_second"] for r in trainer.state.log_history if r.get("tokens_per_second")]
        RunRecord.update(
            folder,
            finished=now(),
            seconds=round(time.time() - started, 1),
            updates=trainer.state.global_step,
            tokens_per_second=float(np.median(speeds)) if speeds else None,
            emissions=measured_emissions(trainer.callback_handler.callbacks),
        )
        if recipe.data.stream:  # only now, as files larger than memory take a while to read
            described = describe_corpora([describe_corpus(spec) for spec in recipe.data.train])
            data = replace(RunRecord.read(folder).data, train=described)
            RunRecord.update(folder, data=data)
        try:
            write_card(folder, overwrite=True)
        except InputError as error:
            logger.warning("the model has no card: %s", error)
        logger.info("%s", summary(metrics, folder))
    return metrics


def keeping(settings: TrainingSettings, checkpoints: Path) -> list[Any]:
    """Callbacks that decide which checkpoints stay and when there have been enough."""
    better = METRICS[settings.metric]
    callbacks: list[Any] = [
        KeepCheckpoints(checkpoints, settings.keep_last, settings.keep_best, settings.metric, better)
    ]
    if settings.max_updates is not None and settings.max_epochs is not None:
        callbacks.append(StopAfterEpochs(settings.max_epochs))
    if settings.patience is not None:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=settings.patience))
    return callbacks


def choose_final_weights(trainer: ResidualTrainer, checkpoints: Path) -> None:
    """Leave in the model what the recipe asks for: an average of checkpoints or of all updates, or the best."""
    settings = trainer.settings
    if settings.average:
        chosen = choose_checkpoints(
            checkpoints,
            metric=settings.metric,
            greater_is_better=METRICS[settings.metric],
            **{settings.average_of: settings.average},
        )
        load_average(trainer.model, chosen)
    if trainer.ema is not None:
        trainer.ema.load(Path(trainer.state.best_model_checkpoint))
        trainer.ema.apply()
        trainer.ema = None


def final_scores(
    trainer: ResidualTrainer,
    data: PreparedData,
    scorers: dict[str, list[Scorer]],
    translate: Callable[..., list[str]],
    folder: Path,
) -> dict[str, Any]:
    """Loss and scores (see `full_report`) of the final model on `valid` and `test`, the same in every process."""
    metrics: dict[str, Any] = {}
    for split, of_split in scorers.items():
        figures = trainer.evaluate(data.encoded[split], metric_key_prefix=split)
        with trainer.inference() as model:
            hypotheses = translate(model, data.encoded[split])
        report: list[Any] = [None]
        if trainer.is_world_process_zero():
            references = [line for scorer in of_split for line in scorer.plain_references]
            for kind, lines in (("hypotheses", hypotheses), ("references", references)):
                write_atomically(folder / f"{split}.{kind}.txt", "\n".join(lines) + "\n")
            report = [full_report(of_split, hypotheses)]
        metrics[split] = {name.removeprefix(f"{split}_"): value for name, value in figures.items()}
        metrics[split] |= broadcast_object_list(report)[0]
        for corpus, scores in metrics[split].get("corpora", {"": metrics[split]}).items():
            for name, score in scores.items():
                if isinstance(score, dict) and "signature" in score:
                    logger.info("%s %s %s %.2f  (%s)", split, corpus, name, score["value"], score["signature"])
    return metrics


def describe(model: Any) -> None:
    """Log the model that is about to be trained."""
    config = model.config
    logger.info(
        "%s/%s, %d+%d layers of width %d, %.2f M parameters",
        config.stack_ln_mode("encoder"),
        config.stack_ln_mode("decoder"),
        config.encoder_layers,
        config.decoder_layers,
        config.d_model,
        sum(p.numel() for p in model.parameters()) / 1e6,
    )


def summary(metrics: dict[str, Any], folder: Path) -> str:
    """The end of a run in one line."""
    parts = [f"{metrics['updates']} updates in {metrics['minutes']:.1f} minutes"]
    for split in ("valid", "test"):
        figures = metrics.get(split, {})
        scores = [f"{n} {figures[n]['value']:.2f}" for n in ("tokenized_bleu", "bleu", "chrf") if n in figures]
        if figures:
            parts.append(f"{split}: nll {figures['nll']:.3f}, {', '.join(scores)}")
    return "; ".join([*parts, f"model in {folder / 'model'}"])
