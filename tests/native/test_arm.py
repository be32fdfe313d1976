"""The kernels of ARM under QEMU: they repeat the calls of the other tests and leave the same in memory."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.native_library import AVAILABLE

from residual_hf.native import _built

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]
TESTS = {
    "test_kernels.py": "",
    "test_autograd.py": "",
    "test_dot_attention.py": "",
    "test_products.py": "",
    "test_decoder.py": "odd and (test_sizes or test_low_precision) and not (mhc or normformer or sub_ln)",
    "test_decoder_alone.py": "variants and modern",
    "test_programs.py": "a_mode_of_a_user",
    "test_search.py": "equally_good or scores_that_are_not",
}
"""Which of a module's tests."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR[0])), reason=f"needs {COMPILER} and QEMU"
    ),
    pytest.mark.skipif(
        "avx2" not in AVAILABLE, reason="calls are recorded with AVX2, whose weights have the same layout"
    ),
]


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """A file with the calls of the other tests and what they did."""
    path = tmp_path_factory.mktemp("calls") / "calls"
    record = {
        "RESIDUAL_HF_NATIVE": str(_built("_kernels_avx2")),
        "RECORDED_CALLS": str(path),
        "PYTHONMALLOC": "malloc",
    }
    for module, chosen in TESTS.items():
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", chosen]
        command += ["-p", "support.recorded_calls", str(HERE / module)]
        paths = os.pathsep.join([str(HERE.parent), str(ROOT)])
        environment = os.environ | record | {"PYTHONPATH": paths}
        finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the libraries of ARM, and the program that repeats calls."""
    folder = tmp_path_factory.mktemp("arm")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(folder)]
    target = {"CC": COMPILER, "_PYTHON_HOST_PLATFORM": "linux-aarch64"}
    subprocess.run(command, cwd=ROOT, env=os.environ | target, check=True)
    subprocess.run([COMPILER, "-O1", "-o", folder / "replay", HERE / "replay.c", "-ldl", "-lm"], check=True)
    return folder


@pytest.mark.parametrize("name", ["neon", "neon_dotprod"])
def test_calls_have_the_same_results(built, calls, name):
    library = next(built.rglob(f"_kernels_{name}.*"))
    finished = subprocess.run([*EMULATOR, built / "replay", library, calls], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr
    assert int(finished.stdout.split()[0]) > 1000


def test_other_results_are_noticed(built, calls, tmp_path):
    scale, other = (struct.pack("<32sf", b"attention", value) for value in (0.125, 0.5))
    (tmp_path / "calls").write_bytes(calls.read_bytes().replace(scale, other))
    library = next(built.rglob("_kernels_neon.*"))
    finished = subprocess.run(
        [*EMULATOR, built / "replay", library, tmp_path / "calls"], capture_output=True, text=True
    )
    named = {line.split(":")[0] for line in finished.stdout.splitlines()[:-1]}
    assert finished.returncode == 1 and named == {"attention"}
