# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Whether the modules and weights of a model are still those that were prepared for decoding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .branch_warmup import BranchWarmup


class Fingerprint:
    """Tells whether a module of a model was replaced, a parameter replaced or written to, or a number such as the
    epsilon of a norm changed.

    Besides addresses and version counters it compares a sample of the values: fused optimizers and writes to `.data`
    do not count as versions.
    """

    SAMPLES = 64  # of each parameter

    def __init__(self, model: nn.Module):
        modules = submodules(model)
        self.modules = modules[1:]  # without the model, which the prepared weights must not keep alive
        self.numbers, self.versions = numbers(modules), versions(modules)
        # quantized weights may have no views
        plain = (parameter for parameter in parameters_of(modules) if type(parameter) in (nn.Parameter, Tensor))
        parameters = [parameter.detach().flatten() for parameter in plain]
        self.samples = [values[:: -(-len(values) // self.SAMPLES)] for values in parameters]  # views of the parameters
        self.values = torch.cat(self.samples)

    def matches(self, model: nn.Module) -> bool:
        modules = submodules(model)
        same = self.modules == modules[1:] and self.numbers == numbers(modules) and self.versions == versions(modules)
        return same and torch.equal(self.values, torch.cat(self.samples))


def submodules(model: nn.Module) -> list[nn.Module]:
    """All modules, shared ones each time: `modules()` takes longer than a step of the native kernels."""
    found = [model]
    for module in found:
        found.extend(child for child in module._modules.values() if child is not None)
    return found


def numbers(modules: list[nn.Module]) -> list[float]:
    return [value for module in modules for value in module.__dict__.values() if type(value) is float]


def parameters_of(modules: list[nn.Module]) -> Iterator[Tensor]:
    """The parameters, shared ones each time, and the progress of branch warm-up."""
    for module in modules:
        yield from (parameter for parameter in module._parameters.values() if parameter is not None)
        if isinstance(module, BranchWarmup):
            yield module.updates


def versions(modules: list[nn.Module]) -> list[tuple[int, int]]:
    """Address and number of writes of each parameter; writes to tensors of inference mode are not counted."""
    return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters_of(modules)]
