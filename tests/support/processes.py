# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Programs in new Python processes, for tests that need one, and in this process, which is seconds faster."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import residual_hf

PATHS = [str(Path(residual_hf.__file__).parents[1]), str(Path(__file__).parents[1])]
"""Of the package and of `support`."""
QUIET = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


def run_python(*arguments: object, cwd: Path | None = None, check: bool = True, **environment: str):
    """Run Python with these arguments, the residual_hf of this process and no network; `check`: it must succeed."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), *PATHS]))  # other versions of libraries first
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **QUIET, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 or not check, done.stderr[-3000:]
    return done


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
