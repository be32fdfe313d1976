# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Optimizers and learning rate schedules with the arithmetic of fairseq, and their counterparts in torch."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from residual_hf.errors import InputError

NAMES_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
"""Parameters that the Transformers Trainer leaves out of weight decay, besides those of `nn.LayerNorm` modules."""


class FairseqAdam(Optimizer):
    """Adam with decoupled weight decay, as fairseq's `adam` computes it (Kingma and Ba 2015, end of section 2).

    Update t = 1, 2, ... of a parameter p with gradient g:

        m <- b1 * m + (1 - b1) * g
        v <- b2 * v + (1 - b2) * g^2
        p <- p - lr * weight_decay * p
        p <- p - lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)

    `torch.optim.AdamW` adds eps to the square root of the bias-corrected v; it makes this very update if its eps is
    `eps / sqrt(1 - b2^t)`, which is how torch's fused kernel serves here.

    Args:
        params: parameters or groups of them, fp32 or fp64 (mixed precision is autocast's business).
        lr: learning rate.
        betas: decay rates b1 and b2 of the two moments, in [0, 1).
        eps: see above.
        weight_decay: see above.

    Raises:
        InputError: a number out of its range, or parameters of another type.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        _check_optimizer_numbers(lr, betas, eps, weight_decay)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"optimizer: {type(self).__name__} given a parameter of type {parameter.dtype}, must be float32 "
                    "or float64; keep the weights in float32 and train under autocast, or use adamw"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update of every parameter that has a gradient; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["step"] += 1
                alike[parameter.device, parameter.dtype, state["step"]].append(parameter)
            for (device, _, step), parameters in alike.items():
                self._update(group, parameters, torch.full((), float(step), device=device), step)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter], step: torch.Tensor, count: int) -> None:
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            parameters,
            [parameter.grad for parameter in parameters],
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
            [],
            [step] * len(parameters),
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"] / math.sqrt(1.0 - beta2**count),
            weight_decay=group["weight_decay"],
            amsgrad=False,
            maximize=False,
        )


def _fused_adamw(groups: list[dict[str, Any]], **numbers: Any) -> AdamW:
    on_known_device = all(
        parameter.device.type in ("cpu", "cuda") for group in groups for parameter in group["params"]
    )
    return AdamW(groups, fused=on_known_device, **numbers)


def _radam(groups: list[dict[str, Any]], **numbers: Any) -> Optimizer:
    from .radam import RAdam  # which is made from FairseqAdam

    return RAdam(groups, **numbers)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "fairseq_adam": FairseqAdam,
    "radam": _radam,
    "adamw": _fused_adamw,
}


def build_optimizer(
    model: nn.Module,
    name: str,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    weight_decay_on: str = "all",
) -> Optimizer:
    """The optimizer of that name for the parameters of `model` that require gradients.

    Args:
        model: tied parameters count once.
        name: "fairseq_adam", "radam" (of the Admin papers), or "adamw" (torch, fused).
        lr: learning rate at the top of the schedule.
        betas: decay rates of the two moments.
        eps: added to the denominator, where exactly is the difference between fairseq_adam and adamw.
        weight_decay: decoupled, times the learning rate of the moment.
        weight_decay_on: "all" parameters, as fairseq does, or "hf": all but layer norms and parameters with names of
            biases and norms, as the Transformers Trainer does.

    Raises:
        InputError: an unknown name, a number out of its range, or a model without trainable parameters.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer: {name!r} given, must be one of {sorted(OPTIMIZERS)}")
    if weight_decay_on not in ("all", "hf"):
        raise InputError(f"weight_decay_on: {weight_decay_on!r} given, must be 'all' or 'hf'")
    _check_optimizer_numbers(lr, betas, eps, weight_decay)
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trainable:
        raise InputError("model: no parameter requires a gradient, there is nothing to train")
    exempt = _names_without_decay(model) if weight_decay_on == "hf" else set()
    groups = [
        {"params": [parameter for key, parameter in trainable.items() if key not in exempt]},
        {"params": [parameter for key, parameter in trainable.items() if key in exempt], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return OPTIMIZERS[name](groups, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)


def _names_without_decay(model: nn.Module) -> set[str]:
    in_layer_norms = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters(recurse=False)
    }
    by_name = {name for name, _ in model.named_parameters() if NAMES_WITHOUT_DECAY.search(name)}
    return in_layer_norms | by_name


def _check_optimizer_numbers(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    if not 0.0 < lr < math.inf:
        raise InputError(f"lr: {lr} given, must be above 0")
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise InputError(f"betas: {betas} given, must be two numbers of at least 0 and below 1")
    for field, value in (("eps", eps), ("weight_decay", weight_decay)):
        if not 0.0 <= value < math.inf:
            raise InputError(f"{field}: {value} given, must be at least 0")


def inverse_sqrt_schedule(
    optimizer: Optimizer, warmup_steps: int, warmup_init_lr: float = 0.0, timescale: int | None = None
) -> LambdaLR:
    """Linear warm-up, then decay with the inverse square root of the number of updates: fairseq's `inverse_sqrt`.

    With t the updates made so far (0 when the first is made), lr the optimizer's learning rate, w the warm-up, T the
    time scale:

        warmup_init_lr + t * (lr - warmup_init_lr) / w    for t < w
        lr * sqrt(T / (t - w + T))                        from then on

    T is w where it is not given, which makes the second line fairseq's `lr * sqrt(w / t)`; without warm-up, which
    fairseq does not offer, it is 10,000 as in Transformers.

    Raises:
        InputError: a negative warm-up, a time scale below 1, or `warmup_init_lr` outside [0, lr].
    """
    scale = timescale if timescale is not None else warmup_steps or 10_000
    if scale < 1:
        raise InputError(f"timescale: {timescale} given, must be at least 1")
    return _warm_up_then(
        optimizer, warmup_steps, warmup_init_lr, lambda updates: math.sqrt(scale / (updates - warmup_steps + scale))
    )


def linear_schedule(
    optimizer: Optimizer, warmup_steps: int, total_steps: int, warmup_init_lr: float = 0.0
) -> LambdaLR:
    """Linear warm-up, then linear decay to 0 at update `total_steps`.

    Raises:
        InputError: as for `inverse_sqrt_schedule`, or `total_steps` not above `warmup_steps`.
    """
    if total_steps <= warmup_steps:
        raise InputError(f"total_steps: {total_steps} given, must be above warmup_steps ({warmup_steps})")
    return _warm_up_then(
        optimizer,
        warmup_steps,
        warmup_init_lr,
        lambda updates: max(0.0, (total_steps - updates) / (total_steps - warmup_steps)),
    )


def constant_schedule(optimizer: Optimizer, warmup_steps: int, warmup_init_lr: float = 0.0) -> LambdaLR:
    """Linear warm-up, then a constant learning rate.

    Raises:
        InputError: as for `inverse_sqrt_schedule`.
    """
    return _warm_up_then(optimizer, warmup_steps, warmup_init_lr, lambda updates: 1.0)


def _warm_up_then(
    optimizer: Optimizer, warmup_steps: int, warmup_init_lr: float, decay: Callable[[int], float]
) -> LambdaLR:
    """`decay` maps the number of updates, from the warm-up on, to a factor of the learning rate."""
    if warmup_steps < 0:
        raise InputError(f"warmup_steps: {warmup_steps} given, must be at least 0")
    lowest = min(group["lr"] for group in optimizer.param_groups)
    if not 0.0 <= warmup_init_lr <= lowest:
        raise InputError(f"warmup_init_lr: {warmup_init_lr} given, must be between 0 and the learning rate {lowest}")

    def factor_for(lr: float) -> Callable[[int], float]:
        start = warmup_init_lr / lr
        return lambda updates: (
            start + updates * (1.0 - start) / warmup_steps if updates < warmup_steps else decay(updates)
        )

    return LambdaLR(optimizer, [factor_for(group["lr"]) for group in optimizer.param_groups])


SCHEDULES: dict[str, Callable[..., LambdaLR]] = {
    "inverse_sqrt": inverse_sqrt_schedule,
    "linear": linear_schedule,
    "constant": constant_schedule,
}


def build_schedule(name: str, optimizer: Optimizer, warmup_steps: int, **options: Any) -> LambdaLR:
    """The schedule of that name; call its `step()` after every update.

    Args:
        name: "inverse_sqrt", "linear" or "constant".
        optimizer: its learning rate is the top of the schedule.
        warmup_steps: updates of linear warm-up.
        options: further arguments of the schedule (`warmup_init_lr`, `timescale`, `total_steps`).

    Raises:
        InputError: an unknown name, or what the schedule refuses.
    """
    if name not in SCHEDULES:
        raise InputError(f"schedule: {name!r} given, must be one of {sorted(SCHEDULES)}")
    return SCHEDULES[name](optimizer, warmup_steps, **options)
