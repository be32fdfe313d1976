"""Programs in new Python processes, for tests that need one, and in this process, which is seconds faster."""

import contextlib
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
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
VERB = """
import os, sys
from residual_hf.cli import main
print(os.getpid(), file=open("pid", "w"), flush=True)
sys.exit(main(sys.argv[1:]))
"""
"""The program `residual-hf`, which writes the number of its process into the file `pid`."""


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
    another_order_of_sets = {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    return subprocess.Popen(command, env={**os.environ, **QUIET, **another_order_of_sets}, text=True, **pipes)


def free_port() -> str:
    with socket.socket() as free:  # tests run in parallel
        free.bind(("", 0))
        return str(free.getsockname()[1])


def run_forked(
    *arguments: object, cwd: Path | None = None, check: bool = True, processes: int = 1, **environment: str
):
    """As `run_python`, in a copy of a process that has PyTorch loaded: three seconds faster, and one after another.

    Sets have another order there than here. Several `processes` find each other as those that `torchrun` starts.
    """
    if not hasattr(os, "fork") and processes == 1:
        return run_python(*arguments, cwd=cwd, check=check, **environment)
    environments = [with_paths(environment)]
    if processes > 1:
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(processes)}
        environments = [environments[0] | world | {"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(processes)]
    with tempfile.NamedTemporaryFile("r+") as output, tempfile.NamedTemporaryFile("r+") as errors:
        request = {
            "arguments": [*map(str, arguments)],
            "cwd": str(cwd or Path.cwd()),
            "environments": environments,
            "output": output.name,
            "errors": errors.name,
        }
        with ONE_AT_A_TIME:
            print(json.dumps(request), file=template().stdin, flush=True)
            code = int(template().stdout.readline())
        done = subprocess.CompletedProcess(request["arguments"], code, output.read(), errors.read())
    assert done.returncode == 0 or not check, done.stderr[-3000:]
    return done


def run_without_the_package(script: str, *arguments: object, cwd: Path, **environment: str):
    """As `run_forked`, code that cannot import residual_hf, also where it is installed; its model code is in `cwd`."""
    script = 'import sys\nsys.modules["residual_hf"] = None\n' + script
    return run_forked("-c", script, *arguments, cwd=cwd, HF_MODULES_CACHE=str(cwd / "modules"), **environment)


def wait_for(file: Path, program: Future) -> str:
    """What a program writes into a file, once it has."""
    while not (file.exists() and file.read_text()):
        assert not program.done(), program.result().stderr
        time.sleep(0.01)
    return file.read_text()


def replace_run(patch: pytest.MonkeyPatch, start: list[str], instead: Callable):
    """Let `subprocess.run` of the commands that start so do what `instead` does with their other words."""
    elsewhere = subprocess.run

    def run(command, **options):
        if command[: len(start)] != start:
            return elsewhere(command, **options)
        return instead(*command[len(start) :], **options)

    patch.setattr(subprocess, "run", run)


def run_programs_here(patch: pytest.MonkeyPatch):
    """Let `subprocess.run([sys.executable, ...])` run the program in this process, one after another."""

    def run(program, *arguments, **options):
        with ONE_AT_A_TIME:
            return run_here(Path(program), *arguments)

    replace_run(patch, [sys.executable], run)


def run_programs_forked(patch: pytest.MonkeyPatch):
    """Let `subprocess.run([sys.executable, ...])` do what `run_forked` does, and print what the program prints."""
    replace_run(patch, [sys.executable], lambda *command, **options: print(run_forked(*command, **options).stdout))


def run_here(program: Path | str, *arguments: object):
    """Run a script or the module of this name with these arguments in this process."""
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        patch.setattr(sys, "argv", [str(program), *map(str, arguments)])
        try:
            if isinstance(program, Path):
                patch.syspath_prepend(str(program.parent))
                runpy.run_path(str(program), run_name="__main__")
            else:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            code = stop.code or 0
    return subprocess.CompletedProcess(sys.argv, code, output.getvalue(), errors.getvalue())
