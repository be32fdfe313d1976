# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Sentences whose segmentation into subwords is drawn anew in every epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers import models as token_models
from tqdm.auto import tqdm

from residual_hf.errors import InputError

from .encoding import BLOCK, EncodedCorpus, fingerprint, save_atomically
from .resegmentation import BpeDropout, UnigramSampling, Word
from .settings import SIDES, SubwordRegularizationSettings

GROWTH = 1.3
"""About how much longer sentences are than in their plain segmentation, with the usual rates of both methods."""

Resegment = Callable[[Word, Random], Word]


class SampledCorpus(EncodedCorpus):
    """Pairs of token ids as `EncodedCorpus` has them, but every epoch shows other segmentations of their words.

    A row is a function of `seed`, the epoch (`set_epoch`) and its index alone: it does not matter which process reads
    it, in which order or how often, and a run that is resumed sees what it would have seen. `source_lengths` and
    `target_lengths`, by which batches are made, are those of the plain segmentation, and so is a row that would
    be longer than `max_length`.

    Args:
        arrays: those of the plain segmentation and, for each side that is sampled, `source_starts` or `target_starts`:
            whether a token begins a word.
        resegment: for each of these sides, what draws a segmentation of a word.
        seed: at least 0.
        max_length: most tokens of a row, `</s>` counted; None for no limit.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        resegment: Mapping[str, Resegment],
        *,
        seed: int = 1,
        max_length: int | None = None,
    ):
        if seed < 0:
            raise InputError(f"seed: {seed} given, must be at least 0")
        super().__init__(arrays)
        self.resegment = dict(resegment)
        self.seed = seed
        self.max_length = max_length
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the segmentations of this epoch, counted from 0. A `TokenBudgetSampler` passes its own on."""
        self.epoch = epoch

    def __getitem__(self, index: int | None) -> dict[str, np.ndarray]:
        if index is None:
            return super().__getitem__(None)
        random = Random(((self.seed << 32 | self.epoch) << 32) | int(index))
        return {"input_ids": self._sampled("source", index, random), "labels": self._sampled("target", index, random)}

    def _sampled(self, side: str, index: int, random: Random) -> np.ndarray:
        plain = self._row(side, index)
        if side not in self.resegment:
            return plain
        resegment, ids = self.resegment[side], plain.tolist()
        first, last = self.arrays[f"{side}_offsets"][index : index + 2]
        starts = np.flatnonzero(self.arrays[f"{side}_starts"][first:last]).tolist()
        row: list[int] = []
        for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
            row.extend(resegment(tuple(ids[start:stop]), random))
        if self.max_length is not None and len(row) > self.max_length:
            return plain
        return np.array(row, dtype=plain.dtype)

    def select(self, indices: Sequence[int]) -> SampledCorpus:
        """The pairs at `indices`, in that order; their segmentations are drawn by their new places."""
        arrays = dict(EncodedCorpus(self.arrays).select(indices).arrays)
        for side in self.resegment:
            offsets, starts = self.arrays[f"{side}_offsets"], self.arrays[f"{side}_starts"]
            arrays[f"{side}_starts"] = np.concatenate([starts[offsets[i] : offsets[i + 1]] for i in indices])
        return SampledCorpus(arrays, self.resegment, seed=self.seed, max_length=self.max_length)


def sample_corpus(
    encoded: EncodedCorpus,
    corpus: Any,
    tokenizer: Any,
    settings: SubwordRegularizationSettings,
    *,
    seed: int = 1,
    max_length: int | None = None,
    name: str = "corpus",
    cache_dir: Path | None = None,
) -> EncodedCorpus:
    """The corpus as `settings` has it sampled; with a `bpe_dropout` of 0 it is returned as it is.

    Args:
        encoded: what `encode_corpus` returned.
        corpus: the `ParallelCorpus` that was encoded.
        tokenizer: a fast tokenizer with a BPE or unigram model, or a `ResidualTokenizer` of two.
        settings: what to sample, and on which sides.
        seed, max_length: see `SampledCorpus`.
        name, cache_dir: where word boundaries are kept, as for `encode_corpus`.

    Raises:
        InputError: a tokenizer of another kind, in particular for text that is segmented already.
    """
    sides = SIDES[settings.sides]
    tokenizers = {"source": tokenizer.backend_tokenizer}
    tokenizers["target"] = getattr(tokenizer, "target_tokenizer", tokenizers["source"])
    resegment = {side: resegmenter(settings, tokenizers[side]) for side in sides}
    if settings.bpe_dropout == 0:
        return encoded
    path = None
    if cache_dir is not None:
        path = Path(cache_dir) / f"{name}-words-{settings.sides}-{fingerprint(corpus, tokenizer)}.safetensors"
    if path is not None and path.exists():
        starts = load_file(path)
    else:
        starts = {f"{side}_starts": _word_starts(encoded, corpus, tokenizer, side) for side in sides}
        if path is not None:
            save_atomically(starts, path)
    return SampledCorpus({**encoded.arrays, **starts}, resegment, seed=seed, max_length=max_length)


def _word_starts(encoded: EncodedCorpus, corpus: Any, tokenizer: Any, side: str) -> np.ndarray:
    """Whether each token of a side begins a word; what the tokenizer adds to the text is a word of its own."""
    texts, argument, column = {
        "source": (corpus.sources, "text", "input_ids"),
        "target": (corpus.targets, "text_target", "labels"),
    }[side]
    flags: list[np.ndarray] = []
    with tqdm(total=len(texts), desc=f"words of the {side}", unit=" sentences") as bar:
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            rows = tokenizer(**{argument: block}).encodings
            for index, row in enumerate(rows, start=start):
                if row.ids != encoded[index][column].tolist():
                    raise InputError(f"sampling: {side} sentence {index + 1} is not what was encoded")
                words = [-1 - place if word is None else word for place, word in enumerate(row.word_ids)]
                flags.append(np.diff(np.array(words), prepend=-len(words) - 1) != 0)
            bar.update(len(block))
    return np.concatenate(flags)


def resegmenter(settings: SubwordRegularizationSettings, tokenizer: Tokenizer) -> Resegment:
    """What draws a segmentation of a word for this tokenizer. `InputError` if its model is of another kind."""
    model = tokenizer.model
    kinds = {token_models.BPE: "bpe", token_models.Unigram: "unigram", token_models.WordLevel: "pretokenized"}
    settings.check_kind(kinds.get(type(model), type(model).__name__))
    if settings.bpe_dropout is not None:
        return BpeDropout(tokenizer, settings.bpe_dropout)
    return UnigramSampling(tokenizer, settings.unigram_alpha)
