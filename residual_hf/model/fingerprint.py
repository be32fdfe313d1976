# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Whether what was prepared for decoding is still what the modules, their attributes and their weights say."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = {bool, int, float, str, type(None), torch.dtype}
CONTAINERS = {dict, list, tuple, set, frozenset}
OWN_PARTS = {"_modules", "_build_anew", "_code_is_read", "training", "forward"}
OWN_PARTS |= {name for name in vars(nn.Module()) if "hook" in name}
"""Attributes of a module that are not compared: its modules are compared themselves, `decoding` checks the others."""
PASSIVE_HOOKS = ("output_capturing_hook", "make_inputs_require_grads")
"""Hooks of `output_hidden_states` and of gradient checkpointing, which Transformers leaves in a model."""
LANES = 1 << 14
FACTOR, SHIFT = np.uint64(0x9E3779B185EBCA87), np.uint64(29)


def checksum(tensors: Sequence[Tensor]) -> Hashable:
    """A value that depends on every bit of contiguous tensors and on its place.

    Each step is a bijection of a lane of 64 bits: a change of one number is always seen, and changes of several are
    missed with a probability of about 2**-64.
    """
    lanes, shifted = np.zeros(LANES, np.uint64), np.empty(LANES, np.uint64)
    for tensor in tensors:
        values = tensor.detach().view(-1).view(torch.uint8).numpy()
        values = np.pad(values, (0, -len(values) % 8)) if len(values) % 8 else values
        words = values.view(np.uint64)
        for start in range(0, len(words), LANES):
            part = words[start : start + LANES]
            lane, right = lanes[: len(part)], shifted[: len(part)]
            lane ^= part
            np.right_shift(lane, SHIFT, out=right)
            lane ^= right
            lane *= FACTOR
    return lanes.tobytes()


_unchanged: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()  # with what was found true of them


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Context in which nothing changes a model, so that it is compared only once with what was prepared from it."""
    is_outermost = model not in _unchanged
    if is_outermost:
        _unchanged[model] = set()
    try:
        yield
    finally:
        if is_outermost:
            _unchanged.pop(model, None)


def holds(model: nn.Module, fact: Hashable, look: Callable[[], bool]) -> bool:
    """Whether `look` finds a fact about a model true; in `unchanged`, it need not look again at what was true."""
    known = _unchanged.get(model)
    if known is not None and fact in known:
        return True
    found = look()
    if known is not None and found:
        known.add(fact)
    return found


class Fingerprint:
    """Tells whether a module, a parameter or an attribute such as the epsilon of a norm was replaced or changed.

    It looks at every value, since fused optimizers, writes to `.data` and views in NumPy leave no other trace.

    Args:
        parts: the modules from which something was prepared.
        checksum: of a list of tensors.
    """

    def __init__(self, parts: Sequence[nn.Module], checksum: Callable[[Sequence[Tensor]], Hashable] = checksum):
        self.parts, self.checksum = parts, checksum
        self.contents, self.checked = self._look()

    def matches(self, model: nn.Module, parts: Sequence[nn.Module]) -> bool:
        """Whether `parts`, those that `model` has now, are the same modules and unchanged."""
        return holds(model, self, partial(self._is_same, parts))

    def _is_same(self, parts: Sequence[nn.Module]) -> bool:
        if [*map(id, parts)] != [*map(id, self.parts)]:
            return False
        contents, checked = self._look()
        return contents.notes == self.contents.notes and checked == self.checked

    def _look(self) -> "tuple[Contents, Hashable]":
        contents = Contents(self.parts)
        return contents, self.checksum([tensor.contiguous() for tensor in contents.tensors])


class Contents:
    """The parts of modules.

    Attributes:
        notes: plain values, and identities of modules, tensors and other objects.
        tensors: of parameters, buffers and attributes. Quantized weights are not among them: they are not prepared.
    """

    def __init__(self, modules: Iterable[nn.Module]):
        self.notes: list[Any] = []
        self.tensors: list[Tensor] = []
        self.seen: dict[int, Any] = {}  # keeps the objects alive, so that no other one gets their identity
        for part in modules:
            for module in submodules(part):
                self.seen[id(module)] = module
                self.notes += type(module), id(module)
                self.add_all(vars(module), OWN_PARTS)

    def add_all(self, members: dict[Any, Any], without: Collection[str] = ()) -> None:
        for name, member in members.items():
            if name in without:
                continue
            self.notes.append(name)
            kind = type(member)
            if kind in PLAIN:
                self.notes.append(member)
            elif kind in CONTAINERS and not member:
                self.notes += kind, 0
            else:
                self.add(member)

    def add(self, value: Any) -> None:
        if isinstance(value, dict):
            self.notes += dict, len(value)
            self.add_all(value)
        elif isinstance(value, (list, tuple)):
            self.notes += type(value), len(value)
            self.add_all(dict(enumerate(value)))
        elif isinstance(value, (set, frozenset)):
            self.notes += type(value), frozenset(value)
        else:
            self.notes.append(id(value))
            if isinstance(value, Tensor):
                self.notes += value.shape, value.dtype, type(value)
            if id(value) in self.seen:
                return
            self.seen[id(value)] = value
            if isinstance(value, Tensor) and type(value) in (nn.Parameter, Tensor) and value.device.type == "cpu":
                self.tensors.append(value)
            elif hasattr(type(value), "__dataclass_fields__"):  # configs and options
                self.add(vars(value))


def is_changed(module: nn.Module) -> bool:
    """Whether hooks, or a `forward` of its own, give a module other results than its class has."""
    attributes = vars(module)
    if not attributes["_forward_hooks"] and not attributes["_forward_pre_hooks"] and "forward" not in attributes:
        return False  # at once: this is asked of all modules at every call
    forward = attributes.get("forward")
    own = forward is not None and getattr(forward, "__func__", None) is not type(module).forward
    changes = [*module._forward_hooks.values(), *module._forward_pre_hooks.values(), *([forward] if own else [])]
    return any(
        getattr(change, "__name__", "") not in PASSIVE_HOOKS and not getattr(change, "has_same_results", False)
        for change in changes
    )


def submodules(model: nn.Module) -> list[nn.Module]:
    """All modules, shared ones each time: `modules()` takes longer than a step of the native kernels."""
    found = [model]
    for module in found:
        found.extend(child for child in module._modules.values() if child is not None)
    return found
