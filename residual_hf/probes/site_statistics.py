# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Activation statistics of any forward pass, summed on the device and read once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .sites import Site, sublayers

FP16_LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class ActivationRange:
    """Largest and root mean square activation, and the doublings left until fp16 overflows (at 65,504)."""

    stack: str
    layer: int
    sublayer: str
    location: str
    largest: float
    rms: float
    fp16_headroom: float


@dataclass(frozen=True)
class BranchShare:
    """b / (b + r): standard deviations over features, mean over tokens, of the branch and of the shortcut it joins."""

    stack: str
    layer: int
    sublayer: str
    share: float


class SiteStatistics:
    """Sums over the tensors of forward passes, which `add` receives from `watch`.

    Locations as in `sites`. The statistics of several passes (accumulated batches, recomputed layers) add up.

    Attributes:
        masks: the tokens that count, (batch, length), by stack; those of other stacks all count, padding included.
    """

    def __init__(self, model: nn.Module):
        self.masks: Mapping[str, Tensor] = {}
        self.parts = {part.place: part for part in sublayers(model)}
        self.squares: dict[Site, Tensor] = {}
        self.largest: dict[Site, Tensor] = {}
        self.counts: dict[Site, int] = defaultdict(int)
        self.deviations: dict[Site, Tensor] = {}
        self.tokens: dict[Site, int] = defaultdict(int)

    @torch.no_grad()
    def add(self, site: Site, tensor: Tensor) -> None:
        mask = self.masks.get(site.stack)
        values = (tensor if mask is None else tensor[mask]).float()
        self.squares[site] = self.squares.get(site, 0) + torch.linalg.vector_norm(values).square()
        largest = torch.linalg.vector_norm(values, math.inf)
        self.largest[site] = torch.maximum(self.largest.get(site, largest), largest)
        self.counts[site] += values.numel()
        part = self.parts[site.place]
        for term, location in (("shortcut", part.shortcut), ("branch", part.joins)):
            if site.location == location:
                deviation = (values * part.factor(term)).std(dim=-1, correction=0).sum()
                self.deviations[part.site(term)] = self.deviations.get(part.site(term), 0) + deviation
                self.tokens[part.site(term)] += values.numel() // values.size(-1)

    def tensors(self) -> SiteSums:
        """The sums as tensors on the device, which processes can add up."""
        sites, joined = tuple(self.squares), tuple(self.deviations)
        device = next(iter(self.squares.values())).device
        counts = [*(self.counts[site] for site in sites), *(self.tokens[site] for site in joined)]
        sums = torch.stack([*self.squares.values(), *self.deviations.values()]).double()
        sums = torch.cat([sums, torch.tensor(counts, dtype=torch.float64, device=device)])
        return SiteSums(sites, joined, sums, torch.stack([*self.largest.values()]))


class SiteSums(NamedTuple):
    """Sites, terms of the joins ("shortcut" or "branch" of a sub-layer), sums over tokens (squares, deviations, and
    their counts) and largest values."""

    sites: tuple[Site, ...]
    joined: tuple[Site, ...]
    sums: Tensor
    largest: Tensor

    @property
    def means(self) -> list[float]:
        """Mean squares at `sites`, then mean deviations of `joined`."""
        sums, counts = self.sums.chunk(2)
        return (sums / counts).tolist()

    def activation_ranges(self) -> list[ActivationRange]:
        rows = []
        for site, square, top in zip(self.sites, self.means, self.largest.tolist(), strict=False):
            headroom = math.log2(FP16_LARGEST / max(top, 1e-30)) if math.isfinite(top) else -math.inf
            rows.append(ActivationRange(*site.place, site.location, top, square**0.5, headroom))
        return rows

    def branch_shares(self) -> list[BranchShare]:
        deviations = dict(zip(self.joined, self.means[len(self.sites) :], strict=True))
        rows = []
        for site, branch in deviations.items():
            shortcut = deviations.get(Site(*site.place, "shortcut"))
            if site.location == "branch" and shortcut is not None:
                rows.append(BranchShare(*site.place, branch / (branch + shortcut)))
        return rows
