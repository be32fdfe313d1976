"""Benchmarks as on a CPU with fewer instructions: all libraries are limited alike, before they are loaded."""

import os
import sys

NAMES = {
    "RESIDUAL_HF_ISA": ("avx2", "avx512"),
    "ATEN_CPU_CAPABILITY": ("avx2", "avx512"),
    "ONEDNN_MAX_CPU_ISA": ("AVX2", "AVX512_CORE_VNNI"),
    "MKL_ENABLE_INSTRUCTIONS": ("AVX2", "AVX512"),
    "CT2_FORCE_CPU_ISA": ("AVX2", "AVX512"),
}
"""Environment variables, and what they call the sets of `ISAS`."""
ISAS = {"avx2": 0, "avx512": 1}


def restart_with(isa: str | None) -> None:
    """Replace this process by one with the limits of an instruction set, if it has none yet."""
    limits = {} if isa is None else {name: values[ISAS[isa]] for name, values in NAMES.items()}
    if any(os.environ.get(name) != value for name, value in limits.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | limits)
