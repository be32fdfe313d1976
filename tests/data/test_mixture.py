"""Corpora are mixed in the shares asked for, and every pair is seen equally often."""

import math

import numpy as np
import pytest

from residual_hf.data.mixture import mixed_indices, mixing_probabilities


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.01, 0.99]),
        ({"temperature": 2}, [1 / (1 + math.sqrt(99)), math.sqrt(99) / (1 + math.sqrt(99))]),
        ({"temperature": math.inf}, [0.5, 0.5]),
        ({"weights": [3, 1]}, [0.75, 0.25]),
        ({"weights": [3, 1], "temperature": 5}, [0.75, 0.25]),
    ],
)
def test_probabilities(options, expected):
    assert mixing_probabilities([10**7, 99 * 10**7], **options) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sizes", [[7, 100, 1], [1000, 10], [5]])
@pytest.mark.parametrize("temperature", [1, 1.7, 5, math.inf])
def test_every_pair_is_there_floor_or_one_more_times(sizes, temperature):
    total = sum(sizes)
    probabilities = mixing_probabilities(sizes, temperature=temperature)
    indices = mixed_indices(sizes, probabilities, seed=1)
    assert len(indices) == total
    times = np.bincount(indices, minlength=total)
    for size, share, own in zip(sizes, probabilities, np.split(times, np.cumsum(sizes)[:-1]), strict=True):
        assert abs(own.sum() - share * total) < 1
        least = math.floor(share * total / size + 1e-9)
        assert set(own) <= {least, least + 1}
    if temperature == 1:
        assert (times == 1).all()


def test_the_seed_draws_the_extra_ones():
    draw = {seed: tuple(mixed_indices([100, 50], [0.5, 0.5], seed)) for seed in (1, 2)}
    assert draw[1] != draw[2]
    assert draw[1] == tuple(mixed_indices([100, 50], [0.5, 0.5], 1))
    extra = [i - 100 for i in range(100, 150) if draw[1].count(i) == 2]
    assert len(extra) == 25 and max(extra) - min(extra) > 25  # spread, not the first ones
