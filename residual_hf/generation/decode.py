# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Beam search over many sentences, in batches of similar length, on one or several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm

from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler
from residual_hf.data.encoding import EncodedCorpus, Lengths
from residual_hf.errors import InputSettings
from residual_hf.model.decoding import DECODING_DTYPES, FastGenerationMixin
from residual_hf.model.options import option
from residual_hf.model.pipeline_translation import without_tag


@dataclass(frozen=True)
class DecodingSettings(InputSettings):
    """Search parameters, for evaluations during training and as defaults of the saved model."""

    num_beams: int = option(5, minimum=1, help="beam size; 1: greedy search")
    length_penalty: float = option(
        1.0, help="exponent of the length normalization; higher values prefer longer outputs"
    )
    early_stopping: bool = option(
        True, help="stop a sentence when `num_beams` hypotheses are finished, as fairseq does"
    )
    max_length_a: float = option(
        2.0, minimum=0, help="a translation has at most `max_length_a * source length + max_length_b` tokens"
    )
    max_length_b: int = option(50, minimum=1, help="see `max_length_a`")
    max_tokens: int = option(12_000, minimum=1, help="source tokens times beams per batch")
    dtype: str = option(
        "float32",
        choices=DECODING_DTYPES,
        help="precision on a CPU: `float32` finds the hypotheses of Transformers, `bfloat16` and `int8` are faster",
    )

    def length_limit(self, source_length: int, position_table: int) -> int:
        """Maximum number of tokens in the translation of a source of this length."""
        return max(1, min(int(self.max_length_a * source_length + self.max_length_b), position_table - 1))

    def generate_arguments(self, max_new_tokens: int) -> dict[str, Any]:
        """Keyword arguments of `model.generate`."""
        arguments: dict[str, Any] = {"num_beams": self.num_beams, "do_sample": False, "max_new_tokens": max_new_tokens}
        if self.num_beams > 1:
            arguments |= {"length_penalty": self.length_penalty, "early_stopping": self.early_stopping}
        return arguments


def translate_corpus(
    model: Any, tokenizer: Any, corpus: EncodedCorpus, settings: DecodingSettings | None = None
) -> list[str]:
    """Translations of the source side of a corpus, in its order.

    Several processes share the work and get the same list. A model with language tags on the target side translates
    into the language of each label.
    """
    settings, processes = settings or DecodingSettings(), PartialState()
    sources = [corpus[row]["input_ids"] for row in range(len(corpus))]
    found: dict[int, list[int]] = {}
    for rows, arguments in _rows_by_tag(model, corpus):
        batches = decoding_batches(corpus.source_lengths, settings, rows)
        share = batches[processes.process_index :: processes.num_processes]
        # each process has full weights and its own number of batches
        results = generate_candidates(model, sources, settings, batches=share, synced_gpus=False, **arguments)
        found |= {row: best.ids for row, (best,) in results}
    ids = {row: target for part in gather_object([found]) for row, target in part.items()}
    return to_text(tokenizer, [ids[row] for row in range(len(corpus))])


def _rows_by_tag(model: Any, corpus: EncodedCorpus) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
    """Groups of sentences whose translations start with the same tag, and the argument of `generate` for it."""
    if model.config.language_tags != "target":
        yield range(len(corpus)), {}
        return
    tags = np.array([corpus[row]["labels"][0] for row in range(len(corpus))])
    for tag in np.unique(tags).tolist():
        yield np.flatnonzero(tags == tag).tolist(), {"forced_bos_token_id": tag}


def to_text(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """The text of translations, without special tokens and language tags."""
    return [without_tag(text) for text in tokenizer.batch_decode(rows, skip_special_tokens=True)]


def decoding_batches(
    source_lengths: Lengths, settings: DecodingSettings, rows: Sequence[int] | None = None
) -> list[list[int]]:
    """Batches of sentence indices, longest sentences first, of all sentences or of `rows`."""
    rows = range(len(source_lengths)) if rows is None else rows
    lengths = [int(source_lengths[i]) for i in rows]
    budget = max(settings.max_tokens // settings.num_beams, max(lengths))
    sampler = TokenBudgetSampler(lengths, lengths, budget, shuffle=False, multiple=1)
    return [[rows[i] for i in batch if i is not None] for batch in sampler][::-1]


class Candidate(NamedTuple):
    """One result of the search for a sentence.

    Attributes:
        ids: target tokens up to the first special token.
        score: sum of log-probabilities over length ** length_penalty; None if only one candidate is wanted.
    """

    ids: list[int]
    score: float | None = None


def generate_candidates(
    model: Any,
    sources: Sequence[Sequence[int] | np.ndarray],
    settings: DecodingSettings | None = None,
    *,
    count: int = 1,
    batches: Sequence[Sequence[int]] | None = None,
    progress: bool = False,
    **generate_arguments: Any,
) -> Iterator[tuple[int, list[Candidate]]]:
    """Yield (index, its `count` best candidates, best first) for each source, as batches finish.

    Args:
        sources: token ids of each sentence, ending in `</s>`.
        count: candidates per sentence, at most `settings.num_beams`.
        batches: indices of the sentences of each batch; all sentences by default.
        generate_arguments: further arguments of `model.generate`.
    """
    settings = settings or DecodingSettings()
    if batches is None:
        batches = decoding_batches([len(source) for source in sources], settings)
    config = model.config
    collate = Seq2SeqCollator(config.pad_token_id, config.decoder_start_token_id)
    ends = {config.pad_token_id, config.bos_token_id, *_as_list(config.eos_token_id)}
    if count > 1:
        generate_arguments |= {"num_return_sequences": count, "output_scores": True}
    for batch in tqdm(batches, desc="translating", unit=" batches", disable=not progress):
        inputs = collate([{"input_ids": sources[i]} for i in batch])
        limits = [settings.length_limit(len(sources[i]), config.max_position_embeddings) for i in batch]
        arguments = settings.generate_arguments(max(limits)) | generate_arguments
        if isinstance(model, FastGenerationMixin):
            arguments |= {"length_limits": torch.tensor(limits), "decoding_dtype": settings.dtype}
        with torch.no_grad():
            inputs = {name: values.to(model.device) for name, values in inputs.items()}
            output = model.generate(**inputs, **arguments, return_dict_in_generate=True)
        rows = output.sequences.tolist()
        scores = output.sequences_scores.tolist() if count > 1 else [None] * len(rows)
        for place, (index, limit) in enumerate(zip(batch, limits, strict=True)):
            best = slice(place * count, (place + 1) * count)
            found = zip(rows[best], scores[best], strict=True)
            yield index, [Candidate(_strip(row[1:], ends)[:limit], score) for row, score in found]


def _as_list(value: int | list[int] | None) -> Sequence[int | None]:
    return value if isinstance(value, list) else [value]


def _strip(row: list[int], ends: set[int | None]) -> list[int]:
    """Ids up to the first special token."""
    stop = next((i for i, token in enumerate(row) if token in ends), len(row))
    return row[:stop]
