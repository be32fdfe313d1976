# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""C kernels for decoding and training on a CPU with AVX-512 or AMX. They are optional: without them PyTorch is used.

`setup.py` builds the library where it finds a C compiler. Environment variables:

- `RESIDUAL_HF_NATIVE=0` turns the kernels off; a path loads another build of the library.
- `RESIDUAL_HF_ISA=avx512_bf16` does without AMX, `RESIDUAL_HF_ISA=avx512` also without the products of AVX512_BF16.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from transformers.utils import logging

from residual_hf.base.errors import InputError

from .structures import ENUMS, declare_functions, interface_version

logger = logging.get_logger(__name__)

INSTRUCTION_SETS = ENUMS["InstructionSet"]


def library() -> ctypes.CDLL | None:
    """The library, or None where it was not built, is turned off, or this CPU cannot run it."""
    return _load()[0]


def loaded_library() -> ctypes.CDLL:
    """The library of a `NativeDecoder`, which exists only where the library loads."""
    loaded = library()
    assert loaded is not None
    return loaded


def instruction_set() -> str:
    """The instruction set that the kernels use, one of `INSTRUCTION_SETS`; "none" where PyTorch decodes."""
    return _load()[1]


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions for matrix products in bfloat16."""
    return instruction_set() in ("avx512_bf16", "amx")


def threads_for(work: int, per_thread: int) -> int:
    """How many of the threads that PyTorch may use, so that each has at least `per_thread` of the work."""
    return max(1, min(torch.get_num_threads(), work // per_thread))


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    most = os.environ.get("RESIDUAL_HF_ISA", "amx")
    if most not in INSTRUCTION_SETS:
        raise InputError(f"RESIDUAL_HF_ISA: {most!r} given, allowed are {', '.join(INSTRUCTION_SETS)}")
    path = _find()
    if path is None:
        return None, "none"
    try:
        loaded = ctypes.CDLL(str(path))
        version = ctypes.c_uint32(loaded.interface_version()).value
    except (OSError, AttributeError) as error:
        logger.warning_once(f"The native kernels do not load: {error}. PyTorch is used instead.")
        return None, "none"
    if version != interface_version():
        logger.warning_once(f"{path} is from another version of residual_hf; reinstall it. PyTorch is used instead.")
        return None, "none"
    declare_functions(loaded)
    loaded.join_team(getattr(ctypes.CDLL(None), "GOMP_parallel", None))
    used = INSTRUCTION_SETS[loaded.enable_instruction_set(INSTRUCTION_SETS.index(most))]
    return (None if used == "none" else loaded), used


def _find() -> Path | None:
    chosen = os.environ.get("RESIDUAL_HF_NATIVE", "")
    if chosen == "0":
        return None
    if chosen not in ("", "1"):
        return Path(chosen)
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            return path
    if platform.machine() in ("x86_64", "AMD64"):
        logger.warning_once("The native kernels were not built (no C compiler?). PyTorch is used instead.")
    return None
