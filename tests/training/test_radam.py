# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""RAdam's updates equal the equations of the paper and of the Admin papers' code, written out again here."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from residual_hf.base.errors import InputError
from residual_hf.training.optimization import build_optimizer
from residual_hf.training.radam import RAdam
from residual_hf.training.training_settings import TrainingSettings

LR, DECAY = 5e-3, 0.1


def settings(**fields):
    return TrainingSettings(**{"max_updates": 1, "optimizer": "radam", "lr": LR, "weight_decay": 0.0, **fields})


def radam_updates(
    value: float, gradients: list[float], lrs: list[float], betas: tuple[float, float], eps: float
) -> list[float]:
    """The values of one scalar parameter, by the equations (Liu et al. 2020, algorithm 2)."""
    b1, b2 = betas
    m = v = 0.0
    longest = 2 / (1 - b2) - 1
    values = []
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        m = b1 * m + (1 - b1) * gradient
        v = b2 * v + (1 - b2) * gradient**2
        length = longest - 2 * t * b2**t / (1 - b2**t)
        value -= lr * DECAY * value
        if length >= 5:
            variance = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            adaptive = math.sqrt(1 - b2**t) / (math.sqrt(v) + eps)
            value -= lr * math.sqrt(variance) * m / (1 - b1**t) * adaptive
        values.append(value)
    return values


@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.9, 0.999), (0.5, 0.7)])
@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_updates_are_those_of_the_equations(betas, eps):
    generator = torch.Generator().manual_seed(0)
    gradients = 1e-3 * torch.randn(40, 3, 5, generator=generator, dtype=torch.float64)
    parameter = nn.Parameter(torch.randn(3, 5, generator=generator, dtype=torch.float64))
    start = parameter.detach().clone()
    optimizer = RAdam([parameter], lr=LR, betas=betas, eps=eps, weight_decay=DECAY)
    lrs = [LR * (step + 1) / 40 for step in range(40)]
    history = []
    for gradient, lr in zip(gradients, lrs, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = gradient.clone()
        optimizer.step()
        history.append(parameter.detach().clone())
    for row in range(3):
        for column in range(5):
            expected = radam_updates(start[row, column].item(), gradients[:, row, column].tolist(), lrs, betas, eps)
            assert [value[row, column].item() for value in history] == pytest.approx(expected, rel=1e-12)


def test_nothing_moves_before_the_sixth_update_and_the_moments_are_kept():
    parameter = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = RAdam([parameter], lr=LR)
    moved = []
    for _ in range(7):
        before = parameter.detach().clone()
        parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
        moved.append(not torch.equal(before, parameter))
    assert moved == [False] * 5 + [True] * 2
    assert optimizer.state[parameter]["exp_avg"][0].item() == pytest.approx(0.5 * (1 - 0.9**7), rel=1e-12)


def test_torchs_goes_by_the_momentum_meanwhile_and_makes_the_same_updates_afterwards():
    generator = torch.Generator().manual_seed(2)
    gradients = torch.randn(30, 6, generator=generator, dtype=torch.float64)
    ours, theirs = (nn.Parameter(torch.ones(6, dtype=torch.float64)) for _ in range(2))
    optimizer = RAdam([ours], lr=LR, eps=1e-3)
    reference = torch.optim.RAdam([theirs], lr=LR, betas=(0.9, 0.98), eps=1e-3, decoupled_weight_decay=True)
    for update, gradient in enumerate(gradients, start=1):
        before = ours.detach().clone(), theirs.detach().clone()
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
        steps = ours.detach() - before[0], theirs.detach() - before[1]
        if update <= 5:
            mean = reference.state[theirs]["exp_avg"]
            assert torch.equal(steps[0], torch.zeros(6, dtype=torch.float64))
            torch.testing.assert_close(steps[1], -LR * mean / (1 - 0.9**update), rtol=1e-9, atol=1e-15)
        else:
            torch.testing.assert_close(steps[0], steps[1], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RAdam(nn.Linear(2, 2).half().parameters()), "RAdam given a parameter of type torch.float16"),
        (lambda: build_optimizer(nn.Linear(2, 2).half(), settings()), "type torch.float16, must be float32"),
        (lambda: RAdam(nn.Linear(2, 2).parameters(), betas=(0.9, 0.6)), r"betas: \(0.9, 0.6\) given"),
        (lambda: RAdam(nn.Linear(2, 2).parameters(), lr=0.0), "lr: 0.0 given"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
