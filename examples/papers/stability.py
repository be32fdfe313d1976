"""Change of the hidden states when the weights change (Admin, Liu et al. 2020, section 4.2 and figure 4)."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from paper_probes import record
from torch import nn

from residual_hf.base.errors import InputError
from residual_hf.model.connections import STACKS
from residual_hf.probes.undisturbed import Batch, backward, undisturbed

EXEMPT = ("bias", "norm", "omega")


@dataclass(frozen=True)
class OutputChange:
    """|x - x*|^2 over all tokens at the input of sub-layer k (from 0), x and x* each divided by its deviation."""

    stack: str
    k: int
    change: float


def output_change(
    model: nn.Module,
    batch: Batch,
    perturbation: Literal["random", "update"] = "random",
    size: float | None = None,
    seed: int = 0,
) -> list[OutputChange]:
    """Change of the input of each sub-layer after all weights moved by `size` in the direction of a sign.

    Args:
        perturbation: "random": signs of Gaussian noise; "update": against the gradient's signs, Adam's first step.
        size: default 1e-4 (random) and 1e-6 (update), as in the official code.

    Biases and norms do not move. Dropout is off. It is a copy of the model that moves.

    Raises:
        InputError: weights in half precision, which would round the move away.
    """
    for dtype in {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}:
        raise InputError(f"output_change: weights in {dtype} given, must be in fp32: model.float()")
    step = size if size is not None else {"random": 1e-4, "update": 1e-6}[perturbation]
    before = record(model, batch, "branch.input")
    moved = copy.deepcopy(model)
    with undisturbed(moved, training=False):
        torch.manual_seed(seed)
        if perturbation == "update":
            backward(moved, batch)
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                if not any(part in name for part in EXEMPT):
                    direction = torch.randn_like(parameter) if perturbation == "random" else parameter.grad
                    if direction is not None:
                        parameter.sub_(step * direction.sign())
        after = record(moved, batch, "branch.input")
    rows = []
    for stack in STACKS:
        for k, site in enumerate(site for site in before if site.stack == stack):
            x, y = (states[site] / states[site].std(dim=-1, keepdim=True) for states in (before, after))
            rows.append(OutputChange(stack, k, float((x - y).square().sum())))
    return rows


@dataclass(frozen=True)
class Fit:
    """Least squares y = slope * x + intercept, and R^2."""

    slope: float
    intercept: float
    r_squared: float


def growth(values: Sequence[float]) -> dict[str, Fit]:
    """Fits of values at k = 1, 2, ... against k ("linear") and against ln k ("logarithmic")."""
    k = np.arange(1, len(values) + 1)
    fits = {}
    for name, x in (("linear", k), ("logarithmic", np.log(k))):
        slope, intercept = np.polyfit(x, values, 1)
        fits[name] = Fit(float(slope), float(intercept), float(np.corrcoef(x, values)[0, 1] ** 2))
    return fits
