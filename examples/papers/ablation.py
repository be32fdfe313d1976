"""Loss of a model without one of its layers."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from residual_hf.base.errors import InputError
from residual_hf.model.stacks import ResidualStack
from residual_hf.probes.sites import layers_attribute, stacks
from residual_hf.probes.undisturbed import Batches, as_list, mean_loss, undisturbed


@dataclass(frozen=True)
class LayerRemoval:
    """Mean loss per token without a layer (from 1); layer 0: with all layers. `score` is that of the caller."""

    stack: str
    layer: int
    loss: float
    score: float | None = None


def layer_removal(model: Any, batches: Batches, score: Callable[[Any], float] | None = None) -> list[LayerRemoval]:
    """Loss, and `score(model)` if given, with each layer removed in turn, but not those that reduce images.

    Raises:
        InputError: layers of the mode depend on the number of layers before them (`supports_layerdrop = False`).
    """
    batches = as_list(batches)
    found = stacks(model)
    rows: list[LayerRemoval] = []
    for name, stack in found.items():
        own = stack.config.of(name) if isinstance(stack, ResidualStack) else None
        counts = own is not None and getattr(own.options, "running_mean", False)  # the layers, as RealFormer does
        if own is not None and (counts or not own.mode.supports_layerdrop):
            raise InputError(f"{own.mode.name}: its layers cannot be removed")
    for name, stack in found.items():
        layers = getattr(stack, layers_attribute(stack))
        for number in range(1 if rows else 0, len(layers) + 1):  # the first stack has measured all layers
            if number > 0 and getattr(layers[number - 1], "stride", 1) > 1:
                continue
            reduced = without_layer(model, name, number)
            with undisturbed(reduced, training=False):
                figure = None if score is None else score(reduced)
                rows.append(LayerRemoval(name, number, mean_loss(reduced, batches), figure))
    return rows


def without_layer(model: nn.Module, name: str, number: int) -> nn.Module:
    """A copy of a model without a layer of a stack, from 1; 0 removes none.

    The other layers are renumbered, since caches find their layers by number.
    """
    reduced = copy.deepcopy(model)
    stack = stacks(reduced)[name]
    layers = getattr(stack, layers_attribute(stack))
    if number > 0:
        del layers[number - 1]
    for index, layer in enumerate(layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index
    return reduced
