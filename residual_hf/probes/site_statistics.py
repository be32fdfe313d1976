# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Activation statistics of any forward pass, summed on the device and read once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .sites import Place, Site, sublayers

FP16_LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class ActivationRange(Site):
    """Largest and root mean square activation, and the doublings left until fp16 overflows (at 65,504)."""

    largest: float
    rms: float
    fp16_headroom: float


@dataclass(frozen=True)
class BranchShare(Place):
    """b / (b + r): standard deviations over features, mean over tokens, of the branch and of the shortcut it joins."""

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
        self.sums: dict[Site, Tensor] = {}
        self.counts: dict[Site, int] = {}
        self.largest: dict[Site, Tensor] = {}

    @torch.no_grad()
    def add(self, site: Site, tensor: Tensor) -> None:
        mask = self.masks.get(site.stack)
        values = (tensor if mask is None else tensor[mask]).float()
        self._add(site, torch.linalg.vector_norm(values).square(), values.numel())
        largest = torch.linalg.vector_norm(values, math.inf)
        self.largest[site] = torch.maximum(self.largest.get(site, largest), largest)
        part = self.parts[site.place]
        for term, location in (("shortcut", part.shortcut), ("branch", part.joins)):
            if site.location == location:
                deviation = (values * part.factor(term)).std(dim=-1, correction=0).sum()
                self._add(part.site(term), deviation, values.numel() // values.size(-1))

    def _add(self, site: Site, total: Tensor, count: int) -> None:
        self.sums[site] = self.sums.get(site, 0) + total
        self.counts[site] = self.counts.get(site, 0) + count

    def tensors(self) -> SiteSums:
        """The sums as tensors on the device, which processes can add up."""
        sums = torch.stack([*self.sums.values()]).double()
        counts = torch.tensor([*self.counts.values()], dtype=torch.float64, device=sums.device)
        largest = torch.stack([*self.largest.values()])
        return SiteSums(tuple(self.largest), tuple(self.sums), torch.cat([sums, counts]), largest)


class SiteSums(NamedTuple):
    """Sites with their `largest` values; and `summed` with `sums`, then their counts: the squares at all sites, and
    the deviations of the terms of the joins ("shortcut" or "branch" of a sub-layer)."""

    sites: tuple[Site, ...]
    summed: tuple[Site, ...]
    sums: Tensor
    largest: Tensor

    @property
    def means(self) -> dict[Site, float]:
        """Mean squares at sites, and mean deviations of terms."""
        sums, counts = self.sums.chunk(2)
        return dict(zip(self.summed, (sums / counts).tolist(), strict=True))

    def activation_ranges(self) -> list[ActivationRange]:
        means, rows = self.means, []
        for site, top in zip(self.sites, self.largest.tolist(), strict=True):
            headroom = math.log2(FP16_LARGEST / max(top, 1e-30)) if math.isfinite(top) else -math.inf
            rows.append(ActivationRange(*site.place, site.location, top, means[site] ** 0.5, headroom))
        return rows

    def branch_shares(self) -> list[BranchShare]:
        means, rows = self.means, []
        for site, branch in means.items():
            shortcut = means.get(Site(*site.place, "shortcut"))
            if site.location == "branch" and shortcut is not None:
                rows.append(BranchShare(*site.place, branch / (branch + shortcut)))
        return rows
