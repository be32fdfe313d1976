# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Optimizer updates and learning rates equal fairseq's formulas, written out again here."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from model.test_mode_invariants import make
from torch import nn

from residual_hf.errors import InputError
from residual_hf.training.fairseq_adam import FairseqAdam
from residual_hf.training.optimization import build_optimizer
from residual_hf.training.schedules import (
    build_schedule,
    constant_schedule,
    inverse_sqrt_schedule,
    linear_schedule,
)

LR, BETAS, DECAY = 5e-3, (0.9, 0.98), 0.1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.final = nn.LayerNorm(4)
        self.q_norm = nn.Linear(4, 4, bias=False)
        self.inner = nn.ModuleDict({"norm": nn.Linear(4, 4, bias=False), "fc": nn.Linear(4, 4)})
        self.omega = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


def fairseq_updates(value: float, gradients: list[float], lrs: list[float], eps: float) -> float:
    """One scalar parameter, by the formulas."""
    m = v = 0.0
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        m = BETAS[0] * m + (1 - BETAS[0]) * gradient
        v = BETAS[1] * v + (1 - BETAS[1]) * gradient * gradient
        step_size = lr * math.sqrt(1 - BETAS[1] ** t) / (1 - BETAS[0] ** t)
        value -= lr * DECAY * value
        value -= step_size * m / (math.sqrt(v) + eps)
    return value


def scalar_run(eps: float, steps: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[float]]:
    """Start, gradients [steps, 3, 5], result of FairseqAdam with a learning rate that changes, and that rate."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    gradients = 1e-3 * torch.randn(steps, 3, 5, generator=generator, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    optimizer = FairseqAdam([parameter], lr=LR, betas=BETAS, eps=eps, weight_decay=DECAY)
    lrs = [LR * (step + 1) / steps for step in range(steps)]
    for gradient, lr in zip(gradients, lrs, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = gradient.clone()
        optimizer.step()
    return start, gradients, parameter.detach(), lrs


@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_fairseq_adam_makes_fairseqs_updates(eps):
    start, gradients, result, lrs = scalar_run(eps)
    for row in range(3):
        for column in range(5):
            expected = fairseq_updates(start[row, column].item(), gradients[:, row, column].tolist(), lrs, eps)
            assert result[row, column].item() == pytest.approx(expected, rel=1e-12)


def test_eps_stands_elsewhere_in_torchs_adamw():
    updated = []
    for name in ("fairseq_adam", "adamw"):
        model = nn.Linear(3, 3, bias=False).double()
        nn.init.ones_(model.weight)
        optimizer = build_optimizer(model, name, LR, BETAS, eps=1e-3)
        model.weight.grad = torch.full_like(model.weight, 1e-3)
        optimizer.step()
        updated.append(1 - model.weight[0, 0].item())
    assert updated[0] == pytest.approx(LR * math.sqrt(1 - BETAS[1]) * 1e-3 / (math.sqrt(1 - BETAS[1]) * 1e-3 + 1e-3))
    assert updated[1] == pytest.approx(LR * 1e-3 / (1e-3 + 1e-3))


def test_a_parameter_that_joins_late_has_its_own_bias_correction():
    early, late = (nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(2))
    optimizer = FairseqAdam([early, late], lr=LR, betas=BETAS, weight_decay=DECAY)
    for step in range(4):
        early.grad = torch.full_like(early, 0.5)
        late.grad = torch.full_like(late, 0.5) if step >= 2 else None
        optimizer.step()
    assert early.item() == pytest.approx(fairseq_updates(1.0, [0.5] * 4, [LR] * 4, 1e-8), rel=1e-12)
    assert late.item() == pytest.approx(fairseq_updates(1.0, [0.5] * 2, [LR] * 2, 1e-8), rel=1e-12)


@pytest.mark.parametrize("name", ["fairseq_adam", "adamw"])
def test_training_goes_on_bit_for_bit_from_a_saved_state(name, tmp_path):
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(6, 4, 4, generator=generator)

    def steps(model, optimizer, some_gradients):
        for gradient in some_gradients:
            model.weight.grad = gradient.clone()
            optimizer.step()

    model = nn.Linear(4, 4, bias=False)
    optimizer = build_optimizer(model, name, LR, BETAS, weight_decay=DECAY)
    steps(model, optimizer, gradients[:3])
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    resumed = copy.deepcopy(model)
    steps(model, optimizer, gradients[3:])

    optimizer = build_optimizer(resumed, name, 1.0)
    optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    steps(resumed, optimizer, gradients[3:])
    assert torch.equal(model.weight, resumed.weight)


def decayed(model, optimizer):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]
        for group in optimizer.param_groups
        if group["weight_decay"]
        for parameter in group["params"]
    }


@pytest.mark.parametrize("name", ["fairseq_adam", "adamw"])
def test_weight_decay_on_all_takes_every_parameter_once(name):
    model = Model()
    optimizer = build_optimizer(model, name, LR, weight_decay=DECAY, weight_decay_on="all")
    assert decayed(model, optimizer) == {key for key, _ in model.named_parameters()}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_weight_decay_on_hf_takes_the_parameters_that_the_trainer_takes(tmp_path):
    from transformers import Trainer, TrainingArguments

    model = Model()
    trainer = Trainer(model=model, args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[]))
    expected = set(trainer.get_decay_parameter_names(model)) - {"head.weight"}  # tied to embed.weight
    assert expected == {"embed.weight", "inner.fc.weight", "omega"}
    assert decayed(model, build_optimizer(model, "adamw", LR, weight_decay=DECAY, weight_decay_on="hf")) == expected


@pytest.mark.parametrize("rule", ["all", "hf"])
@pytest.mark.parametrize(
    ("mode", "exempt"),
    [
        ("hyper_connections", {"static_read", "static_mix", "static_write"}),
        ("mhc", {"static_read", "static_mix", "static_write"}),
        ("layer_scale", {"scale"}),
        ("skip_init", {"alpha"}),
        ("admin", set()),  # its code decays omega like all parameters
    ],
)
def test_parameters_that_a_mode_exempts_are_not_decayed(mode, exempt, rule):
    model = make(mode)
    own = {name for name, _ in model.named_parameters() if "residual" in name and "norm" not in name}
    optimizer = build_optimizer(model, "adamw", LR, weight_decay=DECAY, weight_decay_on=rule)
    assert {name.rpartition(".")[2] for name in own - decayed(model, optimizer)} == exempt
    assert exempt or own <= decayed(model, optimizer)


def test_frozen_parameters_are_left_out():
    model = Model()
    model.embed.weight.requires_grad_(False)
    optimizer = build_optimizer(model, "fairseq_adam", LR)
    assert all(
        parameter is not model.embed.weight for group in optimizer.param_groups for parameter in group["params"]
    )


def rates(schedule, updates):
    """Learning rate of each update asked for, counted from 0."""
    optimizer = schedule.optimizer
    seen = {}
    for update in range(max(updates) + 1):
        seen[update] = optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()
    return [seen[update] for update in updates]


def any_optimizer():
    return FairseqAdam([nn.Parameter(torch.zeros(1))], lr=LR)


@pytest.mark.parametrize("init", [0.0, 1e-7, LR])
def test_inverse_sqrt_is_fairseqs(init):
    warm = 20
    updates = [0, 1, warm - 1, warm, 10 * warm]
    expected = [
        init,
        init + (LR - init) / warm,
        init + (warm - 1) * (LR - init) / warm,
        LR,
        LR * math.sqrt(warm / (10 * warm)),
    ]
    assert rates(inverse_sqrt_schedule(any_optimizer(), warm, init), updates) == pytest.approx(expected, rel=1e-12)


def test_inverse_sqrt_is_that_of_transformers():
    from transformers import get_inverse_sqrt_schedule

    for warm, timescale in ((10, None), (0, None), (0, 50), (10, 50)):
        ours = rates(inverse_sqrt_schedule(any_optimizer(), warm, timescale=timescale), range(100))
        theirs = rates(get_inverse_sqrt_schedule(any_optimizer(), warm, timescale=timescale), range(100))
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_no_warm_up_starts_at_the_full_rate():
    first, later = rates(inverse_sqrt_schedule(any_optimizer(), 0, timescale=100), [0, 300])
    assert first == LR and later == pytest.approx(LR / 2, rel=1e-12)


def test_linear_and_constant():
    assert rates(linear_schedule(any_optimizer(), 10, 30), [0, 5, 10, 20, 30, 31]) == pytest.approx(
        [0.0, LR / 2, LR, LR / 2, 0.0, 0.0]
    )
    assert rates(constant_schedule(any_optimizer(), 10), [0, 5, 10, 30]) == pytest.approx([0.0, LR / 2, LR, LR])


def test_schedules_go_by_name_and_resume():
    schedule = build_schedule("inverse_sqrt", any_optimizer(), 20, warmup_init_lr=1e-7)
    whole = rates(schedule, range(60))
    first = build_schedule("inverse_sqrt", any_optimizer(), 20, warmup_init_lr=1e-7)
    rates(first, range(30))
    second = build_schedule("inverse_sqrt", any_optimizer(), 20, warmup_init_lr=1e-7)
    second.load_state_dict(first.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert rates(second, range(30)) == whole[30:]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: build_optimizer(Model(), "adam", LR),
            r"optimizer: 'adam' given, must be one of \['adamw', 'fairseq_adam', 'radam'\]",
        ),
        (lambda: build_optimizer(Model(), "adamw", LR, weight_decay_on="none"), "weight_decay_on: 'none' given"),
        (lambda: build_optimizer(Model(), "adamw", 0.0), "lr: 0.0 given"),
        (lambda: build_optimizer(Model(), "adamw", LR, betas=(0.9, 1.0)), r"betas: \(0.9, 1.0\) given"),
        (lambda: build_optimizer(Model(), "adamw", LR, eps=-1.0), "eps: -1.0 given"),
        (lambda: build_optimizer(Model(), "adamw", LR, weight_decay=-1.0), "weight_decay: -1.0 given"),
        (lambda: build_optimizer(Model().requires_grad_(False), "adamw", LR), "model: no parameter requires"),
        (lambda: build_optimizer(Model().bfloat16(), "fairseq_adam", LR), "type torch.bfloat16"),
        (lambda: build_schedule("cosine", any_optimizer(), 1), "schedule: 'cosine' given"),
        (lambda: build_schedule("constant", any_optimizer(), -1), "warmup_steps: -1 given"),
        (lambda: build_schedule("inverse_sqrt", any_optimizer(), 1, warmup_init_lr=1.0), "warmup_init_lr: 1.0 given"),
        (lambda: build_schedule("inverse_sqrt", any_optimizer(), 1, timescale=0), "timescale: 0 given"),
        (lambda: build_schedule("linear", any_optimizer(), 10, total_steps=10), "total_steps: 10 given"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
