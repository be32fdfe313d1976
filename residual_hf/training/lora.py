"""LoRA (Hu et al. 2022): trained products of two narrow matrices, added to frozen linear layers by the library PEFT.

A checkpoint has the weights with the products added, like any other, and what is trained in a file of its own.
"""

import copy
import fnmatch
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from residual_hf.base.errors import InputError, requires
from residual_hf.base.files import atomic_file

from .checkpoints import read_tensors, read_weights
from .training_settings import LoraSettings

FILE = "lora.safetensors"
ADAPTER = "default"
TOLERANCE = 1e-4  # of weights that another CPU has added up


def add_lora(model: nn.Module, settings: LoraSettings) -> None:
    """Freeze a model, except for the adapters that it receives and the parameters in `settings.also`.

    Raises `InputError` for a name or pattern that matches nothing.
    """
    with requires("lora"):
        from peft import LoraConfig, inject_adapter_in_model

    layers = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and ".layers." in name]
    parameters = dict(model.named_parameters())
    targets = {name for pattern in settings.targets for name in matching(pattern, layers, "training.lora.targets")}
    also = {name for pattern in settings.also for name in matching(pattern, parameters, "training.lora.also")}
    numbers: dict[str, Any] = {"r": settings.r, "lora_alpha": settings.alpha, "lora_dropout": settings.dropout}
    inject_adapter_in_model(LoraConfig(target_modules=sorted(targets), **numbers), model, ADAPTER)
    for name in also:
        parameters[name].requires_grad = True


def matching(pattern: str, names: Iterable[str], field: str) -> list[str]:
    """The names of parameters or layers that match a pattern or end with a name. Raises `InputError` for none."""
    found = [name for name in names if fnmatch.fnmatch(name, pattern) or name.endswith(f".{pattern}")]
    if not found:
        starts = dict.fromkeys(".".join(name.split(".")[:3]) + "*" for name in names)
        ends = dict.fromkeys("*." + name.rpartition(".")[2] for name in names)
        raise InputError(f"{field}: {pattern!r} matches nothing; there are {', '.join([*starts, *ends])}")
    return found


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Context in which layers with adapters are linear layers with the same function, up to rounding."""
    adapted = merge(model)
    try:
        yield
    finally:
        for name, layer in adapted.items():
            model.set_submodule(name, layer)


@torch.no_grad()
def merge(model: nn.Module) -> dict[str, Any]:
    """Replace layers with adapters by linear layers with the same function, up to rounding; returns the former."""
    adapted = {name: part for name, part in model.named_modules() if hasattr(part, "get_delta_weight")}
    for name, layer in adapted.items():
        plain = copy.copy(layer.get_base_layer())
        weight = plain.weight + layer.get_delta_weight(ADAPTER)
        plain._parameters = plain._parameters | {"weight": nn.Parameter(weight, requires_grad=False)}
        model.set_submodule(name, plain)
    return adapted


def save_trained(model: nn.Module, checkpoint: Path) -> None:
    with atomic_file(checkpoint / FILE) as path:
        save_file({name: tensor.detach().contiguous() for name, tensor in _trained(model).items()}, path)


@torch.no_grad()
def load_trained(model: nn.Module, checkpoint: Path) -> None:
    """Load what `save_trained` wrote. Raises `InputError` for other weights, also where they are not trained."""
    own = _trained(model)
    saved = read_tensors(checkpoint / FILE, own)
    for name, parameter in own.items():
        parameter.copy_(saved[name])
    with merged(model):
        weights, state = read_weights(checkpoint), model.state_dict()
        for name, weight in weights.items():
            if not weight.is_floating_point():  # how far a branch warm-up is
                state[name].copy_(weight)
            elif not torch.allclose(state[name].cpu(), weight, rtol=TOLERANCE, atol=TOLERANCE):
                raise InputError(f"model.from: {name} is not what {checkpoint} was trained from")


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
