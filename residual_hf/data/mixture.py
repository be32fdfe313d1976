"""Mixtures of several training corpora: the share of each, and an epoch of corpora in memory."""

import math
from collections.abc import Sequence

import numpy as np


def mixing_probabilities(
    sizes: Sequence[float], weights: Sequence[float] | None = None, temperature: float = 1.0
) -> list[float]:
    """The share of each corpus among the training pairs: n_i^(1/T) / sum_j n_j^(1/T), or the normalized `weights`.

    T = 1 keeps the proportions; higher temperatures draw small corpora more often, up to equal shares (Arivazhagan et
    al. 2019). Sizes are above 0.
    """
    if weights is None:
        largest = max(sizes)
        weights = [(size / largest) ** (1 / temperature) for size in sizes]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def mixed_indices(sizes: Sequence[int], probabilities: Sequence[float], seed: int) -> np.ndarray:
    """An epoch of sum(sizes) pairs: ascending int64 indices into the concatenated corpora.

    Every pair of corpus i occurs floor(p_i * N / n_i) times or once more; `seed` selects those that occur once more.
    """
    rng = np.random.default_rng(seed)
    exact = np.asarray(probabilities) * sum(sizes)
    shares = np.floor(exact).astype(np.int64)
    largest_fractions = np.argsort(shares - exact, kind="stable")
    shares[largest_fractions[: sum(sizes) - shares.sum()]] += 1
    times = []
    for size, pairs in zip(sizes, shares.tolist(), strict=True):
        every, more = divmod(pairs, size)
        corpus = np.full(size, every)
        corpus[rng.choice(size, more, replace=False)] += 1
        times.append(corpus)
    return np.repeat(np.arange(sum(sizes)), np.concatenate(times))
