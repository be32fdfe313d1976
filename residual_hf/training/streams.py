# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The training corpora of a recipe as a stream (`data.stream`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.mixing import mixing_probabilities
from residual_hf.data.multilingual import language_tag, reverse_spec
from residual_hf.data.pair_reader import PairReader
from residual_hf.data.settings import CorpusSpec
from residual_hf.data.streaming import StreamedBatches, encoder_of
from residual_hf.data.text_files import count_lines, file_hash
from residual_hf.errors import InputError

from .recipe import Recipe

logger = logging.getLogger(__name__)

SAMPLE = 200_000
"""Pairs, over all corpora, that a tokenizer is trained on."""


def stream_specs(recipe: Recipe) -> list[CorpusSpec]:
    """The training corpora in the directions that are trained."""
    specs = recipe.data.train
    return [d for spec in specs for d in (spec, reverse_spec(spec))] if recipe.data.bidirectional else list(specs)


def first_pairs(recipe: Recipe, most: int = SAMPLE) -> list[ParallelCorpus]:
    """The beginning of every training corpus, for training a tokenizer; of a small one some lines twice."""
    corpora = []
    for spec in recipe.data.train:
        share = most // len(recipe.data.train)
        reader, pairs = PairReader(spec), []
        while len(pairs) < share and reader.place.passes == 0:
            pairs += reader.take(min(share - len(pairs), 10_000))
        sources, targets = map(list, zip(*pairs, strict=True))
        corpora.append(ParallelCorpus(sources, targets, spec.title, spec.source_lang, spec.target_lang))
    return corpora


def describe_stream(recipe: Recipe) -> list[ParallelCorpus]:
    """Name, languages and hashes of the corpora, without their text, for the record of the run; reads every file."""
    return [
        ParallelCorpus([], [], s.title, s.source_lang, s.target_lang, {str(f): file_hash(f) for f in s.files})
        for s in recipe.data.train
    ]


def open_stream(recipe: Recipe, tokenizer: Any, max_tokens: int, rank: int, processes: int) -> StreamedBatches:
    """The batches of a run, for one of several processes."""
    positions = recipe.build_config().max_position_embeddings
    data, specs = recipe.data, stream_specs(recipe)
    shares = mixing_shares(specs, data.temperature)
    logger.info("streaming %s", ", ".join(f"{s.title} {p:.1%}" for s, p in zip(specs, shares, strict=True)))
    return StreamedBatches(
        specs,
        [tagging(encoder_of(tokenizer), spec, data.language_tags) for spec in specs],
        max_tokens,
        probabilities=shares,
        block=data.shuffle_buffer,
        seed=recipe.training.seed,
        max_length=min(data.max_length or positions, positions),
        cleaning=data.cleaning,
        multiple=recipe.training.batch_size_multiple,
        order=recipe.training.batch_order,
        rank=rank,
        world_size=processes,
    )


def mixing_shares(specs: Sequence[CorpusSpec], temperature: float) -> list[float]:
    """How often each corpus is drawn: by its weight, or by the number of its lines and the temperature."""
    if len(specs) == 1:
        return [1.0]
    if specs[0].weight is not None:
        return mixing_probabilities([1] * len(specs), [spec.weight for spec in specs])
    for spec in specs:
        if not spec.files:
            raise InputError(f"corpus.weight: missing for {spec.title}, whose size is not known before it is read")
    sizes: dict[Path, int] = {}
    for spec in specs:
        if spec.files[0] not in sizes:
            sizes[spec.files[0]] = min(count_lines(spec.files[0]), spec.limit or 1 << 60)
    return mixing_probabilities([sizes[spec.files[0]] for spec in specs], temperature=temperature)


def tagging(encode: Callable[..., Any], spec: CorpusSpec, side: str | None) -> Callable[..., Any]:
    """`encode`, with the tag of the corpus's target language before one side."""
    if side is None:
        return encode
    tag = language_tag(spec.target_lang)

    def with_tag(sources: list[str], targets: list[str]) -> Any:
        if side == "source":
            return encode([f"{tag} {line}" for line in sources], targets)
        return encode(sources, [f"{tag} {line}" for line in targets])

    return with_tag
