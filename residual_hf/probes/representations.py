"""Hidden states at the sub-layers: share of the branch, numeric range."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from .sites import Place, Site, stacks, sublayers, watch
from .undisturbed import Batch, Batches, as_list, undisturbed

FP16_LARGEST = torch.finfo(torch.float16).max


def real_tokens(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """By stack, which tokens of a batch are no padding, (batch, length); in the encoder of speech, which states."""
    masks = {"decoder": batch["labels"].ne(-100)} if "labels" in batch else {}
    if "attention_mask" in batch:  # of the encoder, or of a decoder alone
        name, stack = next(iter(stacks(model).items()))
        masks[name] = getattr(stack, "states_mask", lambda mask: mask)(batch["attention_mask"]).bool()
    return masks


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

    def tensors(self) -> "SiteSums":
        """The sums as tensors on the device."""
        sums = exact(torch.stack([*self.sums.values()]))
        counts = torch.tensor([*self.counts.values()], dtype=sums.dtype, device=sums.device)
        largest = torch.stack([*self.largest.values()])
        return SiteSums(tuple(self.largest), tuple(self.sums), torch.cat([sums, counts]), largest)


def exact(tensor: Tensor) -> Tensor:
    """A tensor in fp64, on a Mac's GPU, which does not have it, in fp32."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


class SiteSums(NamedTuple):
    """Sites with their `largest` values; and `summed` with `sums`, then their counts: the squares at all sites, and
    the deviations of the terms of the joins ("shortcut" or "branch" of a sub-layer)."""

    sites: tuple[Site, ...]
    summed: tuple[Site, ...]
    sums: Tensor
    largest: Tensor

    def over_processes(self) -> "SiteSums":
        """The sums of all processes together, which may have dropped different layers."""
        sums: Counter[Site] = Counter()
        counts: Counter[Site] = Counter()
        largest: dict[Site, float] = {}
        for part in gather_object([SiteSums(self.sites, self.summed, self.sums.cpu(), self.largest.cpu())]):
            for total, values in zip((sums, counts), part.sums.chunk(2), strict=True):
                total.update(dict(zip(part.summed, values.tolist(), strict=True)))
            for site, value in zip(part.sites, part.largest.tolist(), strict=True):
                largest[site] = max(largest.get(site, value), value, key=lambda v: (math.isnan(v), v))
        values = torch.tensor([*sums.values(), *counts.values()], dtype=torch.float64)
        return SiteSums(tuple(largest), tuple(sums), values, torch.tensor([*largest.values()]))

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


def branch_share(model: nn.Module, batches: Batches) -> list[BranchShare]:
    """Share of each branch in the sum with its shortcut, constant and learned factors included.

    Sub-layers have no row where no recorded tensor is the shortcut, see `ResidualConnection.shortcut_at`.
    """
    return activation_sums(model, batches, padding=False).branch_shares()


def activation_ranges(model: nn.Module, batches: Batches) -> list[ActivationRange]:
    """Range of the activations at all locations, over all batches, padding included. bf16 has the range of fp32."""
    return activation_sums(model, batches, padding=True).activation_ranges()


@torch.no_grad()
def activation_sums(model: nn.Module, batches: Batches, *, padding: bool) -> SiteSums:
    """Sums over the tokens of all batches in eval mode, with or without their padding."""
    statistics = SiteStatistics(model)
    with undisturbed(model, training=False), watch(model, forward=statistics.add):
        for batch in as_list(batches):
            statistics.masks = {} if padding else real_tokens(model, batch)
            model(**batch)
    return statistics.tensors()
