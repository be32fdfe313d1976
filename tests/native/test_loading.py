import ctypes
import importlib.util
import os
import runpy
import subprocess
import sys
from ctypes import c_float, c_int, c_int32, c_size_t, c_void_p
from unittest.mock import MagicMock

import pytest
from support import ROOT
from support.native_library import AVAILABLE, isa, needs_kernels  # noqa: F401

from residual_hf import native
from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.base.errors import InputError
from residual_hf.native import structures

load = native._load.__wrapped__  # what the first use of the library does


@pytest.fixture
def lines(monkeypatch):
    """The warnings of the loader."""
    seen = []
    monkeypatch.setattr(native.logger, "warning_once", seen.append)
    return seen


def test_kernels_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("RESIDUAL_HF_NATIVE", "0")
    assert load() == (None, "native kernels: none (turned off by RESIDUAL_HF_NATIVE=0)")


@needs_kernels
def test_a_library_may_be_named_from_its_folder(monkeypatch):
    path = native._built("_kernels_avx2") or native._built("_kernels_neon")
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("RESIDUAL_HF_NATIVE", f"./{path.name}")
    assert load()[0] is not None


@needs_kernels
def test_instruction_set_can_be_lowered(monkeypatch, isa):  # noqa: F811
    monkeypatch.setenv("RESIDUAL_HF_ISA", isa)
    loaded, report = load()
    assert native.INSTRUCTION_SETS[loaded.instruction_set()] == isa
    assert report.startswith(f"native kernels: {isa} (RESIDUAL_HF_ISA={isa}") or isa == native.INSTRUCTION_SETS[-1]
    monkeypatch.setenv("RESIDUAL_HF_ISA", "none")
    assert load()[0] is None and "none" in load()[1]


def use_cpu(monkeypatch, *runs):
    """A CPU with instruction sets of one's choice; returns the paths of the libraries that are loaded from now on."""
    cpu, loaded = ctypes.CDLL(str(native._built("_cpu"))), []

    def load_library(path, load=ctypes.CDLL):
        loaded.append(str(path))
        return cpu if "_cpu" in str(path) else load(path)

    monkeypatch.setattr(cpu, "can_run", lambda index: native.INSTRUCTION_SETS[index] in runs, raising=False)
    monkeypatch.setattr(native.ctypes, "CDLL", load_library)
    return loaded


@needs_kernels
def test_kernels_that_the_compiler_could_not_build_are_named(monkeypatch, lines):
    use_cpu(monkeypatch, "neon", "avx2")
    built = native._built
    monkeypatch.setattr(native, "_built", lambda name: None if "_kernels_" in name else built(name))
    assert load()[0] is None
    assert "Native kernels were not built: this needs Clang or GCC 9" in lines[0]


@needs_kernels
def test_the_library_of_the_next_lower_instruction_set_is_used(monkeypatch):
    use_cpu(monkeypatch, "neon", "avx2", "avx512", "avx512_bf16")
    monkeypatch.setattr(native, "_built", lambda name, built=native._built: None if "avx512" in name else built(name))
    monkeypatch.setenv("RESIDUAL_HF_ISA", "avx512_bf16")
    assert load()[1].startswith(("native kernels: avx2", "native kernels: neon"))
    assert "avx512: not built" in load()[1]


@needs_kernels
def test_a_library_that_the_cpu_cannot_run_is_not_loaded(monkeypatch):
    loaded = use_cpu(monkeypatch, "neon", "avx2")
    assert "avx512: this CPU or system lacks it" in load()[1] or "neon" in load()[1]
    assert native.INSTRUCTION_SETS[load()[0].instruction_set()] in ("neon", "avx2")
    assert not [path for path in loaded if "avx512" in path]


@needs_kernels
def test_a_chosen_library_that_the_cpu_cannot_run_is_not_used(monkeypatch, lines):
    """Each library asks the CPU and the system itself, Linux also for the tiles of AMX."""
    for name in native.INSTRUCTION_SETS[1:]:
        if path := native._built(f"_kernels_{name}"):
            monkeypatch.setenv("RESIDUAL_HF_NATIVE", str(path))
            library, report = load()
            assert (name in AVAILABLE) == (library is not None)
            assert report == f"native kernels: {name}" or f"{path}: this CPU or system lacks {name}" in report


def test_unknown_instruction_set(monkeypatch):
    monkeypatch.setenv("RESIDUAL_HF_ISA", "sse")
    with pytest.raises(InputError, match="RESIDUAL_HF_ISA: 'sse' given, allowed are none, neon, .*, avx512_bf16, amx"):
        load()


def test_a_missing_library_costs_one_line(monkeypatch, lines):
    monkeypatch.delenv("RESIDUAL_HF_NATIVE", raising=False)
    monkeypatch.setattr(native, "EXTENSION_SUFFIXES", [".nowhere"])
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert load()[0] is None
    assert len(lines) == 1 and "not built" in lines[0] and "no C compiler was found (cc, gcc, clang)" in load()[1]
    assert "ARM" not in load()[1]
    monkeypatch.setattr(native.shutil, "which", {"gcc": "/usr/bin/gcc"}.get)  # a clone that was not built
    assert "/usr/bin/gcc has not built them" in load()[1] and "in a clone run `python setup.py build_ext" in load()[1]
    monkeypatch.setattr(native.platform, "machine", lambda: "riscv64")
    assert "this CPU is riscv64, neither x86-64 nor 64-bit ARM" in load()[1] and "compiler" not in load()[1]


@needs_kernels
def test_a_library_of_another_header_is_not_used(tmp_path, monkeypatch, lines):
    header = tmp_path / "native.h"
    header.write_text(structures.HEADER.read_text() + "void another_kernel(int rows);\n")
    monkeypatch.setattr(structures, "HEADER", header)
    assert load()[0] is None
    assert "another version" in lines[0]


@needs_kernels
def test_a_library_of_other_sources_is_not_used(tmp_path, monkeypatch, lines):
    monkeypatch.delenv("RESIDUAL_HF_NATIVE", raising=False)
    header = tmp_path / "native.h"
    header.write_bytes(structures.HEADER.read_bytes())
    monkeypatch.setattr(structures, "HEADER", header)
    library, _ = load()
    assert library is not None and not lines  # of a wheel, which has no sources
    (tmp_path / "softmax.c").touch()
    assert load()[0] is None
    assert len(lines) == 1
    for message in ("does not match the C sources", "setup.py build_ext --inplace --force"):
        assert message in lines[0]
    monkeypatch.setenv("RESIDUAL_HF_NATIVE", library._name)
    assert load()[0] is not None


@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed")
def test_a_library_of_the_sources_beside_it_is_current(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(structures, "HEADER", ROOT / "residual_hf" / "native" / "native.h")
    for extension in runpy.run_path("setup.py")["libraries"]()[1:]:
        (tmp_path / "library").write_text(f"sources {dict(extension.define_macros)['SOURCES']}.")
        assert structures.is_current(tmp_path / "library")


def test_structures_and_functions_are_those_of_the_header():
    assert structures.Norm._fields_ == [
        ("gain", c_void_p),
        ("bias", c_void_p),
        ("epsilon", c_float),
        ("centered", c_int32),
    ]
    fields = dict(structures.DotAttention._fields_)
    assert (fields["mask_strides"]._length_, fields["key_strides"]._length_) == (2, 3)
    assert dict(structures.Operation._fields_)["term"]._type_ is structures.Term
    assert dict(structures.WeightedSums._fields_)["grad_member"]._type_ is c_void_p
    assert structures.ENUMS["Type"] == [*DECODING_DTYPES]
    assert structures.CONSTANTS["BRANCH"] == -2
    library = MagicMock()
    structures.declare_functions(library)
    assert library.decode_scratch_size.argtypes == [c_void_p, c_void_p, c_int, c_int]
    assert (library.decode_scratch_size.restype, library.dropout_norm.restype) == (c_size_t, None)


@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed")
def test_the_package_builds_without_a_compiler(tmp_path):
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path, "--build-temp", tmp_path]
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, "CC": "/bin/false"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert not list(tmp_path.rglob("_kernels*"))


@needs_kernels
def test_a_damaged_library_is_not_used(tmp_path, monkeypatch, lines):
    (tmp_path / "kernels.so").touch()
    monkeypatch.setenv("RESIDUAL_HF_NATIVE", str(tmp_path / "kernels.so"))
    assert load()[0] is None
    assert "do not load" in lines[0]
