import math

import numpy as np

from residual_hf.training.spikes import RECENT, THRESHOLD, first_mover, spike_scores


def noisy(updates, series, seed=0):
    return np.exp(0.1 * np.random.default_rng(seed).standard_normal((updates, series)))


def test_score_counts_robust_deviations_of_the_logarithm():
    before = noisy(128, 2)
    before[50] = 1e6  # an earlier spike does not hide the next one
    score, other = spike_scores(np.array([math.e, 1.0]), before)
    assert 8.5 < score < 11.5 and abs(other) < 0.5


def test_a_falling_loss_has_no_spikes_and_a_jump_has():
    loss = 8 * np.exp(-np.arange(400) / 150)[:, None] * noisy(400, 1) ** 0.3
    scores = [spike_scores(loss[i], loss[:i])[0] for i in range(400)]
    assert max(scores) < THRESHOLD
    assert spike_scores(2 * loss[-1], loss[:-1])[0] > THRESHOLD


def test_few_values_have_no_score_and_values_that_are_not_finite_have_the_highest():
    before = noisy(RECENT - 1, 2)
    assert spike_scores(np.array([100.0, math.nan]), before).tolist() == [0.0, math.inf]
    assert spike_scores(np.array([0.0, 1.0]), np.zeros((64, 2))).tolist() == [0.0, 0.0]


def test_first_mover_is_where_the_spike_began():
    history = noisy(100, 5)
    history[97, 3] = 30.0
    history[98:, 2:] = 100.0
    back, series, score = first_mover(history)
    assert (back, series) == (2, 3) and score > THRESHOLD
    assert first_mover(noisy(100, 5)) is None
    history = noisy(100, 5)
    history[99, 1:4] = math.nan
    assert first_mover(history) == (0, 3, math.inf)
