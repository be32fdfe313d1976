"""Measurements of gradients and hidden states beside those of the package: parts of a gradient and steps (ResiDual),
similarity of layers (B2T), dependency on a branch (Admin), rank."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from residual_hf.base.errors import InputError
from residual_hf.model.connections import STACKS, Stream
from residual_hf.model.stacks import ResidualStack
from residual_hf.probes.gradients import weight_norm
from residual_hf.probes.representations import real_tokens
from residual_hf.probes.sites import Place, Site, SublayerModules, stacks, sublayers, watch
from residual_hf.probes.undisturbed import Batches, as_list, backward, undisturbed


@torch.no_grad()
def record(model: nn.Module, batches: Batches, *locations: str) -> dict[Site, Tensor]:
    """The tensors at these locations in eval mode, as (tokens, d_model) in fp32 without padding.

    Padding is left out by `attention_mask` in the encoder and by `labels` in the decoder.
    """
    found: dict[Site, list[Tensor]] = defaultdict(list)
    masks: dict[str, Tensor] = {}

    def keep(site: Site, tensor: Tensor) -> None:
        mask = masks.get(site.stack)
        found[site].append((tensor.flatten(0, 1) if mask is None else tensor[mask]).float())

    with undisturbed(model, training=False), watch(model, forward=keep, locations=locations.__contains__):
        for batch in as_list(batches):
            masks = real_tokens(model, batch)
            model(**batch)
    return {site: torch.cat(tensors) for site, tensors in found.items()}


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
    model: nn.Module,
    batches: Batches,
    stack: ResidualStack,
    branches: Sequence[SublayerModules],
    member: int | None = None,
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


@dataclass(frozen=True)
class RepresentationChange(Place):
    """Mean of |x_(k+1) - x_k| over tokens and coordinates, x_k the input of the branch of sub-layer k (from 0)."""

    k: int
    change: float


def representation_change(model: nn.Module, batches: Batches) -> list[RepresentationChange]:
    """How much each sub-layer changes what the next one reads. ResiDual (Xie et al. 2023), figure 2(b)."""
    inputs = record(model, batches, "branch.input")
    rows = []
    for stack in STACKS:
        sites = [site for site in inputs if site.stack == stack]
        for k, (site, following) in enumerate(zip(sites, sites[1:], strict=False)):
            if inputs[site].shape != inputs[following].shape:
                continue  # between stages of a ResNet
            change = float((inputs[following] - inputs[site]).abs().mean())
            rows.append(RepresentationChange(*site.place, k, change))
    return rows


@dataclass(frozen=True)
class LayerCosine:
    """Mean cosine over tokens between the outputs of two layers of a stack; layers count from 1."""

    stack: str
    layer: int
    other: int
    cosine: float


def layer_cosines(model: nn.Module, batches: Batches) -> list[LayerCosine]:
    """Similarity of the outputs of all pairs of layers, without the norm at the end of a stack. B2T, figure 5."""
    outputs = layer_outputs(model, batches)
    return [
        LayerCosine(*first, second[1], float(torch.cosine_similarity(x, y, dim=-1).mean()))
        for first, x in outputs.items()
        for second, y in outputs.items()
        if first[0] == second[0] and x.shape == y.shape  # within a stage of a ResNet
    ]


def layer_outputs(model: nn.Module, batches: Batches) -> dict[tuple[str, int], Tensor]:
    """Output of each layer (tokens, d_model), by stack and layer."""
    last = {(part.stack, part.layer): part.sublayer for part in sublayers(model)}
    states = record(model, batches, "output")
    return {(s.stack, s.layer): x for s, x in states.items() if last[s.stack, s.layer] == s.sublayer}


@dataclass(frozen=True)
class EffectiveRank:
    """exp of the entropy of the normalized singular values of a layer's outputs (tokens, d_model); at most d_model."""

    stack: str
    layer: int
    rank: float


def effective_rank(model: nn.Module, batches: Batches) -> list[EffectiveRank]:
    """Dimensions that the outputs of each layer use. Roy & Vetterli 2007; needs more tokens than d_model."""
    rows = []
    for (stack, layer), states in layer_outputs(model, batches).items():
        values = torch.linalg.svdvals(states)
        share = values / values.sum()
        rows.append(EffectiveRank(stack, layer, math.exp(float(torch.special.entr(share).sum()))))
    return rows


@dataclass(frozen=True)
class BranchDependency(Place):
    """Var[f] / Var[x + f]: variances over features, means over tokens; f the branch, x the shortcut."""

    dependency: float


def branch_dependency(model: nn.Module, batches: Batches) -> list[BranchDependency]:
    """Dependency of each sub-layer on its branch, factors included. Admin (Liu et al. 2020), footnote 3.

    Sub-layers have no row where no recorded tensor is the shortcut, see `ResidualConnection.shortcut_at`, as between
    the stages of a ResNet.
    """
    parts = [part for part in sublayers(model) if part.shortcut is not None]
    states = record(model, batches, *{location for part in parts for location in (part.shortcut or "", part.joins)})
    rows = []
    for part in parts:
        sites = part.site(part.shortcut or ""), part.site(part.joins)
        if not {*sites} <= states.keys() or states[sites[0]].shape != states[sites[1]].shape:
            continue
        x, f = (states[site] * part.factor(of) for site, of in zip(sites, ("shortcut", "branch"), strict=True))
        ratio = f.var(-1).mean() / (x + f).var(-1).mean()
        rows.append(BranchDependency(*part.place, float(ratio)))
    return rows
