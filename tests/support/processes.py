# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Programs in new Python processes, for tests that need one, and in this process, which is seconds faster."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from threading import Lock

import psutil
import pytest

import residual_hf

PATHS = [str(Path(residual_hf.__file__).parents[1]), str(Path(__file__).parents[1])]
"""Of the package and of `support`."""
ONE_AT_A_TIME = Lock()
QUIET = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


def descendants(process: subprocess.Popen, name: str) -> set[int]:
    """The running processes below one whose command line contains `name`."""
    found = set()
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # has ended
            found |= {child.pid} if any(name in part for part in child.cmdline()) else set()
    return found


def with_paths(environment: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *PATHS]))  # other versions of libraries first
    return {**os.environ, "PYTHONPATH": path, **QUIET, **environment}


def run_python(*arguments: object, cwd: Path | None = None, check: bool = True, **environment: str):
    """Run Python with these arguments, the residual_hf of this process and no network; `check`: it must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=with_paths(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 or not check, done.stderr[-3000:]
    return done


@cache
def template() -> subprocess.Popen:
    """The process that programs are copies of; it ends with this one, whose pipe it reads."""
    command = [sys.executable, str(Path(__file__).with_name("template.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env={**os.environ, **QUIET}, text=True, **pipes)


def run_forked(*arguments: object, cwd: Path | None = None, check: bool = True, **environment: str):
    """As `run_python`, in a copy of a process that has PyTorch loaded: three seconds faster, and one after another."""
    with tempfile.NamedTemporaryFile("r+") as output, tempfile.NamedTemporaryFile("r+") as errors:
        request = {
            "arguments": [*map(str, arguments)],
            "cwd": str(cwd or Path.cwd()),
            "environment": with_paths(environment),
            "output": output.name,
            "errors": errors.name,
        }
        with ONE_AT_A_TIME:
            print(json.dumps(request), file=template().stdin, flush=True)
            code = int(template().stdout.readline())
        done = subprocess.CompletedProcess(request["arguments"], code, output.read(), errors.read())
    assert done.returncode == 0 or not check, done.stderr[-3000:]
    return done


def fork_programs(patch: pytest.MonkeyPatch):
    """Let `subprocess.run([sys.executable, ...])` do what `run_forked` does."""

    def run(command, check=False, **options):
        assert command[0] == sys.executable
        return run_forked(*command[1:], cwd=options.get("cwd"), check=check)

    patch.setattr(subprocess, "run", run)


def run_here(script: Path, *arguments: object):
    """Run a script with these arguments in this process."""
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        patch.syspath_prepend(str(script.parent))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as stop:
            code = stop.code or 0
    return subprocess.CompletedProcess(sys.argv, code, output.getvalue(), errors.getvalue())
