# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Beam search over many sentences: batches of similar length, results in the order of the input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm.auto import tqdm

from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler
from residual_hf.errors import InputError


@dataclass(frozen=True)
class DecodingSettings:
    """How translations are searched for.

    `early_stopping=True` ends the search of a sentence when `num_beams` hypotheses are finished: fairseq's rule. A
    translation has at most `max_length_a * source length + max_length_b` tokens. `max_tokens` is the budget of source
    tokens in a batch, times beams.
    """

    num_beams: int = 5
    length_penalty: float = 1.0
    early_stopping: bool = True
    max_length_a: float = 2.0
    max_length_b: int = 50
    max_tokens: int = 12000

    def __post_init__(self) -> None:
        for name in ("num_beams", "max_length_b", "max_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)} given, must be at least 1")
        if self.max_length_a < 0:
            raise InputError(f"max_length_a: {self.max_length_a} given, must be at least 0")

    def length_limit(self, source_length: int, position_table: int) -> int:
        """Most tokens of the translation of a source of this length, for a table of so many positions."""
        return max(1, min(int(self.max_length_a * source_length + self.max_length_b), position_table - 1))

    def generate_arguments(self, max_new_tokens: int) -> dict[str, Any]:
        """Keyword arguments of `model.generate`."""
        arguments = {"num_beams": self.num_beams, "do_sample": False, "max_new_tokens": max_new_tokens}
        if self.num_beams > 1:
            arguments |= {"length_penalty": self.length_penalty, "early_stopping": self.early_stopping}
        return arguments


def decoding_batches(
    source_lengths: Sequence[int], settings: DecodingSettings, rows: Sequence[int] | None = None
) -> list[list[int]]:
    """Indices of the sentences of each batch, the longest sentences first; of all sentences, or of `rows`."""
    rows = range(len(source_lengths)) if rows is None else rows
    lengths = [source_lengths[i] for i in rows]
    budget = max(settings.max_tokens // settings.num_beams, max(lengths))
    sampler = TokenBudgetSampler(lengths, lengths, budget, shuffle=False, multiple=1)
    return [[rows[i] for i in batch] for batch in sampler][::-1]


def generate_ids(
    model: Any,
    sources: Sequence[Sequence[int]],
    settings: DecodingSettings | None = None,
    *,
    batches: Sequence[Sequence[int]] | None = None,
    progress: bool = False,
    **generate_arguments: Any,
) -> Iterator[tuple[int, list[int]]]:
    """Yield (index, target ids without special tokens at the ends) for every source, as batches finish.

    `sources` are id lists ending in `</s>`; `batches` restricts the work to some of them (one process of several).
    """
    settings = settings or DecodingSettings()
    if batches is None:
        batches = decoding_batches([len(source) for source in sources], settings)
    config = model.config
    collate = Seq2SeqCollator(config.pad_token_id, config.decoder_start_token_id)
    ends = {config.pad_token_id, config.bos_token_id, *_as_list(config.eos_token_id)}
    for batch in tqdm(batches, desc="translating", unit=" batches", disable=not progress):
        inputs = collate([{"input_ids": sources[i]} for i in batch])
        limits = [settings.length_limit(len(sources[i]), config.max_position_embeddings) for i in batch]
        arguments = settings.generate_arguments(max(limits)) | generate_arguments
        with torch.no_grad():
            output = model.generate(**{k: v.to(model.device) for k, v in inputs.items()}, **arguments)
        for index, row, limit in zip(batch, output.tolist(), limits, strict=True):
            yield index, _strip(row[1:], ends)[:limit]


def _as_list(value: int | list[int] | None) -> list[int]:
    return value if isinstance(value, list) else [value]


def _strip(row: list[int], ends: set[int | None]) -> list[int]:
    """Ids up to the first special token."""
    stop = next((i for i, token in enumerate(row) if token in ends), len(row))
    return row[:stop]
