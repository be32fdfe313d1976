# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Inert stand-ins for the classes that a pickle names, and the plain values that their objects hold.

The classes are those of argparse, OmegaConf, fairseq and NumPy, and dataclasses of plug-ins.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import NoneType
from typing import Any

from residual_hf.base.errors import InputError

# Classes and functions in the configuration and bookkeeping of fairseq checkpoints; their calls are only recorded.
STUBBED = re.compile(
    r"(antlr4|examples|fairseq|fairseq_cli|hydra|omegaconf)\.[\w.]+"
    r"|argparse\.Namespace|(enum|typing)\.\w+|pathlib\.(Pure)?(Posix|Windows)?Path|datetime\.\w+"
    r"|numpy(\._?core)?\.(multiarray\.)?(_reconstruct|scalar|dtype|ndarray|bool_?|u?int\d+|float\d+)|numpy\.dtypes\.\w+"
    r"|_?operator\.getitem|collections\.deque|copyreg\._reconstructor"
    r"|builtins\.(bool|bytes|dict|float|frozenset|int|list|object|slice|str|tuple|type)"
)
MAX_SETTINGS, MAX_DEPTH = 100_000, 50
CHARACTERS = 100  # of a text in the settings, that count as a value


class StandIn:
    """Replaces an object whose class is not loaded: the class's name `origin`, its arguments and its state."""

    origin = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> StandIn:
        made = super().__new__(cls)
        made.arguments = args
        made.state = {}
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


def to_plain(value: Any) -> Any:
    """Convert stand-ins recursively to dicts, lists and scalars, and OmegaConf's nodes to their values.

    References between values of a config (`${task.max_source_positions}`) are resolved. Raises `InputError` for more
    values or levels than a configuration has, where values that are referred to twice count twice.
    """
    plain = _Settings().plain(value)
    return _resolve(plain, plain)


def stand_in(name: str, path: Path) -> type:
    """A class of stand-ins. Raises `InputError` for what does not belong in a checkpoint."""
    package = name.partition(".")[0]
    is_plug_in = package not in ("torch", "numpy") and package not in sys.stdlib_module_names
    if not (is_plug_in or STUBBED.fullmatch(name)):
        raise InputError(
            f"{path}: the pickle names {name}, which could run code or take all memory. It was refused and nothing "
            "was run. Supported are tensors, plain containers and configuration objects (argparse, OmegaConf, fairseq)"
        )
    return type(name.rpartition(".")[2], (StandIn,), {"origin": name})


class _Settings:
    """Counts the values of a configuration that it converts to plain ones."""

    def __init__(self) -> None:
        self.count = 0

    def plain(self, value: Any, depth: int = 0) -> Any:
        self.count += 1 + (len(value) // CHARACTERS if isinstance(value, (str, bytes)) else 0)
        if depth > MAX_DEPTH or self.count > MAX_SETTINGS:
            raise InputError(f"checkpoint: its settings have more than {MAX_SETTINGS:,} values or {MAX_DEPTH} levels")
        depth += 1
        if isinstance(value, StandIn):
            return self.plain(_content(value), depth)
        if isinstance(value, dict):
            return {self._key(key): self.plain(item, depth) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.plain(item, depth) for item in value)
        if isinstance(value, (str, bytes, int, float, NoneType)):
            return value
        return f"<{type(value).__name__}>"  # nothing that a setting may be

    def _key(self, key: Any) -> Any:
        key = self.plain(key, MAX_DEPTH - 1)
        return key if isinstance(key, (str, int, float, NoneType)) else str(type(key))


def _content(made: StandIn) -> Any:
    state = made.state if isinstance(made.state, dict) else {}
    if made.origin.startswith("omegaconf."):
        return state.get("_content", state.get("_val"))
    if made.origin == "argparse.Namespace":
        return state
    if len(made.arguments) == 1 and not state:  # an enum member, a path
        return made.arguments[0]
    return state or None


def _resolve(value: Any, root: Any) -> Any:
    if isinstance(value, dict):
        return {key: _resolve(item, root) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, root) for item in value]
    for _ in range(8):  # references to references, but no cycles
        if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
            break
        found = root
        for part in value[2:-1].split("."):
            found = found.get(part) if isinstance(found, dict) else None
        value = found
    return value
