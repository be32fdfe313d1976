# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Declared fields: one line gives a field's default, the values it accepts and its documentation.

    @dataclass(frozen=True)
    class Options:
        dual_scale: float = option(1.0, above=0.0, help="factor s of the dual stream")

The annotation gives the type: `int`, `float`, `bool`, `str`, `Path`, `dict`, `Literal`, `tuple`, `list`, another
dataclass, or a union of these. `from_mapping` builds such a dataclass from plain values, as in YAML and JSON. A
subclass of `Settings` is also checked when it is built in Python.
"""

import difflib
import operator
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from datetime import date
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


BOUNDS = {  # comparison and sign
    "above": (operator.gt, ">"),
    "minimum": (operator.ge, ">="),
    "below": (operator.lt, "<"),
    "maximum": (operator.le, "<="),
}
LARGEST = {int: 2**63 - 1, float: 3.4e38}  # what C code and float32 hold
TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    Path: "a path",
    dict: "a mapping",
    NoneType: "null",
}


def option(
    default: Any = MISSING,
    *,
    help: str = "",
    above: float | None = None,
    minimum: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    choices: Iterable[Any] | None = None,
    may_change: bool = False,
) -> Any:
    """A dataclass field that declares what it accepts.

    Bounds and choices of a tuple apply to each entry.

    Args:
        default: a field without one is required.
        help: one line for the documentation, in Markdown.
        above, below: exclusive bounds.
        minimum, maximum: inclusive bounds.
        choices: the allowed values.
        may_change: whether training can go on with another value: a resumed run, or one that starts from a model.
    """
    declared = {
        "help": help,
        "above": above,
        "minimum": minimum,
        "below": below,
        "maximum": maximum,
        "choices": None if choices is None else tuple(choices),
        "may_change": may_change,
    }
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=declared)
    return field(default=default, metadata=declared)


class Settings:
    """Base class of frozen dataclasses that check their fields at construction.

    Raises `error` with the name of the field, its value and what is allowed.
    """

    error: ClassVar[type[ValueError]] = ValueError
    also_called: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Names that others have for fields, for the advice about an unknown field: {"learning_rate": "lr"}."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Check what the declaration of one field cannot express, by `require`."""

    def require(self, condition: Any, name: str, allowed: str) -> None:
        """Raise `error` for the field `name` (see `value_of`) unless `condition` is true."""
        if not condition:
            raise self.error(refusal(name, self.value_of(name), allowed))

    def value_of(self, name: str) -> Any:
        """The value of a field; dotted names are of nested settings or mappings."""
        inner: Any = self
        for part in name.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else getattr(inner, part)
        return inner


@dataclass(frozen=True)
class NoOptions:
    """The options of a mode that has none."""


def from_mapping(cls: type[T], values: Any, prefix: str = "") -> T:
    """An instance of a dataclass of declared fields, from a mapping of plain values.

    Raises `cls.error` (`ValueError` if there is none) for an unknown or missing field and for a value that
    is not allowed. Messages begin with `prefix` and the dotted name of the field.
    """
    try:
        if not isinstance(values, Mapping):
            given = "nothing" if values is None else shortened(repr(values))
            raise ValueError(f"{given} given, must be a mapping of fields")
        _check_names(cls, values)
        made = cls(**values)
        if not isinstance(made, Settings):
            check_fields(made)
    except ValueError as error:
        raise getattr(cls, "error", ValueError)(f"{prefix}{error}") from None
    return made


def check_fields(settings: Any) -> None:
    """Check each field of a dataclass and convert it to its declared type, lists to tuples for example."""
    error, cls = getattr(settings, "error", ValueError), settings.__class__
    for f in fields(settings):
        value, hint = getattr(settings, f.name), type_hints(cls)[f.name]
        converted = _convert(value, hint, f.metadata, f.name)
        if converted is MISSING:
            raise error(refusal(f.name, value, allowed_values(hint, f.metadata)) + _advice(value, hint, f.metadata))
        object.__setattr__(settings, f.name, converted)


def describe_option(f: Field) -> str:
    """`name: type = default (range)`, for the catalogue of modes."""
    declared = f.metadata
    limits = ["one of " + ", ".join(map(repr, declared["choices"]))] if declared.get("choices") else []
    limits += _bounds(declared)
    kind = f.type.__name__ if isinstance(f.type, type) else str(f.type)  # a name, or a union
    return f"{f.name}: {kind} = {f.default!r}" + (f" ({', '.join(limits)})" if limits else "")


def allowed_values(hint: Any, declared: Mapping[str, Any]) -> str:
    """The values that a field of this type accepts, in words: "an integer >= 1 or null"."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        shown = [part for part in parts if not (part is str and Path in parts)]
        return " or ".join(allowed_values(part, declared) for part in shown)
    if kind is Literal:
        return " or ".join(map(repr, parts))
    if kind in (tuple, list):
        entry = allowed_values(parts[0], declared)
        fixed = kind is tuple and parts[-1] is not ...
        several = f"{entry} or a list of these" if kind is tuple else f"a list, each {entry}"
        return f"a list of {len(parts)}, each {entry}" if fixed else several
    if is_dataclass(hint):
        return "a mapping of fields"
    if declared.get("choices") and hint is not NoneType:
        return "one of " + ", ".join(map(repr, declared["choices"]))
    name = TYPE_NAMES.get(kind or hint, str(hint))
    return " ".join([name, " and ".join(_bounds(declared))]).rstrip() if hint in (int, float) else name


def refusal(name: str, value: Any, allowed: str) -> str:
    """The message for a value that is not allowed."""
    if value is None:
        return f"{name}: missing, must be {allowed}"
    shown = str(value).lower() if isinstance(value, (bool, date)) else shortened(repr(_as_written(value)))
    return f"{name}: {shown} given, must be {allowed}"


def _as_written(value: Any) -> Any:
    """A value as a recipe has it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def unknown_name(name: Any, known: Iterable[str], elsewhere: Mapping[str, str] = MappingProxyType({})) -> str:
    """The message for a field that does not exist, with the closest one that does.

    `elsewhere`: other names of fields, such as those in other programs.
    """
    known, shown = list(known), shortened(str(name))
    advice = suggestion(shown, {**elsewhere, **{field: field for field in known}})
    return f"{shown}: unknown field; {advice or 'known: ' + (', '.join(known) or 'none')}"


def suggestion(name: Any, known: Iterable[str] | Mapping[str, str]) -> str:
    """`did you mean 'x'?` with the closest of several names, or what a mapping has for it; empty if none is close."""
    meant = known if isinstance(known, Mapping) else {one: one for one in known}
    close = difflib.get_close_matches(shortened(str(name)), meant, n=1)
    return f"did you mean {meant[close[0]]!r}?" if close else ""


def unknown_choice(what: str, name: Any, known: Iterable[str]) -> str:
    """The message for a name that is not among those known, with all of them."""
    known = sorted(known)
    close = suggestion(name, known)
    return f"unknown {what} {name!r}{f'; {close}' if close else '.'} Known: {', '.join(known)}"


def shortened(text: str, length: int = 100) -> str:
    """Text for a message, without what is beyond a length in characters."""
    return text if len(text) <= length else f"{text[:length]}... ({len(text):,} characters)"


@cache
def type_hints(cls: Any) -> dict[str, Any]:
    """The types of the fields of a class."""
    return get_type_hints(cls)


def _bounds(declared: Mapping[str, Any]) -> list[str]:
    return [f"{sign} {declared[name]:.10g}" for name, (_, sign) in BOUNDS.items() if declared.get(name) is not None]


def _check_names(cls: type, values: Mapping[Any, Any]) -> None:
    declared = {f.name: f for f in fields(cls)}
    for name in values:
        if name not in declared:
            raise ValueError(unknown_name(name, declared, _other_names(cls)))
    for section, inner in values.items():
        hint: Any = type_hints(cls)[section]
        if isinstance(hint, type) and is_dataclass(hint) and isinstance(inner, Mapping):
            known = {f.name for f in fields(hint)} | _other_names(hint).keys()
            for name in (name for name in inner if name not in known):
                place = f"{name}' beside '{section}" if name in declared else _other_names(cls).get(name)
                if place:
                    raise ValueError(f"{section}.{name}: unknown field; did you mean '{place}'?")
    for name, f in declared.items():
        if f.default is MISSING and f.default_factory is MISSING and name not in values:
            raise ValueError(refusal(name, None, allowed_values(type_hints(cls)[name], f.metadata)))


def _other_names(cls: type) -> dict[str, str]:
    """Other names for the fields of a dataclass: {"learning_rate": "training.lr", "seed": "training.seed"}."""
    sections = {name: hint for name, hint in type_hints(cls).items() if is_dataclass(hint)}
    names: dict[str, str] = dict(getattr(cls, "also_called", {}))
    for section, hint in reversed(sections.items()):  # of several sections, the first one is meant
        inner = dict(getattr(hint, "also_called", {})) | {f.name: f.name for f in fields(hint)}
        names |= {name: f"{section}.{field}" for name, field in inner.items()}
    return names


def _advice(value: Any, hint: Any, declared: Mapping[str, Any]) -> str:
    """Advice for a misspelled choice, and text that YAML reads as something else: `no` as false, a date."""
    choices = [*map(str, declared.get("choices") or ())]
    is_unclear = isinstance(value, str) and sum(value in choice for choice in choices) > 1
    if isinstance(value, str) and not is_unclear and (close := suggestion(value, choices)):
        return f"; {close}"
    if str not in (hint, *get_args(hint)) or not isinstance(value, (bool, int, float, date)):
        return ""
    shown = ("no", "yes")[value] if isinstance(value, bool) else shortened(str(value))
    return f"""; quote it if it is text, as in "{shown}" (in a shell: '"{shown}"')"""


def _convert(value: Any, hint: Any, declared: Mapping[str, Any], name: str) -> Any:
    """The value as its declared type, `MISSING` if it is not allowed."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        converted = (_convert(value, part, declared, name) for part in parts)
        return next((found for found in converted if found is not MISSING), MISSING)
    if kind is Literal:
        return value if value in parts else MISSING
    if hint is NoneType:
        return None if value is None else MISSING
    if kind in (tuple, list):
        return _convert_entries(value, kind, parts, declared, name)
    if isinstance(hint, type) and is_dataclass(hint):
        if isinstance(value, Mapping):
            return from_mapping(hint, value, f"{name}.")
        return value if isinstance(value, hint) else MISSING
    if hint in (int, float):
        return _convert_number(value, hint, declared)
    if hint is str and declared and not str(value).strip():
        return MISSING  # an option is never blank
    fits = isinstance(value, kind or hint) and value in (declared.get("choices") or (value,))
    return value if fits else MISSING


def _convert_entries(value: Any, kind: type, parts: tuple[Any, ...], declared: Mapping[str, Any], name: str) -> Any:
    """A tuple or list of converted entries; one value is a tuple of one."""
    several = isinstance(value, (list, tuple))
    values = list(value) if several else [value]
    types = parts if kind is tuple and parts[-1] is not ... else [parts[0]] * len(values)
    if len(types) != len(values) or (kind is list and not several):
        return MISSING
    names = [name] if len(values) == 1 else [f"{name}[{i}]" for i in range(len(values))]
    entries = [_convert(v, part, declared, n) for v, part, n in zip(values, types, names, strict=True)]
    return MISSING if any(entry is MISSING for entry in entries) else kind(entries)


def _convert_number(value: Any, hint: Any, declared: Mapping[str, Any]) -> Any:
    number_type: type = Integral if hint is int else Real
    if isinstance(value, bool) or not isinstance(value, number_type):
        return MISSING
    try:
        number = hint(value)
    except OverflowError:  # an integer of hundreds of digits
        return MISSING
    return number if abs(number) <= LARGEST[hint] and _is_within(number, declared) else MISSING


def _is_within(value: Any, declared: Mapping[str, Any]) -> bool:
    """Whether a value has the choices and bounds that the `option` of its field declares."""
    limits = [(holds, declared.get(name)) for name, (holds, _) in BOUNDS.items()]
    within = all(limit is None or holds(value, limit) for holds, limit in limits)
    return within and value in (declared.get("choices") or (value,))


def check_declared(f: Field, value: Any) -> None:
    """Raise `ValueError` unless a value has the choices and bounds that the `option` of its field declares."""
    if not _is_within(value, f.metadata):
        hint = type(value if f.default is None else f.default)
        raise ValueError(refusal(f.name, value, allowed_values(hint, f.metadata)) + _advice(value, hint, f.metadata))
