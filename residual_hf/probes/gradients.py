"""Norms of gradients by sub-layer and location."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .representations import exact
from .sites import Site, SublayerModules, sublayers, watch
from .undisturbed import Batches, backward, gradient, undisturbed


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
        squares[site] += float(torch.linalg.vector_norm(exact(gradient))) ** 2  # of 1e20, fp32 has no square

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


def weight_norm(part: SublayerModules) -> float:
    """Norm of the gradient of the weights of a branch."""
    found = [exact(g) for p in part.branch_parameters() if (g := gradient(p)) is not None]
    return float(sum(torch.linalg.vector_norm(each) ** 2 for each in found)) ** 0.5
