"""Optimizer updates and learning rates equal the formulas of fairseq and RAdam, written out again here."""

import copy
import itertools
import math

import pytest
import torch
from support.models import make
from torch import nn
from transformers import get_scheduler

from residual_hf.base.errors import InputError
from residual_hf.training.optimization import FairseqAdam, RAdam, build_optimizer
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


def unrectified(update, beta2):
    return 1.0


def rectified(update, beta2):
    """The factor r_t of Liu et al. 2020, algorithm 2."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * update * beta2**update / (1 - beta2**update)
    variance = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return 0.0 if length < 5 else math.sqrt(variance)


def updated(value, gradients, lrs, eps=1e-8, betas=BETAS, factor=unrectified):
    """One scalar parameter after these updates, by the formulas."""
    m = v = 0.0
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient * gradient
        step_size = lr * factor(t, betas[1]) * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
        value -= lr * DECAY * value
        value -= step_size * m / (math.sqrt(v) + eps)
    return value


@pytest.mark.parametrize(
    ("optimizer", "betas", "factor"),
    [
        (FairseqAdam, BETAS, unrectified),
        *((RAdam, (b1, b2), rectified) for b1, b2 in ((0.9, 0.98), (0.9, 0.999), (0.5, 0.7))),
    ],
)
@pytest.mark.parametrize("eps", [1e-8, 1e-3])
@pytest.mark.parametrize("steps", [5, 6, 40])  # radam moves from update 6 on
def test_updates_are_those_of_the_equations(optimizer, betas, factor, eps, steps):
    """With a learning rate that changes."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    gradients = 1e-3 * torch.randn(steps, 3, 5, generator=generator, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    made = optimizer([parameter], lr=LR, betas=betas, eps=eps, weight_decay=DECAY)
    lrs = [LR * (step + 1) / steps for step in range(steps)]
    for gradient, lr in zip(gradients, lrs, strict=True):
        made.param_groups[0]["lr"] = lr
        parameter.grad = gradient.clone()
        made.step()
    for place in itertools.product(range(3), range(5)):
        series = gradients[(slice(None), *place)].tolist()
        expected = updated(start[place].item(), series, lrs, eps, betas, factor)
        assert parameter[place].item() == pytest.approx(expected, rel=1e-12)


def test_a_parameter_that_joins_late_has_its_own_bias_correction():
    early, late = (nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(2))
    optimizer = FairseqAdam([early, late], lr=LR, betas=BETAS, weight_decay=DECAY)
    for step in range(4):
        early.grad = torch.full_like(early, 0.5)
        late.grad = torch.full_like(late, 0.5) if step >= 2 else None
        optimizer.step()
    assert early.item() == pytest.approx(updated(1.0, [0.5] * 4, [LR] * 4), rel=1e-12)
    assert late.item() == pytest.approx(updated(1.0, [0.5] * 2, [LR] * 2), rel=1e-12)


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
    growth = (LR - init) / warm
    expected = [init, init + growth, init + (warm - 1) * growth, LR, LR * math.sqrt(warm / (10 * warm))]
    schedule = schedule_of(warmup_updates=warm, warmup_init_lr=init)
    assert rates(schedule, updates) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("fields", "timescale"), [({"timescale": 4000}, 4000), ({"warmup_updates": 10, "timescale": 50}, 50), ({}, 10_000)]
)  # the first is T-Fixup's
def test_timescale_of_the_decay_after_the_warm_up(fields, timescale):
    warm = fields.get("warmup_updates", 0)
    updates = [warm, warm + 500, warm + 9000]
    expected = [LR * math.sqrt(timescale / (timescale + update - warm)) for update in updates]
    assert rates(schedule_of(**fields), updates) == pytest.approx(expected, rel=1e-12)


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
        (lambda: settings(optimizer="adam"), "optimizer: 'adam' given, must be one of 'fairseq_adam', 'radam'"),
        (lambda: settings(betas=(0.9, 1.0)), r"betas: \[0.9, 1.0\] given, must be a list of 2, each a number >= 0"),
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
        (lambda: settings(schedule="cosine_with_min_lr", schedule_options={"min_lr": 5}), ".*a min_lr of at most"),
        (
            lambda: settings(schedule="warmup_stable_decay", schedule_options={"num_decay_steps": 101}),
            ".*_steps of at",
        ),
        (lambda: settings(schedule="warmup_stable_decay"), "schedule_options: {} given, .*num_decay_steps"),
        (
            lambda: schedule_of(
                100,
                schedule="warmup_stable_decay",
                schedule_options={"num_decay_steps": 91},
                warmup_updates=10,
                max_updates=None,
                max_epochs=3,
            ),
            "num_decay_steps of at most 90, the updates of this run after the warm-up",
        ),
        (
            lambda: settings(
                schedule="warmup_stable_decay", schedule_options={"num_decay_steps": 9, "num_stable_steps": 9}
            ),
            "without num_stable_steps, which follows from the number of updates",
        ),
        (
            lambda: settings(schedule="cosine_with_restarts", schedule_options={"num_cycles": "two"}),
            "must be arguments of schedule 'cosine_with_restarts'",
        ),
        (lambda: settings(schedule="cosine", schedule_options={"last_epoch": 5}), "must be arguments of schedule"),
        (lambda: FairseqAdam([nn.Parameter(torch.zeros(1))], lr=0.0), "lr: 0.0 given"),
        (lambda: FairseqAdam([nn.Parameter(torch.zeros(1))], betas=(0.9, 1.0)), r"betas: \[0.9, 1.0\] given"),
        (lambda: FairseqAdam([nn.Parameter(torch.zeros(1))], eps=-1.0), "eps: -1.0 given"),
        (
            lambda: build_optimizer(Model().bfloat16(), settings()),
            "FairseqAdam given a .* type torch.bfloat16, must be",
        ),
        (lambda: RAdam(Model().half().parameters()), "RAdam given a parameter of type torch.float16"),
        (lambda: RAdam(Model().parameters(), betas=(0.9, 0.6)), r"betas: \(0.9, 0.6\) given"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
