# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""From the corpora of a recipe to token ids: read, clean, tag, tokenize, mix."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from residual_hf.data.cleaning import clean_corpus
from residual_hf.data.corpus import ParallelCorpus, read_parallel
from residual_hf.data.encoding import EncodedCorpus, encode_corpus
from residual_hf.data.mixing import mixed_indices, mixing_probabilities
from residual_hf.data.multilingual import concatenate, in_both_directions, language_tag, tag_corpus
from residual_hf.data.sampling import sample_corpus
from residual_hf.data.settings import CorpusSpec, DataSettings
from residual_hf.data.text_files import iter_lines
from residual_hf.data.tokenizer import pretokenized_tokenizer
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.errors import InputError
from residual_hf.evaluation.scorer import Scorer
from residual_hf.files import write_json
from residual_hf.model.tokenization_residual import ResidualTokenizer

from .recipe import Recipe
from .streams import first_pairs

logger = logging.getLogger(__name__)

Corpora = dict[str, list[ParallelCorpus]]


@dataclass
class PreparedData:
    """What a run trains and evaluates on. `encoded` lacks a `train` that is streamed; `longest` is the length of the
    longer side of every training pair, or the most that a stream lets through."""

    tokenizer: PreTrainedTokenizerBase
    encoded: dict[str, EncodedCorpus]
    scorers: dict[str, list[Scorer]]
    longest: np.ndarray


def prepare(recipe: Recipe, texts: Corpora, folder: Path) -> PreparedData:
    """Everything that happens to text before training; what it makes is kept in the folder of the run."""
    data, processes, positions = recipe.data, PartialState(), recipe.build_config().max_position_embeddings
    texts = dict(texts)
    if not data.stream:
        report = folder / "cleaning.json" if processes.is_main_process else None
        texts["train"] = clean(texts["train"], data, report)
    with processes.main_process_first():
        sample = partial(first_pairs, recipe) if data.stream else lambda: texts["train"]
        tokenizer = get_tokenizer(recipe, sample, folder / "tokenizer")
        texts = {name: directions(corpora, data) for name, corpora in texts.items()}
        seen = {name: concatenate(tagged(corpora, data), name) for name, corpora in texts.items()}
        encoded = {
            name: encode_corpus(corpus, tokenizer, name=name, cache_dir=folder / "cache")
            for name, corpus in seen.items()
        }
    for name in encoded.keys() - {"train"}:
        refuse_long(encoded[name], name, positions)
    limit = min(data.max_length or positions, positions)
    if recipe.training.max_tokens != "auto":
        limit = min(limit, recipe.training.max_tokens)
    longest = np.array([limit])
    if not data.stream:
        train = encoded["train"]
        if data.subword_regularization is not None:
            options = {"seed": recipe.training.seed, "max_length": positions, "cache_dir": folder / "cache"}
            train = sample_corpus(
                train, seen["train"], tokenizer, data.subword_regularization, name="train", **options
            )
        encoded["train"] = train = drop_long(mix(train, texts["train"], data.train, recipe), limit)
        longest = np.maximum(train.source_lengths, train.target_lengths)
    scorers = {name: make_scorers(texts[name], data) for name in ("valid", "test") if name in texts}
    return PreparedData(tokenizer, encoded, scorers, longest)


def read_corpora(recipe: Recipe) -> Corpora:
    """The texts of `train`, `valid` and `test`, in memory; a streamed `train` stays out."""
    data = recipe.data
    splits = {"train": [] if data.stream else data.train, "valid": data.valid, "test": data.test}
    return {name: [read_with_raw_targets(spec) for spec in specs] for name, specs in splits.items() if specs}


def read_with_raw_targets(spec: CorpusSpec) -> ParallelCorpus:
    corpus = read_parallel(spec)
    raw = None if spec.raw_target is None else list(iter_lines(spec.raw_target))[: spec.limit]
    if raw is not None and len(raw) != len(corpus):
        raise InputError(f"corpus.raw_target: {spec.raw_target} has {len(raw)} lines for {len(corpus)} pairs")
    return replace(corpus, raw_targets=raw)


def clean(corpora: Sequence[ParallelCorpus], data: DataSettings, report_file: Path | None) -> list[ParallelCorpus]:
    """What `data.cleaning` leaves of the training corpora; the report is written where a file is named."""
    if data.cleaning is None:
        return list(corpora)
    cleaned, reports = zip(*(clean_corpus(corpus, data.cleaning) for corpus in corpora), strict=True)
    for corpus, report in zip(corpora, reports, strict=True):
        logger.info("%s: cleaning: %s", corpus.name, report)
    if report_file is not None:
        by_name = {corpus.name: vars(report) for corpus, report in zip(corpora, reports, strict=True)}
        content = vars(reports[0]) if len(reports) == 1 else by_name
        write_json(report_file, content)
    return list(cleaned)


def directions(corpora: Sequence[ParallelCorpus], data: DataSettings) -> list[ParallelCorpus]:
    """The corpora in the directions that are trained."""
    return in_both_directions(corpora) if data.bidirectional else list(corpora)


def tagged(corpora: Sequence[ParallelCorpus], data: DataSettings) -> list[ParallelCorpus]:
    return [tag_corpus(corpus, data.language_tags) for corpus in corpora] if data.language_tags else list(corpora)


def get_tokenizer(
    recipe: Recipe, read: Callable[[], Sequence[ParallelCorpus]], folder: Path
) -> PreTrainedTokenizerBase:
    """The tokenizer of the run: the one it trained before, the one the recipe names, or a new one of the text."""
    from transformers import AutoTokenizer

    settings = recipe.tokenizer
    if folder.exists():
        return AutoTokenizer.from_pretrained(folder)
    tags = [language_tag(language) for language in recipe.target_languages] if recipe.data.language_tags else []
    options: dict[str, Any] = {
        "model": settings.kind,
        "vocab_size": settings.vocab_size,
        "language_tags": tags,
        "min_frequency": settings.min_frequency,
        "character_coverage": settings.character_coverage,
    }
    if settings.kind == "pretokenized":
        tokenizer = pretokenized_tokenizer(settings.path)
    elif settings.path is not None:
        tokenizer = AutoTokenizer.from_pretrained(settings.path)
    elif settings.joint:
        tokenizer = train_tokenizer([line for c in read() for line in (*c.sources, *c.targets)], **options)
    else:
        corpora = read()
        source, target = (
            train_tokenizer([line for c in corpora for line in side(c)], **options)
            for side in (lambda c: c.sources, lambda c: c.targets)
        )
        tokenizer = ResidualTokenizer.from_pair(source, target)
    positions = recipe.build_config().max_position_embeddings
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    unfinished = folder.with_name(folder.name + ".tmp")
    tokenizer.save_pretrained(unfinished)
    os.replace(unfinished, folder)
    return tokenizer


def mix(
    encoded: EncodedCorpus, corpora: Sequence[ParallelCorpus], specs: Sequence[CorpusSpec], recipe: Recipe
) -> EncodedCorpus:
    """One epoch of several corpora, by their weights or by temperature; one alone, or plain ones, as they are."""
    weights = [spec.weight for spec in specs]
    if len(corpora) == 1 or (recipe.data.temperature == 1 and weights[0] is None):
        return encoded
    sizes = [len(corpus) for corpus in corpora]
    times = len(corpora) // len(specs)  # both directions of a corpus have its weight
    chosen = [weight for weight in weights for _ in range(times)] if weights[0] is not None else None
    shares = mixing_probabilities(sizes, chosen, recipe.data.temperature)
    logger.info("mixing %s", ", ".join(f"{c.name} {p:.1%}" for c, p in zip(corpora, shares, strict=True)))
    return encoded.select(mixed_indices(sizes, shares, recipe.training.seed))


def drop_long(corpus: EncodedCorpus, limit: int) -> EncodedCorpus:
    """The pairs of which both sides have at most `limit` tokens."""
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


def make_scorers(corpora: Sequence[ParallelCorpus], data: DataSettings) -> list[Scorer]:
    """One for every corpus, whose targets have no tags; of several corpora named by their languages."""
    return [
        Scorer(
            c.targets,
            text=data.pretokenized or "raw",
            language=c.target_lang,
            raw_references=c.raw_targets,
            name="" if len(corpora) == 1 else f"{c.name} {c.source_lang}-{c.target_lang}",
        )
        for c in corpora
    ]
