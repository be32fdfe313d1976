"""The metadata is in pyproject.toml. Here are the optional libraries of kernels that `residual_hf.native` loads.

One for each instruction set, from the same sources, and `_cpu`, compiled for any CPU, which finds out what this one
can run. They use nothing of Python, so that a wheel serves all its versions.
"""

import os
import platform
import shutil
import sys
import sysconfig
import zlib
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

FOLDER = Path("residual_hf/native")
SOURCES = sorted(FOLDER.glob("[!.]*.[ch]"))
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
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno"]
CPU = FOLDER / "cpu.c"
WEB = "kernels_wasm"
WEB_SOURCES = ["attention", "library", "linear", "search", "stack", "stream", "topk"]
WEB_FUNCTIONS = [
    *("malloc", "free", "interface_version", "encode", "encode_scratch_size", "project_source"),
    *("project_scratch_size", "search", "search_scratch_size"),
]
WEB_FLAGS = "-target wasm32-wasi -mexec-model=reactor -msimd128 -s -ffp-contract=off"  # else a call for each lane


class BuildKernels(build_ext):
    """One command of the compiler for each library. `ziglang` has a Clang for Windows and WebAssembly."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = True

    def get_ext_filename(self, name):
        found = super().get_ext_filename(name)
        return str(Path(found).with_name("kernels.wasm")) if name.endswith(WEB) else found

    def build_extension(self, extension):
        path = Path(self.get_ext_fullpath(extension.name))
        if not (self.force or newer_group([*extension.sources, *extension.depends], path)):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if extension.name.endswith(WEB):
            compiler = [*zig(), "cc", *(f"-Wl,--export={name}" for name in WEB_FUNCTIONS)]
        elif sys.platform == "win32":
            compiler = [*zig(), "cc", "-target", f"{architecture()}-windows-gnu", "-shared", "-pthread"]
        else:
            compiler = [*self.compiler.linker_so, "-fPIC", "-pthread"]
        macros = [f"-D{name}={value}" for name, value in extension.define_macros]
        self.spawn([*compiler, *extension.extra_compile_args, *macros, "-o", str(path), *extension.sources, "-lm"])


def zig() -> list[str] | None:
    """The command of `ziglang`: of this environment, or of that on the path from which a build is isolated."""
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang"]
    script = shutil.which("python-zig")
    return [str(Path(script).with_name("python")), "-I", "-m", "ziglang"] if script else None


def architecture() -> str | None:
    target = sysconfig.get_platform().rpartition("-")[2].lower()  # differs from the machine in a cross-build
    return NAMES.get(target) or NAMES.get(platform.machine().lower())


def library(name: str, sources: list[Path], flags: str = "", **macros: str) -> Extension:
    return Extension(
        f"residual_hf.native.{name}",
        sources=sorted(map(str, sources)),
        depends=["setup.py", *map(str, SOURCES)],
        define_macros=list(macros.items()),
        extra_compile_args=[*FLAGS, *flags.split()],
        py_limited_api=True,  # any version of Python
        optional=True,  # without a compiler, PyTorch decodes
    )


def libraries() -> list[Extension]:
    macros = {
        "INTERFACE": f"{zlib.crc32((FOLDER / 'native.h').read_bytes())}u",
        "SOURCES": str(zlib.crc32(b"".join(source.read_bytes() for source in SOURCES))),
    }
    sources = [*FOLDER.glob("*.c")]  # with CPU: a library asks the system for the tiles of AMX
    sets = INSTRUCTION_SETS.get(architecture() or "", {})
    kernels = [
        library(f"_kernels_{name}", sources, flags, **macros, INSTRUCTION_SET=name.upper())
        for name, flags in sets.items()
    ]
    own = [library("_cpu", [CPU]), *kernels] if kernels else []
    if zig():  # the same on every platform
        of_web = [FOLDER / f"{name}.c" for name in WEB_SOURCES]
        own.append(library(WEB, of_web, WEB_FLAGS, **macros, INSTRUCTION_SET="NONE"))
    return own


if __name__ == "__main__":
    if sys.platform == "darwin":  # one architecture, not both of a universal Python
        os.environ.setdefault("ARCHFLAGS", f"-arch {platform.machine()}")
    setup(
        ext_modules=libraries(),
        cmdclass={"build_ext": BuildKernels},
        options={} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"bdist_wheel": {"py_limited_api": "cp310"}},
    )
