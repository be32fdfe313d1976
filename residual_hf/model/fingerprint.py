# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Whether the modules and weights of a model are still those that were prepared for decoding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .branch_warmup import BranchWarmup


class Fingerprint:
    """Tells whether a module of a model was replaced, or a parameter replaced or written to.

    Besides addresses and version counters it compares a sample of the values: fused optimizers and writes to `.data`
    do not count as versions.
    """

    SAMPLES = 64  # of each parameter

    def __init__(self, model: nn.Module):
        self.modules = submodules(model)[1:]  # without the model, which the prepared weights must not keep alive
        self.versions = versions(model)
        # quantized weights may have no views
        plain = (parameter for parameter in parameters_of(model) if type(parameter) in (nn.Parameter, Tensor))
        parameters = [parameter.detach().flatten() for parameter in plain]
        self.samples = [values[:: -(-len(values) // self.SAMPLES)] for values in parameters]  # views of the parameters
        self.values = torch.cat(self.samples)

    def matches(self, model: nn.Module) -> bool:
        same = self.modules == submodules(model)[1:] and self.versions == versions(model)
        return same and torch.equal(self.values, torch.cat(self.samples))


def parameters_of(model: nn.Module) -> Iterator[Tensor]:
    """The parameters, shared ones each time, and the progress of branch warm-up."""
    for module in submodules(model):
        yield from (parameter for parameter in module._parameters.values() if parameter is not None)
        if isinstance(module, BranchWarmup):
            yield module.updates


def versions(model: nn.Module) -> list[tuple[int, int]]:
    """Address and number of writes of each parameter; writes to tensors of inference mode are not counted."""
    return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters_of(model)]


def submodules(model: nn.Module) -> list[nn.Module]:
    """All modules, shared ones each time: `modules()` takes longer than a step of the native kernels."""
    found = [model]
    for module in found:
        found.extend(child for child in module._modules.values() if child is not None)
    return found
