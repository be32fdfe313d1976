# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""From a recipe to a folder with a trained model: read, tokenize, train, score, save."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import (
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    set_seed,
)

from residual_hf.data.cleaning import clean_corpus
from residual_hf.data.corpus import ParallelCorpus, check_files, read_parallel
from residual_hf.data.encoding import EncodedCorpus, encode_corpus
from residual_hf.data.tokenizer import pretokenized_tokenizer
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.errors import InputError
from residual_hf.evaluation.metrics import score
from residual_hf.hub.export import save_checkpoint
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.tokenization_residual import ResidualTokenizer

from .allocator import keep_freed_memory
from .callbacks import InterruptCallback, ProgressBar, RecordCallback
from .checkpoints import KeepCheckpoints, choose_checkpoints, load_average, whole_checkpoints
from .recipe import Recipe
from .settings import METRICS
from .trainer import TranslationTrainer

logger = logging.getLogger(__name__)


class Interrupted(Exception):
    """Training was stopped by the user; a checkpoint is there to resume from."""


def train(recipe: Recipe, *, overwrite: bool = False, resume: bool = False) -> dict[str, Any]:
    """Run a recipe and return its metrics.

    `recipe.output_dir` receives `model/` (the final folder, see `save_checkpoint`), `metrics.json`, `metrics.jsonl`
    (every logged figure), `train.log`, `recipe.yaml`, `cleaning.json` (what was left out of the training corpus),
    `valid.hypotheses.txt`, `test.hypotheses.txt`, `tokenizer/`, `checkpoints/` and `cache/`.

    Raises `InputError` before any long work for input that cannot be used, in particular an output folder that holds
    something while neither `overwrite` nor `resume` is given; `Interrupted` after Ctrl-C.
    """
    specs = {"train": recipe.data.train, "valid": recipe.data.valid, "test": recipe.data.test}
    specs = {name: spec for name, spec in specs.items() if spec is not None}
    check_files(specs.values())
    folder = Path(recipe.output_dir)
    check_folder(folder, overwrite=overwrite, resume=resume)
    texts = {name: read_parallel(spec) for name, spec in specs.items()}
    processes = this_process()
    processes.wait_for_everyone()  # all have checked the folder before the first one writes into it
    if processes.is_main_process:
        prepare_folder(folder, overwrite=overwrite, resume=resume)
        write_atomically(folder / "recipe.yaml", yaml.safe_dump(recipe.as_dict(), sort_keys=False))
    processes.wait_for_everyone()
    with log_file(folder / "train.log") if processes.is_main_process else nullcontext():
        return train_on(recipe, texts, folder, resume=resume)


def this_process() -> PartialState:
    """Which process this is, under `torchrun` or `accelerate launch`; the only one otherwise."""
    return PartialState(cpu=not torch.accelerator.is_available())


def train_on(
    recipe: Recipe, texts: dict[str, ParallelCorpus], folder: Path, *, resume: bool = False
) -> dict[str, Any]:
    """The run of a recipe on corpora that are already in memory (`train`, `valid` and perhaps `test`)."""
    started = time.time()
    keep_freed_memory()
    set_seed(recipe.training.seed)
    if recipe.data.cleaning is not None:
        texts["train"], report = clean_corpus(texts["train"], recipe.data.cleaning)
        logger.info("cleaning: %s", report)
        if this_process().is_main_process:
            write_atomically(folder / "cleaning.json", report.as_json())
    with this_process().main_process_first():
        tokenizer = get_tokenizer(recipe, texts["train"], folder / "tokenizer")
        encoded = {
            name: encode_corpus(c, tokenizer, name=name, cache_dir=folder / "cache") for name, c in texts.items()
        }
    model = build_model(recipe, tokenizer)
    encoded["train"] = drop_long(encoded["train"], recipe, model.config.max_position_embeddings)
    for name in ("valid", "test"):
        if name in encoded:
            refuse_long(encoded[name], name, model.config.max_position_embeddings)

    interrupt = InterruptCallback()
    settings = recipe.training
    callbacks: list[Any] = [RecordCallback(folder / "metrics.jsonl"), interrupt]
    callbacks.append(
        KeepCheckpoints(
            folder / "checkpoints", settings.keep_last, settings.keep_best, settings.metric, METRICS[settings.metric]
        )
    )
    if recipe.training.patience is not None:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=recipe.training.patience))
    trainer = TranslationTrainer(
        model,
        recipe.training,
        str(folder / "checkpoints"),
        encoded["train"],
        encoded["valid"],
        references=texts["valid"].targets if recipe.training.eval_bleu else None,
        decode=lambda rows: tokenizer.batch_decode(rows, skip_special_tokens=True),
        decoding=recipe.decoding,
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ProgressBar)
    trainer.remove_callback(PrinterCallback)
    describe(model, trainer)
    checkpoints = whole_checkpoints(folder / "checkpoints")
    trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if resume and checkpoints else None)
    if interrupt.interrupted:
        raise Interrupted(f"stopped at update {trainer.state.global_step}; go on with --resume")
    average_at_the_end(trainer, folder / "checkpoints")
    minutes = (time.time() - started) / 60
    metrics = {"updates": trainer.state.global_step, "minutes": round(minutes, 2)}
    metrics |= final_scores(trainer, encoded, texts, folder)
    if trainer.is_world_process_zero():
        model.criterion = None
        save_checkpoint(model, tokenizer, folder / "model", overwrite=True)
        write_atomically(folder / "metrics.json", json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
    return metrics


def average_at_the_end(trainer: TranslationTrainer, checkpoints: Path) -> None:
    """Replace the weights by the average that the recipe asks for."""
    settings = trainer.settings
    if settings.average:
        chosen = choose_checkpoints(
            checkpoints,
            metric=settings.metric,
            greater_is_better=METRICS[settings.metric],
            **{settings.average_of: settings.average},
        )
        load_average(trainer.model, chosen)


def final_scores(
    trainer: TranslationTrainer, encoded: dict[str, EncodedCorpus], texts: dict[str, ParallelCorpus], folder: Path
) -> dict[str, Any]:
    """Loss and scores, with signatures, of the best model on `valid` and `test`."""
    metrics: dict[str, Any] = {}
    for name in ("valid", "test"):
        if name not in encoded:
            continue
        figures = trainer.evaluate(encoded[name], metric_key_prefix=name)
        hypotheses = trainer.translate(encoded[name])
        if trainer.is_world_process_zero():
            write_atomically(folder / f"{name}.hypotheses.txt", "\n".join(hypotheses) + "\n")
        scores = score(hypotheses, texts[name].targets, metrics=("bleu", "chrf", "ter"))
        lowercase = score(hypotheses, texts[name].targets, metrics=("bleu",), lowercase=True)
        metrics[name] = {key.removeprefix(f"{name}_"): value for key, value in figures.items()}
        metrics[name] |= scores.as_dict() | {"bleu_lowercase": lowercase.as_dict()["bleu"]}
        for label, s in scores.items():
            logger.info("%s %s %.2f  (%s)", name, label, s.value, s.signature)
    return metrics


def get_tokenizer(recipe: Recipe, corpus: ParallelCorpus, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of the run: the one it trained before, the one the recipe names, or a new one."""
    from transformers import AutoTokenizer

    settings = recipe.tokenizer
    if folder.exists():
        return AutoTokenizer.from_pretrained(folder)
    if settings.kind == "pretokenized":
        tokenizer = pretokenized_tokenizer(settings.path)
    elif settings.path is not None:
        tokenizer = AutoTokenizer.from_pretrained(settings.path)
    elif settings.joint:
        tokenizer = train_tokenizer(
            [*corpus.sources, *corpus.targets], model=settings.kind, vocab_size=settings.vocab_size
        )
    else:
        source, target = (
            train_tokenizer(side, model=settings.kind, vocab_size=settings.vocab_size)
            for side in (corpus.sources, corpus.targets)
        )
        tokenizer = ResidualTokenizer.from_pair(source, target)
    unfinished = folder.with_name(folder.name + ".tmp")
    tokenizer.save_pretrained(unfinished)
    os.replace(unfinished, folder)
    return tokenizer


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> ResidualForConditionalGeneration:
    """A freshly initialised model whose vocabulary, special tokens and generation settings fit the recipe."""
    target_size = getattr(tokenizer, "target_vocab_size", None)
    vocabulary = {"vocab_size": len(tokenizer)}
    if target_size is not None:
        vocabulary |= {"decoder_vocab_size": target_size, "share_encoder_decoder_embeddings": False}
    config = recipe.build_config(
        **vocabulary,
        source_lang=recipe.source_lang,
        target_lang=recipe.target_lang,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
    )
    model = ResidualForConditionalGeneration(config)
    if recipe.training.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    generation = model.generation_config
    generation.num_beams = recipe.decoding.num_beams
    if generation.num_beams > 1:
        generation.length_penalty = recipe.decoding.length_penalty
        generation.early_stopping = recipe.decoding.early_stopping
    return model


def drop_long(corpus: EncodedCorpus, recipe: Recipe, position_table: int) -> EncodedCorpus:
    """The pairs whose sides both fit into `data.max_length`, the position table and a batch."""
    limit = min(recipe.data.max_length or position_table, position_table, recipe.training.max_tokens)
    kept = [i for i, n in enumerate(zip(corpus.source_lengths, corpus.target_lengths, strict=True)) if max(n) <= limit]
    if not kept:
        raise InputError(f"data.max_length: no sentence pair of the training corpus has at most {limit} tokens")
    if len(kept) < len(corpus):
        dropped = len(corpus) - len(kept)
        logger.info("left out %d of %d training pairs longer than %d tokens", dropped, len(corpus), limit)
        return corpus.select(kept)
    return corpus


def refuse_long(corpus: EncodedCorpus, name: str, position_table: int) -> None:
    longest = int(corpus.source_lengths.argmax())
    if corpus.source_lengths[longest] > position_table:
        raise InputError(
            f"data.{name}: sentence {longest + 1} has {corpus.source_lengths[longest]} tokens, but the model reads at "
            f"most {position_table} (max_position_embeddings)"
        )


def describe(model: Any, trainer: TranslationTrainer) -> None:
    """Log what is about to be trained."""
    config = model.config
    sampler = trainer.get_train_dataloader().batch_sampler
    statistics = getattr(sampler, "batch_sampler", sampler).statistics()
    logger.info(
        "%s/%s, %d+%d layers of width %d, %.2f M parameters; %s",
        config.stack_ln_mode("encoder"),
        config.stack_ln_mode("decoder"),
        config.encoder_layers,
        config.decoder_layers,
        config.d_model,
        sum(p.numel() for p in model.parameters()) / 1e6,
        ", ".join(f"{k} {v:.4g}" for k, v in statistics.items()),
    )


def check_folder(folder: Path, *, overwrite: bool, resume: bool) -> None:
    """Refuse an output folder that is a file, or that holds something unless asked to overwrite it or to resume."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file, must be a folder")
    if folder.exists() and any(folder.iterdir()) and not resume and not overwrite:
        raise InputError(f"output_dir: {folder} exists and is not empty; use --overwrite, --resume or another folder")


def prepare_folder(folder: Path, *, overwrite: bool, resume: bool) -> Path:
    """Create the output folder, emptied if it is overwritten; see `check_folder` for what is refused."""
    check_folder(folder, overwrite=overwrite, resume=resume)
    if folder.exists() and overwrite and not resume:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class TerminalHandler(logging.Handler):
    """Writes to standard error without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class log_file:
    """Context in which messages of this package go to a file as well as to the terminal."""

    def __init__(self, path: Path):
        self.handlers: Sequence[logging.Handler] = (
            logging.FileHandler(path, encoding="utf-8"),
            TerminalHandler(),
        )

    def __enter__(self) -> None:
        package = logging.getLogger("residual_hf")
        package.setLevel(logging.INFO)
        for handler in self.handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
            package.addHandler(handler)

    def __exit__(self, *exception: Any) -> None:
        for handler in self.handlers:
            logging.getLogger("residual_hf").removeHandler(handler)
            handler.close()


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is either whole or not there."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
