# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Optimizer updates and learning rates equal fairseq's formulas, written out again here."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from support.models import make
from torch import nn
from transformers import get_inverse_sqrt_schedule, get_scheduler

from residual_hf.base.errors import InputError
from residual_hf.training.fairseq_adam import FairseqAdam
from residual_hf.training.optimization import build_optimizer
from residual_hf.training.schedules import TRANSFORMERS_SCHEDULES, build_schedule
from residual_hf.training.training_settings import TrainingSettings

LR, BETAS, DECAY = 5e-3, (0.9, 0.98), 0.1


def settings(**fields):
    defaults = {"max_updates": 100, "lr": LR, "betas": BETAS, "warmup_updates": 0, "warmup_init_lr": 0.0}
    fields = {"weight_decay": 0.0, **defaults, **fields}
    return TrainingSettings(**fields)


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
        optimizer = build_optimizer(model, settings(optimizer=name, eps=1e-3))
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


@pytest.mark.parametrize(
    ("name", "first"), [("fairseq_adam", 3), ("adamw", 3), ("radam", 3), ("radam", 8), ("sgd", 3)]
)  # radam moves from update 6 on
def test_training_goes_on_bit_for_bit_from_a_saved_state(name, first, tmp_path):
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(14, 4, 4, generator=generator)

    def steps(model, optimizer, some_gradients):
        for gradient in some_gradients:
            model.weight.grad = gradient.clone()
            optimizer.step()

    model = nn.Linear(4, 4, bias=False)
    optimizer = build_optimizer(model, settings(optimizer=name, weight_decay=DECAY))
    steps(model, optimizer, gradients[:first])
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    resumed = copy.deepcopy(model)
    steps(model, optimizer, gradients[first:])

    optimizer = build_optimizer(resumed, settings(optimizer=name, lr=1.0))
    optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    steps(resumed, optimizer, gradients[first:])
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
    optimizer = build_optimizer(model, settings(optimizer=name, weight_decay=DECAY, weight_decay_on="all"))
    assert decayed(model, optimizer) == {key for key, _ in model.named_parameters()}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_weight_decay_on_hf_takes_the_parameters_that_the_trainer_takes(tmp_path):
    from transformers import Trainer, TrainingArguments

    model = Model()
    trainer = Trainer(model=model, args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[]))
    expected = set(trainer.get_decay_parameter_names(model)) - {"head.weight"}  # tied to embed.weight
    assert expected == {"embed.weight", "inner.fc.weight", "omega"}
    hf = settings(optimizer="adamw", weight_decay=DECAY, weight_decay_on="hf")
    assert decayed(model, build_optimizer(model, hf)) == expected


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
    optimizer = build_optimizer(model, settings(optimizer="adamw", weight_decay=DECAY, weight_decay_on=rule))
    assert {name.rpartition(".")[2] for name in own - decayed(model, optimizer)} == exempt
    assert exempt or own <= decayed(model, optimizer)


def test_frozen_parameters_are_left_out():
    model = Model()
    model.embed.weight.requires_grad_(False)
    optimizer = build_optimizer(model, settings())
    assert all(
        parameter is not model.embed.weight for group in optimizer.param_groups for parameter in group["params"]
    )


def schedule_of(total_updates=100, **fields):
    optimizer = FairseqAdam([nn.Parameter(torch.zeros(1))], lr=LR)
    return build_schedule(settings(**fields), optimizer, total_updates)


def rates(schedule, updates):
    """Learning rate of each of these updates, counted from 0."""
    optimizer = schedule.optimizer
    seen = {}
    for update in range(max(updates) + 1):
        seen[update] = optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()
    return [seen[update] for update in updates]


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
    schedule = schedule_of(warmup_updates=warm, warmup_init_lr=init)
    assert rates(schedule, updates) == pytest.approx(expected, rel=1e-12)


def test_inverse_sqrt_is_that_of_transformers():
    for warm, timescale in ((10, None), (0, None), (0, 50), (10, 50)):
        ours = rates(schedule_of(warmup_updates=warm, timescale=timescale), range(100))
        optimizer = FairseqAdam([nn.Parameter(torch.zeros(1))], lr=LR)
        theirs = rates(get_inverse_sqrt_schedule(optimizer, warm, timescale=timescale), range(100))
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_timescale_without_warm_up_is_the_schedule_of_t_fixup():
    updates = [0, 500, 12_000]
    expected = [LR * math.sqrt(4000 / (4000 + update)) for update in updates]
    assert rates(schedule_of(timescale=4000), updates) == pytest.approx(expected, rel=1e-12)


def test_linear_and_constant():
    linear = schedule_of(30, schedule="linear", warmup_updates=10)
    assert rates(linear, [0, 5, 10, 20, 30, 31]) == pytest.approx([0.0, LR / 2, LR, LR / 2, 0.0, 0.0])
    constant = schedule_of(schedule="constant", warmup_updates=10)
    assert rates(constant, [0, 5, 10, 30]) == pytest.approx([0.0, LR / 2, LR, LR])


@pytest.mark.parametrize("name", TRANSFORMERS_SCHEDULES)
def test_schedules_of_transformers(name):
    options = {
        "cosine_with_restarts": {"num_cycles": 2},
        "cosine_with_min_lr": {"min_lr_rate": 0.1},
        "polynomial": {"power": 2.0, "lr_end": LR / 10},
        "warmup_stable_decay": {"num_decay_steps": 30},
    }.get(name, {})
    ours = rates(schedule_of(schedule=name, schedule_options=options, warmup_updates=10), range(100))
    optimizer = FairseqAdam([nn.Parameter(torch.zeros(1))], lr=LR)
    theirs = rates(get_scheduler(name, optimizer, 10, 100, options), range(100))
    assert ours == pytest.approx(theirs, rel=1e-12)
    assert ours[10] == pytest.approx(LR) and ours[99] < LR / 5


def test_schedules_resume():
    fields = {"warmup_updates": 20, "warmup_init_lr": 1e-7}
    whole = rates(schedule_of(**fields), range(60))
    first = schedule_of(**fields)
    rates(first, range(30))
    second = schedule_of(**fields)
    second.load_state_dict(first.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert rates(second, range(30)) == whole[30:]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: settings(optimizer="adam"),
            "optimizer: 'adam' given, must be one of 'fairseq_adam', 'radam', 'adamw', 'sgd'",
        ),
        (
            lambda: settings(betas=(0.9, 1.0)),
            r"betas: \[0.9, 1.0\] given, must be a list of 2, each a number >= 0 and < 1",
        ),
        (lambda: settings(lr=-1), "lr: -1 given, must be a number > 0"),
        (lambda: settings(warmup_init_lr=1.0), r"warmup_init_lr: 1.0 given, must be <= lr \(0.005\)"),
        (lambda: settings(timescale=0), "timescale: 0 given"),
        (lambda: settings(timescale=9, schedule="linear"), "timescale: 9 given, must be null with schedule 'linear'"),
        (lambda: settings(schedule="linear", warmup_updates=100), "warmup_updates: 100 given, must be < max_updates"),
        (lambda: settings(schedule_options={"power": 2}), "schedule_options: .* must be empty with schedule 'inv"),
        (
            lambda: settings(schedule="cosine", schedule_options={"cycles": 2}),
            "schedule_options: {'cycles': 2} given, must be arguments of schedule 'cosine' .*'cycles'",
        ),
        (
            lambda: settings(schedule="polynomial", schedule_options={"power": float("nan")}),
            "schedule_options: {'power': nan} given, must be without numbers that are negative or not finite",
        ),
        (
            lambda: settings(schedule="cosine_with_min_lr", schedule_options={"min_lr": 5}),
            "schedule_options: {'min_lr': 5} given, .*a min_lr of at most lr",
        ),
        (lambda: settings(schedule="warmup_stable_decay"), "schedule_options: {} given, .*num_decay_steps"),
        (lambda: FairseqAdam([nn.Parameter(torch.zeros(1))], lr=0.0), "lr: 0.0 given"),
        (lambda: FairseqAdam([nn.Parameter(torch.zeros(1))], betas=(0.9, 1.0)), r"betas: \[0.9, 1.0\] given"),
        (lambda: FairseqAdam([nn.Parameter(torch.zeros(1))], eps=-1.0), "eps: -1.0 given"),
        (lambda: build_optimizer(Model().bfloat16(), settings()), "type torch.bfloat16"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
