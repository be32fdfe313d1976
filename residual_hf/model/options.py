# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Options of an `ln_mode`: a small frozen dataclass per mode, checked against a plain dict from the config.

One reads like this:

    @dataclass(frozen=True)
    class Options:
        dual_scale: float = option(1.0, above=0.0, help="factor s of the dual stream")
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class NoOptions:
    """The options of a mode that has none."""


def option(
    default: Any,
    *,
    help: str,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """A field of an `Options` dataclass: its default and the values it may take (`above` is an exclusive bound)."""
    limits = {"help": help, "minimum": minimum, "above": above, "maximum": maximum, "choices": choices}
    return field(default=default, metadata=limits)


def describe_option(f: Field) -> str:
    """`name: type = default (range)`, for error messages and the catalogue of modes."""
    limits = f.metadata
    allowed = []
    if limits.get("choices") is not None:
        allowed.append("one of " + ", ".join(repr(c) for c in limits["choices"]))
    if limits.get("above") is not None:
        allowed.append(f"> {limits['above']:g}")
    if limits.get("minimum") is not None:
        allowed.append(f">= {limits['minimum']:g}")
    if limits.get("maximum") is not None:
        allowed.append(f"<= {limits['maximum']:g}")
    suffix = f" ({', '.join(allowed)})" if allowed else ""
    return f"{f.name}: {type(f.default).__name__} = {f.default!r}{suffix}"


def parse_options(options_class: type, values: Mapping[str, Any] | None, owner: str) -> Any:
    """The `Options` of a mode from a dict.

    Raises `ValueError` naming `owner`, the option, its value and everything that is allowed, for a name the mode
    does not declare, a wrong type or a value out of range.
    """
    declared = {f.name: f for f in fields(options_class)}
    checked = {}
    for name, value in (values or {}).items():
        if name not in declared:
            allowed = "; ".join(describe_option(f) for f in declared.values()) or "none: this mode has no options"
            raise ValueError(f"{owner}: unknown option {name!r} = {value!r}. Allowed: {allowed}.")
        checked[name] = _checked(declared[name], value, owner)
    return options_class(**checked)


def _checked(f: Field, value: Any, owner: str) -> Any:
    assert f.default is not MISSING, f"option {f.name} needs a default"
    kind, limits = type(f.default), f.metadata
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    ok = type(value) is kind
    if ok and kind is float:
        ok = math.isfinite(value)
    if ok and limits.get("choices") is not None:
        ok = value in limits["choices"]
    if ok and limits.get("above") is not None:
        ok = value > limits["above"]
    if ok and limits.get("minimum") is not None:
        ok = value >= limits["minimum"]
    if ok and limits.get("maximum") is not None:
        ok = value <= limits["maximum"]
    if not ok:
        raise ValueError(f"{owner}: option {f.name!r} cannot be {value!r}. Allowed: {describe_option(f)}.")
    return value
