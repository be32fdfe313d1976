"""Read pickled checkpoints without running code from them, and the plain values of their settings.

`torch.load(weights_only=True)` makes tensors and plain containers; objects of other classes become `StandIn`s: those
of argparse, OmegaConf, fairseq and NumPy, and dataclasses of plug-ins. No module is imported for a pickle.
"""

import os
import pickle
import pickletools
import re
import signal
import sys
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any

import psutil
import torch

from residual_hf.base.errors import InputError
from residual_hf.base.files import expanded, readable
from residual_hf.model.options import shortened

PLAIN = re.compile(  # what PyTorch makes itself
    r"collections\.(OrderedDict|Counter)|builtins\.(set|complex)|_codecs\.encode|torch\.(Size|device)"
    r"|torch\.(bool|u?int\d+|b?float\d+)|torch\.(cuda\.)?\w+Storage|torch\.storage\.\w+Storage"
    r"|torch\.nn\.parameter\.Parameter|torch\._utils\._rebuild_(parameter|tensor|tensor_v2|tensor_v3)"
)
# Classes and functions in the configuration and bookkeeping of fairseq checkpoints; their calls are only recorded.
STUBBED = re.compile(
    r"(antlr4|examples|fairseq|fairseq_cli|hydra|omegaconf)\.[\w.]+"
    r"|argparse\.Namespace|(enum|typing)\.\w+|pathlib\.(_local\.)?(Pure)?(Posix|Windows)?Path|datetime\.\w+"
    r"|numpy(\._?core)?\.(multiarray\.)?(_reconstruct|scalar|dtype|ndarray|bool_?|u?int\d+|float\d+)|numpy\.dtypes\.\w+"
    r"|_?operator\.getitem|collections\.deque|copyreg\._reconstructor"
    r"|builtins\.(bool|bytes|dict|float|frozenset|int|list|object|slice|str|tuple|type)"
)
MAX_SETTINGS, MAX_DEPTH = 100_000, 50
SCALARS = (str, int, float, NoneType)
CHARACTERS = 100  # of a text in the settings, that count as a value
CALLS: dict[str, Callable[..., Any]] = {"collections.defaultdict": lambda *arguments: {}}
LEGACY_PICKLES = 5  # before PyTorch 1.6: a magic number, a version, the system, the object, the keys of its storages
MAX_NAMES = 1_000
SECONDS, MEMORY = 30, 2**29
"""Time and bytes, besides those of its size, that a checkpoint may take."""


def load_pickle(path: str | Path) -> Any:
    """Load an object written by `torch.save` to the CPU, in the zip format or in that of PyTorch before 1.6.

    Raises `InputError` for a file that is damaged or has another format, and a pickle that names a function or class
    which could run code, or takes much more memory or time than its size.
    """
    path = expanded(path)
    try:
        with readable(path), open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other protocols of pickle
            is_zip = file.peek(4)[:4] == b"PK\x03\x04"  # not the format before PyTorch 1.6
            names = [name for name in _names(path, file, is_zip) if not PLAIN.fullmatch(name)]
            classes: list[Any] = [(CALLS.get(name) or stand_in(name, path), name) for name in names]
            with torch.serialization.safe_globals(classes):
                # storages in a mapped file cannot be enlarged to what a tensor says
                load = partial(torch.load, path, "cpu", weights_only=True, mmap=is_zip)
                _check_cost(path, load)
                return load()
    except InputError:
        raise
    except Exception as error:  # of any kind, for what PyTorch did not expect
        problem = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
        problem = re.split(r"\n| Please ", problem)[0]  # without the advice to run its code
        raise InputError(f"{path}: cannot be read as a checkpoint of PyTorch: {shortened(problem, 300)}") from error


def _names(path: Path, file: BufferedReader, is_zip: bool) -> list[str]:
    """The full names of classes and functions in the pickles of a file. Raises `ValueError` for other files."""
    if is_zip:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            found = [record for record in records if record.filename.rpartition("/")[2].lower() == "data.pkl"]
            if len(found) != 1:
                raise ValueError("not a zip file written by torch.save: it has no data.pkl")
            compressed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
            if compressed or sum(record.file_size for record in records) > path.stat().st_size:
                raise ValueError("not a zip file written by torch.save, which does not compress records")
            pickles: list[Iterator[Any]] = [pickletools.genops(archive.read(found[0]))]
    elif file.peek(1)[:1] == pickle.PROTO:
        pickles = [pickletools.genops(file) for _ in range(LEGACY_PICKLES)]
    else:
        raise ValueError("neither zip nor pickle")
    names: dict[str, None] = {}
    for opcode, argument, _ in chain.from_iterable(pickles):
        if opcode.name == "PROTO" and argument > 2:
            raise ValueError(f"protocol {argument}, must be 2, which torch.save writes by default; nothing was run")
        if opcode.name == "GLOBAL":
            module, name = argument.split(" ", 1)
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))  # of Python 2
            names[f"{module}.{name}"] = None
            if len(names) > MAX_NAMES:
                raise ValueError(f"names more than {MAX_NAMES:,} classes, a checkpoint has fewer")
    return list(names)


def _check_cost(path: Path, load: Callable[[], Any]) -> None:
    """Raise `InputError` if a copy of this process, with limits, cannot load a file; where there are such copies."""
    if not hasattr(os, "fork"):
        return
    import resource  # which Windows lacks

    size = path.stat().st_size
    memory, seconds = psutil.Process().memory_info().vms + MEMORY + 4 * size, SECONDS + size // 2**25
    child = os.fork()
    if child == 0:
        status = 0  # also for other errors, which this process raises by name
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10 * seconds)
            with suppress(ValueError):  # macOS has no such limit
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            load()
        except BaseException as error:
            status = isinstance(error, (MemoryError, RecursionError)) or "memory" in str(error)
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise InputError(f"{path}: the pickle would take much more memory or time than its {size:,} bytes")


class StandIn:
    """Replaces an object whose class is not loaded: the class's name `origin`, its arguments and its state."""

    origin = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> "StandIn":
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
    count = 0

    def plain(value: Any, depth: int = 0) -> Any:
        nonlocal count
        count += 1 + (len(value) // CHARACTERS if isinstance(value, (str, bytes)) else 0)
        if depth > MAX_DEPTH or count > MAX_SETTINGS:
            raise InputError(f"checkpoint: its settings have more than {MAX_SETTINGS:,} values or {MAX_DEPTH} levels")
        if isinstance(value, StandIn):
            return plain(_content(value), depth + 1)
        if isinstance(value, dict):
            entries = ((plain(key, MAX_DEPTH - 1), plain(item, depth + 1)) for key, item in value.items())
            return {key if isinstance(key, SCALARS) else str(type(key)): item for key, item in entries}
        if isinstance(value, (list, tuple)):
            return type(value)(plain(item, depth + 1) for item in value)
        return value if isinstance(value, (*SCALARS, bytes)) else f"<{type(value).__name__}>"  # no setting is another

    found = plain(value)
    return _resolve(found, found)


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
