# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The metadata is in pyproject.toml. Here are the optional libraries of kernels that `residual_hf.native` loads.

One for each instruction set, from the same sources, and `_cpu`, compiled for any CPU, which finds out what this one
can run. They use nothing of Python, so that a wheel serves all its versions.
"""

import os
import platform
import sys
import sysconfig
import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

FOLDER = Path("residual_hf/native")
AVX512 = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni"
NO_SPILLS = "-fno-schedule-insns"  # GCC would load more at once than there are registers; Clang ignores it
INSTRUCTION_SETS = {
    "x86_64": {
        "avx2": "-mavx2 -mfma",
        "avx_vnni": "-mavx2 -mfma -mavxvnni",
        "avx512": AVX512,
        "avx512_bf16": f"{AVX512} -mavx512bf16",
        "amx": f"{AVX512} -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8",
    },
    "aarch64": {"neon": NO_SPILLS, "neon_dotprod": f"{NO_SPILLS} -march=armv8.2-a+dotprod"},
}
"""The flags of the compiler for each, by architecture."""
NAMES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-pthread"]
CPU = FOLDER / "cpu.c"


class BuildKernels(build_ext):
    """One command of the compiler for each library. On Windows, `ziglang` has a Clang; MSVC lacks the language."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = True

    def build_extension(self, extension):
        path = Path(self.get_ext_fullpath(extension.name))
        if not (self.force or newer_group([*extension.sources, *extension.depends], path)):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture()}-windows-gnu", "-shared"]
        compiler = zig if sys.platform == "win32" else [*self.compiler.linker_so, "-fPIC"]
        macros = [f"-D{name}={value}" for name, value in extension.define_macros]
        self.spawn([*compiler, *extension.extra_compile_args, *macros, "-o", str(path), *extension.sources, "-lm"])


def architecture() -> str | None:
    target = sysconfig.get_platform().rpartition("-")[2].lower()  # differs from the machine in a cross-build
    return NAMES.get(target) or NAMES.get(platform.machine().lower())


def library(name: str, sources: list[Path], flags: str = "", **macros: str) -> Extension:
    return Extension(
        f"residual_hf.native.{name}",
        sources=sorted(map(str, sources)),
        depends=["setup.py", *map(str, FOLDER.glob("*.h"))],
        define_macros=list(macros.items()),
        extra_compile_args=[*FLAGS, *flags.split()],
        py_limited_api=True,  # any version of Python
        optional=True,  # without a compiler, PyTorch decodes
    )


def libraries() -> list[Extension]:
    interface = f"{zlib.crc32((FOLDER / 'native.h').read_bytes())}u"
    sources = [*FOLDER.glob("*.c")]  # with CPU: a library asks the system for the tiles of AMX
    sets = INSTRUCTION_SETS.get(architecture() or "", {})
    kernels = [
        library(f"_kernels_{name}", sources, flags, INTERFACE=interface, INSTRUCTION_SET=name.upper())
        for name, flags in sets.items()
    ]
    return [library("_cpu", [CPU]), *kernels] if kernels else []


if __name__ == "__main__":
    if sys.platform == "darwin":  # one architecture, not both of a universal Python
        os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")
    setup(
        ext_modules=libraries(),
        cmdclass={"build_ext": BuildKernels},
        options={} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"bdist_wheel": {"py_limited_api": "cp310"}},
    )
