"""The kernels compile and link for the systems that wheels are built for: with the Clang of `pip install ziglang`."""

import importlib.util
import runpy
import subprocess
import sys

import pytest
from support import ROOT

SETUP = runpy.run_path(str(ROOT / "setup.py"))
TARGETS = {
    "aarch64-macos": "neon_dotprod",
    "x86_64-macos": "avx2",
    "x86_64-windows-gnu": "avx512",
    "aarch64-linux-gnu.2.28": "neon",
    "x86_64-linux-gnu.2.28": "amx",
}
"""An instruction set for each."""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile(target, tmp_path):
    name = TARGETS[target]
    compiler = [sys.executable, *f"-m ziglang cc -target {target} -shared".split(), *SETUP["FLAGS"]]
    compiler += ["-pthread", "-O1", "-Wall", "-Wno-ignored-optimization-argument", "-Werror"]
    flags = SETUP["INSTRUCTION_SETS"][target.partition("-")[0]][name].split()
    flags = [flag.replace("-march=armv8.2-a", "-mcpu=generic+v8_2a") for flag in flags]
    sources = [*(ROOT / "residual_hf/native").glob("*.c")]
    macros = ["-DINTERFACE=1u", f"-DINSTRUCTION_SET={name.upper()}"]
    subprocess.run([*compiler, *flags, *macros, "-o", tmp_path / "kernels", *sources], check=True)
    subprocess.run([*compiler, "-o", tmp_path / "cpu", ROOT / "residual_hf/native/cpu.c"], check=True)
