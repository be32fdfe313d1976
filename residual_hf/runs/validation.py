# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Translations of validation sentences at each evaluation of a run: their scores, and a few of them in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.marked_text import unmarked
from residual_hf.data.pipeline import PreparedData
from residual_hf.evaluation.scorer import make_scorers, mean_figures
from residual_hf.generation.decode import translate_corpus
from residual_hf.training.launch import this_process

from .recipe import Recipe

logger = logging.getLogger(__name__)

LONGEST_SAMPLE = 500
"""Characters; an untrained model repeats itself up to the length limit."""


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
        self.scorers = make_scorers(chosen, recipe.data.pretokenized, recipe.evaluation, speech=recipe.is_speech)
        self.pairs = [pair for corpus in chosen for pair in corpus]
        self.samples = spread_rows([len(self.pairs)], settings.eval_samples)[0]
        self.decoding = replace(recipe.decoding, num_beams=settings.eval_beams, shortlist=False)
        self.tokenizer, self.has_placeholders = data.tokenizer, recipe.data.placeholders

    def figures(self, model: Any, valid: EncodedCorpus) -> dict[str, float]:
        """Mean scores over the corpora, for logs and the choice of checkpoints."""
        written = translate_corpus(model, self.tokenizer, valid.select(self.rows), self.decoding)
        translations = unmarked(written, [source for source, _ in self.pairs], self.has_placeholders)
        if this_process().is_main_process:
            for row in self.samples:
                texts = dict(zip(("source", "reference"), self.pairs[row], strict=True), translation=translations[row])
                lines = [f"  {name + ':':<12} {text[:LONGEST_SAMPLE]}" for name, text in texts.items()]
                logger.info("validation sentence %d\n%s", self.rows[row] + 1, "\n".join(lines))
        return mean_figures(self.scorers, translations)


def spread_rows(sizes: Sequence[int], limit: int | None) -> list[np.ndarray]:
    """About `limit` rows of corpora of these sizes: evenly spaced, the same number from each; all rows for None."""
    share = max(sizes) if limit is None else -(-limit // len(sizes))
    return [np.linspace(0, size - 1, min(size, share)).round().astype(int) for size in sizes]
