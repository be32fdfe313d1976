"""Effective scale of a skip connection: the weight of the shortcut of a sub-layer relative to its branch."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from paper_probes import record
from torch import Tensor, nn

from residual_hf.base.errors import InputError
from residual_hf.model.modes_skip_scaling import RSkipLN
from residual_hf.model.norms import BatchNorm
from residual_hf.probes.sites import Place, SublayerModules, sublayers
from residual_hf.probes.undisturbed import Batches


@dataclass(frozen=True)
class EffectiveScale(Place):
    """The factor on the shortcut relative to that on the branch, where both are added."""

    scale: float


def effective_scale(model: nn.Module, batches: Batches) -> list[EffectiveScale]:
    """The effective scale of each sub-layer; 2.64 for 2rSkip+LN in the ResNet-110 of Liu et al. 2020.

    rSkip adds the shortcut again after each norm: 1 + sum_i prod_(j<=i) sigma_j / w_j over all its norms but the last,
    for lambda = 2 the sigma / w + 1 of appendix A. sigma is the mean deviation of what a norm receives, and w the mean
    of its absolute gain. Learned scales are means of absolute values; the scale is infinite while a branch is off.

    Raises:
        InputError: rSkip with other norms than layer norm and batch norm.
    """
    parts = sublayers(model)
    names = [f"norms.{j}.input" for j in range(max(len(inner_norms(part)) for part in parts))]
    inputs = record(model, batches, *names)
    rows = []
    for part in parts:
        branch, product = mean_size(part.factor("branch")), 1.0
        scale = mean_size(part.factor("shortcut")) / branch if branch else math.inf
        for j, norm in enumerate(inner_norms(part)):
            product *= deviation(norm, inputs[part.site(f"norms.{j}.input")]) / mean_size(norm.weight)
            scale += product
        if part.shortcut is not None:
            rows.append(EffectiveScale(*part.place, scale))
    return rows


def inner_norms(part: SublayerModules) -> list[Any]:
    """The norms of rSkip after which the shortcut is added again."""
    return list(part.before.norms)[:-1] if isinstance(part.before, RSkipLN) else []


def deviation(norm: nn.Module, states: Tensor) -> float:
    """The mean standard deviation that a norm divides states (tokens, d_model) by."""
    if not isinstance(norm, (nn.LayerNorm, BatchNorm)):
        raise InputError(f"the effective scale of rskip_ln needs layer or batch norms, not {type(norm).__name__}")
    return float(states.std(0 if isinstance(norm, BatchNorm) else -1, correction=0).mean())


@torch.no_grad()
def mean_size(factor: Tensor | float) -> float:
    return float(torch.as_tensor(factor).abs().mean())
