"""Shares of the branches in a hidden state (Admin, Liu et al. 2020, section 4.1)."""

from dataclasses import dataclass

import torch
from paper_probes import record
from torch import Tensor, nn

from residual_hf.base.errors import InputError
from residual_hf.model.connections import ResidualConnection
from residual_hf.model.norms import AdaNorm, BatchNorm, DynamicTanh, RMSNorm
from residual_hf.probes.sites import SublayerModules, stacks, sublayers
from residual_hf.probes.undisturbed import Batch


@dataclass(frozen=True)
class Dependency:
    """beta_ij: share of the output of branch j in the input of sub-layer i + 1, both from 1; j = 0: the embeddings.

    The squares of a row add up to 1.
    """

    i: int
    j: int
    sublayer: str
    beta: float


def dependency_matrix(model: nn.Module, batch: Batch, stack: str = "encoder") -> list[Dependency]:
    """beta_ij of a stack of Post-LN, Pre-LN or what folds into them, by the exact recursion.

    Component j of the hidden state starts as the output of branch j. Each later shortcut scales it; each norm after an
    addition divides all components by the standard deviation of the sum (or what else it divides by) and multiplies
    them by its gain.
    beta_ij = std(c_j) / sqrt(sum_k std(c_k)^2), with the standard deviation over features and the mean over tokens.

    Raises:
        InputError: the mode of the stack is none of these, its norms do not scale (AdaNorm, DynamicTanh), or it
            is a ResNet, whose stages have states of different sizes.
    """
    parts = [part for part in sublayers(model) if part.stack == stack]
    if not parts:
        raise InputError(f"stack: {stack!r} given, must be one of {', '.join(stacks(model))}")
    is_post = normalizes_sum(parts[0])
    states = record(model, batch, "input", "branch.output", "norm.input")
    if len({states[part.site("input")].shape for part in parts}) > 1:
        raise InputError("the dependency matrix needs states of one size, and those of a ResNet change between stages")
    components = [states[parts[0].site("input")]]
    rows = []
    for i, part in enumerate(parts, start=1):
        branch = states[part.site("branch.output")] * part.factor("branch")
        components = [component * part.factor("shortcut") for component in components] + [branch]
        if is_post:
            if isinstance(part.norms["norm"], nn.LayerNorm):
                components = [component - component.mean(-1, keepdim=True) for component in components]
            factors = gain(part.norms["norm"], states[part.site("norm.input")])
            components = [component * factors for component in components]
        deviations = torch.stack([component.std(dim=-1, correction=0).mean() for component in components])
        betas = (deviations / deviations.norm()).tolist()
        rows += [Dependency(i, j, part.sublayer, beta) for j, beta in enumerate(betas)]
    return rows


def normalizes_sum(part: SublayerModules) -> bool:
    """Is there a norm after the addition (Post-LN), or before the branch (Pre-LN)?"""
    connection = part.before
    if not isinstance(connection, ResidualConnection):
        raise InputError("the dependency matrix needs a model of residual_hf")
    base = connection.folds_into or connection.name
    if base in ("post_ln", "pre_ln", "resi_dual"):
        return base != "pre_ln"
    raise InputError(f"{connection.name}: the dependency matrix is defined for Post-LN and Pre-LN")


def gain(norm: nn.Module, total: Tensor) -> Tensor:
    """Factor by which a norm multiplies a sum (tokens, d_model), apart from its mean."""
    if isinstance(norm, (AdaNorm, BatchNorm, DynamicTanh)):
        raise InputError(f"norm_type: the dependency matrix is not defined for {type(norm).__name__}")
    size = total.norm(dim=-1, keepdim=True)
    if isinstance(norm, nn.LayerNorm):
        size = total.std(dim=-1, keepdim=True, correction=0)
    elif isinstance(norm, RMSNorm):
        size = size / total.shape[-1] ** 0.5
    return norm.get_parameter("weight") / size
