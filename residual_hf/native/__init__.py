"""C kernels for decoding and training on x86-64 and ARM CPUs. They are optional: without them PyTorch is used.

`setup.py` builds a library for each instruction set where it finds a C compiler. Environment variables:

- `RESIDUAL_HF_NATIVE=0` turns the kernels off; a path loads another build of a library.
- `RESIDUAL_HF_ISA=avx2` uses instruction sets up to this one of `INSTRUCTION_SETS`.
"""

import ctypes
import os
import platform
import shutil
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from transformers.utils import logging

from residual_hf.base.errors import InputError

from .structures import ENUMS, declare_functions, interface_version, is_current

logger = logging.get_logger(__name__)

INSTRUCTION_SETS = ENUMS["InstructionSet"]
"""In ascending order of speed, those of ARM before those of x86-64."""

MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
"""Names of CPUs for which there are kernels."""

COMPILERS = ("cc", "gcc", "clang")


def library() -> ctypes.CDLL | None:
    """The library, or None where it was not built, is turned off, or this CPU cannot run it."""
    return _load()[0]


def loaded_library() -> ctypes.CDLL:
    """The library, for callers that run only where it loads."""
    loaded = library()
    assert loaded is not None
    return loaded


def instruction_set() -> str:
    """The instruction set that the kernels use, one of `INSTRUCTION_SETS`; "none" where PyTorch decodes."""
    loaded = library()
    return "none" if loaded is None else INSTRUCTION_SETS[loaded.instruction_set()]


def report() -> str:
    """Which kernels run, or why PyTorch is used instead, in one line."""
    return _load()[1]


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions for matrix products in bfloat16."""
    return instruction_set() in ("avx512_bf16", "amx")


def threads_for(work: int, per_thread: int) -> int:
    """How many of the threads that PyTorch may use, so that each has at least `per_thread` of the work."""
    return max(1, min(torch.get_num_threads(), work // per_thread))


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    chosen = os.environ.get("RESIDUAL_HF_NATIVE", "")
    most = os.environ.get("RESIDUAL_HF_ISA", INSTRUCTION_SETS[-1])
    if most not in INSTRUCTION_SETS:
        raise InputError(f"RESIDUAL_HF_ISA: {most!r} given, allowed are {', '.join(INSTRUCTION_SETS)}")
    if chosen == "0":
        return None, "native kernels: none (turned off by RESIDUAL_HF_NATIVE=0)"
    try:
        path, skipped = (Path(chosen).resolve(), []) if chosen not in ("", "1") else _find(most)
        if path is None:
            return None, f"native kernels: none ({'; '.join(skipped)})"
        loaded = ctypes.CDLL(str(path))
        version = ctypes.c_uint32(loaded.interface_version()).value
    except (OSError, AttributeError) as error:
        return None, _unused(f"The native kernels do not load: {error}.")
    if version != interface_version():
        return None, _unused(f"{path} is from another version of residual_hf; reinstall it.")
    if chosen in ("", "1") and not is_current(path):
        build = "`python setup.py build_ext --inplace --force`"
        return None, _unused(f"{path} does not match the C sources next to it; run {build}.")
    declare_functions(loaded)
    name = INSTRUCTION_SETS[loaded.instruction_set()]
    if not loaded.can_run(loaded.instruction_set()):  # also asks Linux for the tiles of AMX
        return None, _unused(f"{path}: this CPU or system lacks {name}.")
    loaded.join_team(None if os.name == "nt" else getattr(ctypes.CDLL(None), "GOMP_parallel", None))
    return loaded, f"native kernels: {name}" + (f" ({'; '.join(skipped)})" if skipped else "")


def _find(most: str) -> tuple[Path | None, list[str]]:
    """The library of the best instruction set up to `most`, None if there is none, and why not those before it."""
    cpu = _built("_cpu")
    if cpu is None:
        machine = platform.machine()
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if machine.lower() not in MACHINES:
            reason = f"this CPU is {machine}, neither x86-64 nor 64-bit ARM"
        elif compiler is None:
            reason = f"no C compiler was found ({', '.join(COMPILERS)})"
        else:
            reason = f"{compiler} has not built them: reinstall residual_hf, or in a clone run "
            reason += "`python setup.py build_ext --inplace`"
        _unused(f"The native kernels were not built: {reason}.")
        return None, [f"not built: {reason}"]
    can_run = ctypes.CDLL(str(cpu)).can_run
    skipped = [] if most == INSTRUCTION_SETS[-1] else [f"RESIDUAL_HF_ISA={most}"]
    for index in range(INSTRUCTION_SETS.index(most), 0, -1):
        name = INSTRUCTION_SETS[index]
        path, runs = _built(f"_kernels_{name}"), can_run(index)
        if path is not None and runs:
            return path, skipped
        if path is not None or runs:
            skipped.append(f"{name}: " + ("not built" if path is None else "this CPU or system lacks it"))
    if any(reason.endswith("not built") for reason in skipped):
        _unused(f"Native kernels were not built: this needs Clang or GCC 9 ({'; '.join(skipped)}).")
    return None, skipped


def _built(name: str) -> Path | None:
    paths = (Path(__file__).with_name(name + suffix) for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.exists()), None)


def _unused(reason: str) -> str:
    logger.warning_once(f"{reason} PyTorch is used instead.")
    return f"native kernels: none ({reason})"
