"""Scripts of `examples/` on small data."""

import importlib.util
import sys

from support.processes import run_here
from support.tiny_translator import SENTENCES

from . import ROOT

GERMAN, ENGLISH = SENTENCES[::2], SENTENCES[1::2]


def run(script, *arguments):
    """What a script prints."""
    done = run_here(ROOT / "examples" / script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(script, *arguments):
    """What a script says of arguments that it refuses."""
    done = run_here(ROOT / "examples" / script, *arguments)
    assert done.returncode == 2, done.stderr
    return done.stderr


def as_module(script, monkeypatch):
    spec = importlib.util.spec_from_file_location(
        script.replace("/", "_").removesuffix(".py"), ROOT / "examples" / script
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def statistics(values):
    """Mean and range."""
    return sum(values) / len(values), min(values), max(values)


def cells(output, mode):
    """What the line of a mode says in a table."""
    line = next(line for line in output.splitlines() if line.startswith(f"| `{mode}` |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]
