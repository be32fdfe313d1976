"""Conditioning of Adam's update where gradients are small (ResiDual, Xie et al. 2023, theorem 3.2 and figure 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from residual_hf.probes.undisturbed import Batches, backward, gradient, undisturbed


def condition_numbers(
    sigma: float,
    steps: Sequence[int],
    *,
    size: int = 1024,
    lr: float = 1e-4,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-6,
    seed: int = 0,
) -> list[float]:
    """kappa at each of these steps (from 1): norm of the derivative of Adam's update by the gradient.

    All gradients are drawn from N(0, sigma^2 I) of `size` dimensions. With the bias-corrected mean M and s the root
    of the bias-corrected second moment, the update is u = lr * M / (s + eps), and

        du/dg = lr * [(1 - b1) / ((1 - b1^t) (s + eps)) - M (1 - b2) g / ((1 - b2^t) s (s + eps)^2)].

    Equation (6) of the paper has a plus in the place of the minus. Note that PyTorch's default eps is 1e-8.
    """
    generator = np.random.default_rng(seed)
    beta1, beta2 = betas
    mean, square, found = np.zeros(size), np.zeros(size), {}
    for t in range(1, max(steps) + 1):
        g = generator.normal(0.0, sigma, size)
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g**2
        corrected, root = mean / (1 - beta1**t), np.sqrt(square / (1 - beta2**t))
        direct = (1 - beta1) / ((1 - beta1**t) * (root + eps))
        curvature = corrected * (1 - beta2) * g / ((1 - beta2**t) * (root + eps) ** 2)
        through = np.divide(curvature, root, out=np.zeros(size), where=root > 0)
        found[t] = lr * float(np.linalg.norm(direct - through))
    return [found[t] for t in steps]


@dataclass(frozen=True)
class GradientScale:
    """Root mean square sigma_g of the gradient of a parameter, and share of its entries below some values."""

    parameter: str
    size: int
    sigma: float
    below_1e_6: float
    below_1e_4: float
    below_1e_3: float


def gradient_scales(model: nn.Module, batches: Batches) -> list[GradientScale]:
    """sigma_g of each parameter for the mean loss per token: is it in the regime (< 1e-6) of the theorem?"""
    with undisturbed(model, training=False):
        backward(model, batches)
        gradients = {name: g for name, p in model.named_parameters() if (g := gradient(p)) is not None}
    return [
        GradientScale(
            name,
            g.numel(),
            float(g.square().mean().sqrt()),
            *(float((g.abs() < limit).float().mean()) for limit in (1e-6, 1e-4, 1e-3)),
        )
        for name, g in gradients.items()
    ]
