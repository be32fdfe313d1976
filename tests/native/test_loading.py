# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.native_library import isa, needs_kernels  # noqa: F401

from residual_hf import native
from residual_hf.base.errors import InputError

ROOT = Path(__file__).parents[2]
load = native._load.__wrapped__  # what the first use of the library does


def test_kernels_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("RESIDUAL_HF_NATIVE", "0")
    assert load() == (None, "none")


@needs_kernels
def test_instruction_set_can_be_lowered(monkeypatch, isa):  # noqa: F811
    monkeypatch.setenv("RESIDUAL_HF_ISA", isa)
    assert load()[1] == isa
    monkeypatch.setenv("RESIDUAL_HF_ISA", "none")
    assert load() == (None, "none")


def test_unknown_instruction_set(monkeypatch):
    monkeypatch.setenv("RESIDUAL_HF_ISA", "avx2")
    with pytest.raises(InputError, match="RESIDUAL_HF_ISA: 'avx2' given, allowed are none, avx512, avx512_bf16, amx"):
        load()


def test_a_missing_library_costs_one_line(monkeypatch):
    lines = []
    monkeypatch.delenv("RESIDUAL_HF_NATIVE", raising=False)
    monkeypatch.setattr(native, "EXTENSION_SUFFIXES", [".nowhere"])
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(native.logger, "warning_once", lines.append)
    assert load() == (None, "none")
    assert len(lines) == 1 and "not built" in lines[0]


@needs_kernels
def test_a_library_of_another_version_is_not_used(monkeypatch):
    lines = []
    monkeypatch.setattr(native, "interface_version", lambda: 1)
    monkeypatch.setattr(native.logger, "warning_once", lines.append)
    assert load() == (None, "none")
    assert "another version" in lines[0]


@pytest.mark.skipif(importlib.util.find_spec("setuptools") is None, reason="setuptools is not installed")
def test_the_package_builds_without_a_compiler(tmp_path):
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path, "--build-temp", tmp_path]
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, "CC": "/bin/false"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert not list(tmp_path.rglob("_kernels*"))


@needs_kernels
def test_a_damaged_library_is_not_used(tmp_path, monkeypatch):
    lines = []
    (tmp_path / "kernels.so").touch()
    monkeypatch.setenv("RESIDUAL_HF_NATIVE", str(tmp_path / "kernels.so"))
    monkeypatch.setattr(native.logger, "warning_once", lines.append)
    assert load() == (None, "none")
    assert "do not load" in lines[0]
