# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Weights that are split over processes: by FSDP2, or by ZeRO-3 of DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


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
