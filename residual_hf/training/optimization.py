# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Optimizers by name, and which parameters they decay."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

from residual_hf.errors import InputError

from .fairseq_adam import FairseqAdam, check_optimizer_numbers
from .radam import RAdam

NAMES_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
"""Parameters that the Transformers Trainer leaves out of weight decay, besides those of `nn.LayerNorm` modules."""


def _fused_adamw(groups: list[dict[str, Any]], **numbers: Any) -> AdamW:
    on_known_device = all(
        parameter.device.type in ("cpu", "cuda") for group in groups for parameter in group["params"]
    )
    return AdamW(groups, fused=on_known_device, **numbers)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "fairseq_adam": FairseqAdam,
    "radam": RAdam,
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
            biases and norms, as the Transformers Trainer does. Parameters that a residual connection exempts
            (`no_weight_decay`) are never decayed.

    Raises:
        InputError: an unknown name, a number out of its range, or a model without trainable parameters.
    """
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer: {name!r} given, must be one of {sorted(OPTIMIZERS)}")
    if weight_decay_on not in ("all", "hf"):
        raise InputError(f"weight_decay_on: {weight_decay_on!r} given, must be 'all' or 'hf'")
    check_optimizer_numbers(lr, betas, eps, weight_decay)
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trainable:
        raise InputError("model: no parameter requires a gradient, there is nothing to train")
    exempt = _exempted_by_modes(model) | (_norms_and_biases(model) if weight_decay_on == "hf" else set())
    groups = [
        {"params": [parameter for key, parameter in trainable.items() if key not in exempt]},
        {"params": [parameter for key, parameter in trainable.items() if key in exempt], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return OPTIMIZERS[name](groups, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)


def _exempted_by_modes(model: nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        for name in getattr(module, "no_weight_decay", ())
    }


def _norms_and_biases(model: nn.Module) -> set[str]:
    in_layer_norms = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters(recurse=False)
    }
    by_name = {name for name, _ in model.named_parameters() if NAMES_WITHOUT_DECAY.search(name)}
    return in_layer_norms | by_name
