"""The tests of the kernels with a library that checks every access to memory and all arithmetic of C."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.native_library import AVAILABLE, needs_kernels

from residual_hf.native.structures import interface_version

FLAGS = "-g1 -O1 -fexpensive-optimizations -std=gnu11 -ffp-contract=fast -shared -fPIC -pthread"  # fuses, as -O3 does
CHECKS = "-fsanitize=address,undefined -fno-sanitize-recover=all"
SETS = dict.fromkeys(AVAILABLE[-1:], "-march=native") | {"avx2": "-mavx2 -mfma"}


def sanitizer_runtime() -> str | None:
    """The libraries that have to be loaded before Python, None without a compiler that has them.

    libstdc++ is one of them: the sanitizer looks up what throws exceptions before PyTorch loads it.
    """
    if shutil.which("gcc") is None:
        return None
    names = "libasan.so", "libstdc++.so"
    options = [f"-print-file-name={name}" for name in names]
    found = [subprocess.run(["gcc", option], capture_output=True, text=True).stdout.strip() for option in options]
    return " ".join(found) if all(map(os.path.isabs, found)) else None


every_set = pytest.mark.parametrize("name", [*AVAILABLE[-1:], pytest.param("avx2", marks=pytest.mark.slow)])


def checked_library(name, path, pattern="*.c"):
    """Environment of a process that uses the checked library of an instruction set, made of the files of a pattern."""
    runtime = sanitizer_runtime()
    if runtime is None or name not in AVAILABLE:
        pytest.skip(f"gcc with the address sanitizer is not installed, or this CPU has no {name}")
    sources = sorted((ROOT / "residual_hf/native").glob(pattern))
    macros = f"-DINTERFACE={interface_version()}u", f"-DINSTRUCTION_SET={name.upper()}"
    flags = f"{FLAGS} {CHECKS} {SETS[name]}".split()
    subprocess.run(["gcc", *flags, *macros, "-o", path, *sources, "-lm"], check=True)
    return {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees little at its end
        "RESIDUAL_HF_NATIVE": str(path),
    }


def run(environment, *command):
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@needs_kernels
@every_set
def test_kernels_stay_within_their_buffers(name, tmp_path):
    files = ["kernels", "decoder", "decoder_alone", "search", "programs", "autograd", "products", "dot_attention"]
    tests = [str(Path(__file__).with_name(f"test_{file}.py")) for file in [*files, "threads"]]
    tests.append(str(ROOT / "tests/generation/test_shortlist_decoding.py"))
    finished = run(
        checked_library(name, tmp_path / "kernels.so"), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]


@needs_kernels
@every_set
def test_the_sanitizer_sees_a_buffer_that_is_too_small(name, tmp_path):
    script = (
        "import ctypes, os\n"
        "kernels, malloc = ctypes.CDLL(os.environ['RESIDUAL_HF_NATIVE']), ctypes.CDLL(None).malloc\n"
        "malloc.restype = ctypes.c_void_p\n"
        "class Candidates(ctypes.Structure):\n"
        "    _fields_ = [(name, ctypes.c_int32) for name in ('rows', 'count')]\n"
        "    _fields_ += [(name, ctypes.c_void_p) for name in ('log_probs', 'ids', 'tallies')]\n"
        "log_probs, ids, tallies = (malloc(size) for size in (4 * 5 * 4 - 1, 4 * 5 * 8, 4 * 12))\n"
        "kernels.start_candidates(ctypes.byref(Candidates(4, 5, log_probs, ids, tallies)))"
    )
    library = checked_library(name, tmp_path / "kernels.so", "topk.c")  # all files take a quarter of a minute
    finished = run(library, "-c", script)
    assert finished.returncode != 0 and "heap-buffer-overflow" in finished.stderr
