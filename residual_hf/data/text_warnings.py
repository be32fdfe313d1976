# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Warnings about text that makes scores too high or translations too bad."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from residual_hf.model.placeholders import PLACEHOLDER_TOKENS

from .corpus import ParallelCorpus
from .encoding import EncodedCorpus
from .sample_checks import faults_of

logger = logging.getLogger(__name__)

MOST_UNKNOWN = 0.02
"""Share of unknown tokens above which a text gets a warning."""
FEW = 1000
"""Placeholders of a training text, below which it gets a warning."""


def warn_about_rare_placeholders(train: EncodedCorpus, tokenizer: PreTrainedTokenizerBase) -> None:
    """Log a warning if the training text has too few placeholders for a model to learn to copy them."""
    ids = tokenizer.convert_tokens_to_ids(list(PLACEHOLDER_TOKENS))
    found = int(np.isin(train.arrays["source_ids"], ids).sum())
    if found < FEW:
        logger.warning(
            f"data.placeholders: the training text has only {found} placeholders, tags, addresses or numbers on both "
            "sides: too few to learn that they come through unchanged"
        )


def warn_about_unknown_tokens(encoded: Mapping[str, EncodedCorpus], tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn about text that the tokenizer was not made for."""
    for name, corpus in encoded.items():
        for side in corpus.sides:
            share = float(np.mean(corpus.arrays[f"{side}_ids"] == tokenizer.unk_token_id))
            if share > MOST_UNKNOWN:
                logger.warning(
                    f"data.{name}: {100 * share:.0f} % of the {side} tokens are unknown to the tokenizer: the text "
                    "must be segmented and normalized like the text that it was made from"
                )


def warn_about_faults(texts: Mapping[str, Iterable[ParallelCorpus]], expected: Collection[str]) -> None:
    """Warn about text that cannot be right, see `faults_of`."""
    for name, corpora in texts.items():
        for corpus in corpora:
            for fault in faults_of(corpus, expected):
                logger.warning("data.%s: %s: %s", name, corpus.name, fault)


def warn_about_overlap(train: Iterable[ParallelCorpus], held_out: Mapping[str, Sequence[ParallelCorpus]]) -> None:
    """Warn about pairs of `valid` and `test` that are also training pairs."""
    pairs = {split: {pair for corpus in corpora for pair in corpus} for split, corpora in held_out.items()}
    every = set().union(*pairs.values())
    found = {pair for corpus in train for pair in corpus if pair in every}
    for split, own in pairs.items():
        if shared := len(own & found):
            logger.warning(
                f"data.{split}: {shared} of {len(own)} pairs are also training pairs, which makes the scores too "
                "high: remove them from the training corpora"
            )
