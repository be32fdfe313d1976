# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Read pickled checkpoints without running code from them.

The names in a pickle are read first, as data; a name that does not belong in a checkpoint is refused. The pickle is
then loaded by PyTorch's `weights_only` unpickler, which supports tensors and plain containers. Objects of
configurations and bookkeeping (argparse, OmegaConf, fairseq, NumPy scalars, dataclasses of plug-ins) become
`Placeholder`s that only keep their saved state. No module is imported for a pickle.
"""

from __future__ import annotations

import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from residual_hf.base.errors import InputError
from residual_hf.base.files import expanded

from .pickle_scan import pickled_names

# Classes and functions in the configuration and bookkeeping of fairseq checkpoints; their calls are only recorded.
STUBBED = re.compile(
    r"(antlr4|examples|fairseq|fairseq_cli|hydra|omegaconf)\.[\w.]+"
    r"|argparse\.Namespace|(enum|typing)\.\w+|pathlib\.(Pure)?(Posix|Windows)?Path|datetime\.\w+"
    r"|numpy(\._?core)?\.(multiarray\.)?(_reconstruct|scalar|dtype|ndarray|bool_?|u?int\d+|float\d+)|numpy\.dtypes\.\w+"
    r"|_?operator\.getitem|collections\.deque|copyreg\._reconstructor"
    r"|builtins\.(bool|bytes|dict|float|frozenset|int|list|object|slice|str|tuple|type)"
)
ADMITTED = re.compile(  # PyTorch builds or refuses these itself
    r"collections\.(OrderedDict|Counter)|_codecs\.encode|builtins\.(set|complex)"
    r"|torch\.(cuda\.)?(\w+Storage|Size|device|bool|u?int\d+|b?float\d+)"
    r"|torch\.(storage\.\w+Storage|nn\.parameter\.Parameter|_utils\._rebuild_(tensor|tensor_v2|tensor_v3|parameter))"
)
MAPPING = "collections.defaultdict"
MAX_NAMES = 1_000
MAX_SETTINGS, MAX_DEPTH = 100_000, 50


class Placeholder:
    """Replaces an object whose class is not loaded: the class's name `origin`, its arguments and its state."""

    origin = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Placeholder:
        made = super().__new__(cls)
        made.arguments = args
        made.state = {}
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reference(type):
    """Class of placeholders for unknown packages. A pickle may name them and build objects, but not call them."""

    refusal: InputError

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise cls.refusal


def load_pickle(path: str | Path) -> Any:
    """Load an object written by `torch.save` to the CPU, in the zip format or in that of PyTorch before 1.6.

    Raises:
        InputError: the file is missing, damaged or has another format, or the pickle names a function or class that
            could run code.
    """
    path = expanded(path)
    try:
        with open(path, "rb") as file:
            admitted: list[Any] = [(_stand_in(name, path), name) for name in _foreign_names(file, path)]
            file.seek(0)
            with torch.serialization.safe_globals(admitted), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about old storage classes and pickle protocols
                return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except InputError:
        raise
    except Exception as error:  # PyTorch raises many types of errors for damaged files
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip() or type(error).__name__
        raise InputError(f"{path}: damaged or refused by PyTorch: {reason.splitlines()[0][:300]}") from error


def to_plain(value: Any) -> Any:
    """Convert placeholders recursively to dicts, lists and scalars, and OmegaConf's nodes to their values.

    References between values of a config (`${task.max_source_positions}`) are resolved. Raises `InputError` for more
    values or levels than a configuration has, where values that are referred to twice count twice.
    """
    plain = _unwrap(value, 0, itertools.count())
    return _resolve(plain, plain)


def _foreign_names(file: BinaryIO, path: Path) -> list[str]:
    """The names that get a stand-in.

    Raises:
        InputError: a name that gets none and is not a tensor or container either.
    """
    names: dict[str, None] = {}
    for name in pickled_names(file, path):
        if ADMITTED.fullmatch(name):
            continue
        package = name.partition(".")[0]
        is_plug_in = package not in ("torch", "numpy") and package not in sys.stdlib_module_names
        if not (STUBBED.fullmatch(name) or name == MAPPING or is_plug_in):
            raise _refusal(path, name)
        names[name] = None
        if len(names) > MAX_NAMES:
            raise InputError(f"{path}: the pickle names more than {MAX_NAMES:,} classes, a checkpoint has fewer")
    return list(names)


def _refusal(path: Path, name: str) -> InputError:
    return InputError(
        f"{path}: the pickle names {name}, which could run code or take all memory. It was refused and nothing was "
        "run. Supported are tensors, plain containers and configuration objects (argparse, OmegaConf, fairseq)"
    )


def _stand_in(name: str, path: Path) -> Callable[..., Any] | type:
    if name == MAPPING:
        return lambda *args: {}
    make_class = type if STUBBED.fullmatch(name) else _Reference
    return make_class(name.rpartition(".")[2], (Placeholder,), {"origin": name, "refusal": _refusal(path, name)})


def _unwrap(value: Any, depth: int, count: Iterator[int]) -> Any:
    if depth > MAX_DEPTH or next(count) > MAX_SETTINGS:
        raise InputError(f"checkpoint: its settings have more than {MAX_SETTINGS:,} values or {MAX_DEPTH} levels")
    depth += 1
    if isinstance(value, Placeholder):
        return _unwrap(_content(value), depth, count)
    if isinstance(value, dict):
        return {_unwrap(key, depth, count): _unwrap(item, depth, count) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_unwrap(item, depth, count) for item in value)
    return value


def _content(made: Placeholder) -> Any:
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
