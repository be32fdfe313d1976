# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A corpus of unique sentence pairs, split so that no sentence of one part occurs in another."""

from __future__ import annotations

from collections.abc import Mapping

from residual_hf.data.generated.clauses import Pair
from residual_hf.data.generated.dice import Dice
from residual_hf.data.generated.facts import FACTS
from residual_hf.data.generated.relations import RELATIONS
from residual_hf.data.generated.sentences import SENTENCES
from residual_hf.errors import InputError

MAX_PAIRS = 2_000_000
MIN_WORDS, MAX_WORDS = 4, 16

_PATTERNS = tuple(pattern for pattern, share in SENTENCES + FACTS + RELATIONS for _ in range(share))


def draw_pair(dice: Dice) -> Pair:
    """One random English sentence of 4 to 16 words and its German translation."""
    while True:
        pair = dice.pick(_PATTERNS)(dice)
        if MIN_WORDS <= pair[0].count(" ") + 1 <= MAX_WORDS:
            return pair


def _check(sizes: Mapping[str, int], seed: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InputError(f"sizes[{name!r}] is {size!r}; it must be a whole number of sentence pairs, 0 or more")
    total = sum(sizes.values())
    if total > MAX_PAIRS:
        raise InputError(
            f"sizes ask for {total} different sentence pairs in all; the grammar is good for at most {MAX_PAIRS}"
        )
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number, 0 or more")


def generate_corpus(sizes: Mapping[str, int], seed: int = 0) -> dict[str, list[Pair]]:
    """Random (English, German) sentence pairs, the same for the same seed on every machine and Python version.

    No English and no German sentence occurs twice, within a part or across parts. The smallest parts are drawn
    first (equal ones in the order of `sizes`), so held-out parts stay the same when the training part grows.

    Args:
        sizes: sentence pairs by part, as in {"train": 20000, "valid": 500, "test": 500}.
        seed: 0 or more.

    Raises:
        InputError: a size or the seed is no whole number, is negative, or the sizes add up to more than `MAX_PAIRS`.
    """
    _check(sizes, seed)
    dice = Dice(seed)
    english: set[str] = set()
    german: set[str] = set()
    parts: dict[str, list[Pair]] = {name: [] for name in sizes}
    for name in sorted(sizes, key=lambda part: sizes[part]):
        while len(parts[name]) < sizes[name]:
            pair = draw_pair(dice)
            if pair[0] not in english and pair[1] not in german:
                english.add(pair[0])
                german.add(pair[1])
                parts[name].append(pair)
    return parts
