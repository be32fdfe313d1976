# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Weights that are split over processes: by FSDP2, or by ZeRO-3 of DeepSpeed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from residual_hf.errors import InputError

from .settings import TrainingSettings


def check_launch(settings: TrainingSettings) -> None:
    """Raise `InputError` for what `accelerate launch` was told and a run cannot do, before any work."""

    def told(name: str) -> bool:
        return os.environ.get(name, "false").lower() in ("1", "true")

    fsdp, deepspeed = told("ACCELERATE_USE_FSDP"), told("ACCELERATE_USE_DEEPSPEED")
    if fsdp and os.environ.get("FSDP_VERSION", "1") != "2":
        raise InputError("fsdp_config.fsdp_version: 1 given to accelerate launch, must be 2")
    if deepspeed and importlib.util.find_spec("deepspeed") is None:
        raise InputError("distributed_type: DEEPSPEED given to accelerate launch: pip install deepspeed")
    if settings.ema_decay and (fsdp or deepspeed or settings.deepspeed):
        raise InputError("training.ema_decay: weights that FSDP or DeepSpeed have split are not averaged")
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", settings.precision):
        raise InputError(
            f"training.precision: {settings.precision} in the recipe, but accelerate launch was told mixed_precision "
            f"{precision}; the recipe decides, leave mixed_precision out"
        )


@contextmanager
def tables_in_root(model: Any) -> Iterator[None]:
    """Let accelerate's FSDP2 find no embeddings, so that they stay in the group of the whole model.

    In groups of their own they would be gathered when their modules are called. The loss reads the output projection
    without calling it, and tied tables may be in one group only.
    """
    names = ("get_input_embeddings", "get_output_embeddings")
    for name in names:
        setattr(model, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)


def is_sharded(model: Any) -> bool:
    """Whether a process holds no more than a part of the weights."""
    return any(isinstance(p, DTensor) or hasattr(p, "ds_id") for p in model.parameters())


@torch.no_grad()
def gather_full_model(model: Any) -> Any:
    """A plain model with the weights of one whose weights are split; all processes call it, and each gets it."""
    kind = next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))
    with torch.random.fork_rng(devices=[]):
        copy = kind(model.config)
    copy.to(model.device, model.dtype)
    targets = {**dict(copy.named_parameters()), **dict(copy.named_buffers())}
    for name, part in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        with _gathered(part) as whole:
            targets[name].copy_(whole)
    copy.criterion = model.criterion
    return copy.train(model.training)


@contextmanager
def _gathered(part: Tensor) -> Iterator[Tensor]:
    if hasattr(part, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([part]):
            yield part
    else:
        yield part.full_tensor() if isinstance(part, DTensor) else part
