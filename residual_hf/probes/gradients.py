# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Norms of gradients by sub-layer and location."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from residual_hf.base.errors import InputError
from residual_hf.model.connections import Stream
from residual_hf.model.stacks import ResidualStack

from .sites import Place, Site, Sublayer, stacks, sublayers, watch
from .undisturbed import Batches, as_list, backward, gradient, undisturbed


@dataclass(frozen=True)
class GradientNorm(Site):
    """Frobenius norm of the gradient of the loss with respect to a tensor, or to the weights of a branch.

    `layer` counts from 1. `location` is "weights" or a location of `sites`. `relative` is the norm divided by the
    largest norm of the same location in the model (Admin, figure 3).
    """

    norm: float
    relative: float


def gradient_norms(model: nn.Module, batches: Batches, *, training: bool = False) -> list[GradientNorm]:
    """Gradient norms of each sub-layer: of its weights, and of the activations before and after branch and norms.

    Args:
        batches: model inputs with `labels`; gradients are those of the mean loss per target token over all batches.
        training: with dropout.

    Activation gradients of several batches are summed as squares. Under DistributedDataParallel and FSDP2 the
    gradients of the weights are those of all processes, the others those of this one.
    """
    squares: dict[Site, float] = defaultdict(float)

    def collect(site: Site, gradient: Tensor) -> None:
        squares[site] += float(gradient.float().square().sum())

    with undisturbed(model, training):
        with watch(model, backward=collect):
            backward(model, batches)
        for part in sublayers(model):
            squares[part.site("weights")] = weight_norm(part) ** 2
    largest: dict[str, float] = defaultdict(float)
    for site, square in squares.items():
        largest[site.location] = max(largest[site.location], square)
    rows = []
    for site, square in squares.items():
        relative = (square / (largest[site.location] or 1.0)) ** 0.5
        rows.append(GradientNorm(*site.place, site.location, square**0.5, relative))
    return rows


def weight_norm(part: Sublayer) -> float:
    """Norm of the gradient of the weights of a branch."""
    return float(sum(g.square().sum() for p in part.branch_parameters() if (g := gradient(p)) is not None)) ** 0.5


@dataclass(frozen=True)
class GradientSplit(Place):
    """Frobenius norm of the gradient of the weights of a branch, and of its parts.

    `parts[i]` is the norm of what returns through member i of the stream at the end of the stack: in ResiDual the
    Post-LN stream, then the dual stream. The parts add up to the gradient, their norms do not.
    """

    total: float
    parts: tuple[float, ...]


def gradient_split(model: nn.Module, batches: Batches) -> list[GradientSplit]:
    """The gradient of each branch by the stream that returns it. ResiDual (Xie et al. 2023), equations 4 and 5.

    In an encoder these are its own streams; their gradients have passed all streams of the decoder.

    Raises:
        InputError: a model of another family.
    """
    batches, rows = as_list(batches), []
    for name, stack in stacks(model).items():
        if not isinstance(stack, ResidualStack):
            raise InputError(f"{type(model).__name__}: gradient_split needs a model of residual_hf")
        branches = [part for part in sublayers(model) if part.stack == name]
        total, members = norms_through(model, batches, stack, branches)
        parts = [norms_through(model, batches, stack, branches, member)[0] for member in range(members)]
        for i, part in enumerate(branches):
            rows.append(GradientSplit(*part.place, total[i], tuple(norms[i] for norms in parts)))
    return rows


def norms_through(
    model: nn.Module, batches: Batches, stack: ResidualStack, branches: Sequence[Sublayer], member: int | None = None
) -> tuple[list[float], int]:
    """Gradient norms of branches if only one member of the stream at the end of the stack returns a gradient (None:
    all do); and the number of members."""
    boundary: Any = stack.boundary
    members = 0

    def end(stream: Stream) -> Tensor:
        nonlocal members
        members = len(stream)
        passed = (x if member in (None, i) else x.detach() for i, x in enumerate(stream))
        return type(boundary).end(boundary, tuple(passed))

    boundary.end = end
    try:
        with undisturbed(model, training=False):
            backward(model, batches)
            return [weight_norm(part) for part in branches], members
    finally:
        del boundary.end
