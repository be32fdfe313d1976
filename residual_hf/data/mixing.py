# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Several corpora in one training: how often each is drawn, and an epoch over corpora in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from residual_hf.errors import InputError


def mixing_probabilities(
    sizes: Sequence[int], weights: Sequence[float] | None = None, temperature: float = 1.0
) -> list[float]:
    """The share of each corpus among the pairs trained on: n_i^(1/T) over their sum, T = 1 being as they come.

    Higher temperatures draw small corpora more often, up to equal shares (Arivazhagan et al. 2019). `weights` are used
    in place of n_i^(1/T) where they are given.

    Raises:
        InputError: no corpus, a size below 1, weights of another number or not positive, a temperature not above 0.
    """
    if len(sizes) == 0:
        raise InputError("sizes: empty, there must be at least one corpus")
    for index, size in enumerate(sizes):
        if not size >= 1:
            raise InputError(f"sizes[{index}]: {size} given, must be at least 1")
    if weights is not None and len(weights) != len(sizes):
        raise InputError(f"weights: {len(weights)} given for {len(sizes)} corpora, must be as many")
    for index, weight in enumerate(weights or ()):
        if not 0 < weight < math.inf:
            raise InputError(f"weights[{index}]: {weight} given, must be more than 0")
    if not temperature > 0:
        raise InputError(f"temperature: {temperature} given, must be more than 0")
    if weights is None:
        largest = max(sizes)
        weights = [(size / largest) ** (1 / temperature) for size in sizes]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def mixed_indices(sizes: Sequence[int], probabilities: Sequence[float], seed: int) -> np.ndarray:
    """An epoch of sum(sizes) pairs: int64 indices into the corpora one behind the other, in ascending order.

    Every pair of corpus i is there floor(p_i * N / n_i) times or once more; `seed` draws which ones are once more.
    """
    if len(probabilities) != len(sizes):
        raise InputError(f"probabilities: {len(probabilities)} given for {len(sizes)} corpora, must be as many")
    if not math.isclose(math.fsum(probabilities), 1, abs_tol=1e-6) or min(probabilities) < 0:
        raise InputError(f"probabilities: {list(probabilities)} given, must be at least 0 and sum to 1")
    rng = np.random.default_rng(seed)
    times = []
    for size, pairs in zip(sizes, _shares(sum(sizes), probabilities), strict=True):
        every, more = divmod(pairs, size)
        corpus = np.full(size, every)
        corpus[rng.choice(size, more, replace=False)] += 1
        times.append(corpus)
    return np.repeat(np.arange(sum(sizes)), np.concatenate(times))


def _shares(total: int, probabilities: Sequence[float]) -> list[int]:
    """Whole numbers that sum to `total`, each p * total rounded down or up, those with the largest fractions up."""
    exact = np.asarray(probabilities, dtype=np.float64) / math.fsum(probabilities) * total
    shares = np.floor(exact).astype(np.int64)
    largest_fractions = np.argsort(shares - exact, kind="stable")
    shares[largest_fractions[: total - shares.sum()]] += 1
    return shares.tolist()
