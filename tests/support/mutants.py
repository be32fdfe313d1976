"""Mutation testing of the modes: which small faults in their code would the tests of the model find?

    PYTHONPATH=.:tests python -m support.mutants  # all files of modes: 20 minutes on 2 idle cores
    PYTHONPATH=.:tests python -m support.mutants --every 7  # a sample, 4 minutes
    PYTHONPATH=.:tests python -m support.mutants residual_hf/model/modes_gpas.py  # a file
    PYTHONPATH=.:tests python -m support.mutants residual_hf/model/modes_gpas.py:52  # the mutants of a line

A mutant is a file with one change: another operator, a term, statement or override dropped, a constant plus 1, a
condition negated, arguments or members swapped, a norm or function left out, another norm or counter of layers.
For each, a fork of a process that has imported the libraries imports the package with the mutant and runs, up to the
first failure, the tests of `FAST` for the modes in the file, and then `TESTS`. The output is a line for each survivor,

    residual_hf/model/modes_gpas.py:48: GPAS.joining_scales: 1.0  ->  2.0

and the share that was killed, for each file and for all. A survivor is a missing assertion, or it computes the same:
then it belongs in `support/equivalent_mutants.txt` with the reason. The exit status is 1 if another mutant survived.
Needs `os.fork`.
"""

import argparse
import ast
import copy
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from itertools import product
from pathlib import Path
from types import CodeType

import pytest

from support.mutations import mutations

ROOT = Path(__file__).parent.parent.parent
MODEL = Path("residual_hf/model")
FILES = ("connections.py", "ln_modes.py", "modes_*.py")
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
FAST = ("test_equations", "test_mode_constants")
TESTS = [
    "tests/model/test_connections.py",
    "tests/model/test_initialization.py",
    "tests/model/test_single_stack_constants.py",
    "tests/model/test_mode_invariants.py",
    "tests/conversion/test_fold.py::test_the_list_of_modes",
    "tests/conversion/test_change_mode.py::test_every_declared_mode_is_among_them",
]
LIBRARIES = (  # that are slow to import; our own code is imported in each fork
    *("torch._dynamo", "transformers.cache_utils", "transformers.generation", "transformers.masking_utils"),
    *("transformers.modeling_utils", "transformers.pipelines", "transformers.trainer", "datasets"),
)
SECONDS = 300  # of processor time, after which a mutant counts as killed


@dataclass
class Mutant:
    file: str
    line: int
    text: str  # before  ->  after
    code: CodeType

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"

    @property
    def key(self) -> str:
        """How `EQUIVALENT` names it: lines move."""
        return f"{Path(self.file).name}: {self.text}"


def mutants_of(file: str, line: int | None = None) -> Iterator[Mutant]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for at, text in mutations(tree):
        if line in (None, at):
            yield Mutant(file, at, text, compile(copy.deepcopy(tree), str(ROOT / file), "exec", dont_inherit=True))


def modes_of(file: str) -> list[str]:
    """The modes that a file registers, or some that use all parts of the protocol."""
    found = re.findall(r'@register_ln_mode\("(\w+)"\)', (ROOT / file).read_text(encoding="utf-8"))
    return found or ["admin", "b2t", "deep_norm_gpas", "fixup", "realformer", "resi_dual", "sandwich_ln"]


def cases(test: Callable) -> Iterator[dict]:
    """The arguments of a test, of all combinations of its `parametrize`."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for values in product(*(mark.args[1] for mark in marks)):
        arguments = {}
        for mark, value in zip(marks, values, strict=True):
            names = mark.args[0]
            arguments.update([(names, value)] if isinstance(names, str) else zip(names, value, strict=True))
        yield arguments


def check(modes: list[str]) -> None:
    """Call the tests of `FAST` for these modes: starting pytest would take longer."""
    sys.path.insert(0, str(ROOT / "tests" / "model"))
    for name in FAST:
        for test in [value for key, value in vars(import_module(name)).items() if key.startswith("test_")]:
            for arguments in cases(test):
                if arguments.get("mode", modes[0]) in modes:
                    test(**arguments)


def start(mutant: Mutant, tests: list[str]) -> int:
    """A process that exits with 0 if all tests pass with the mutant."""
    pid = os.fork()
    if pid:
        return pid
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    module, get_code = mutant.file.removesuffix(".py").replace("/", "."), SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: mutant.code if name == module else get_code(self, name)
    status = 1
    try:
        check(modes_of(mutant.file))
        status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-n", "0", *tests])) if tests else 0
    finally:
        os._exit(status)


def run(mutants: list[Mutant], jobs: int, tests: list[str]) -> list[Mutant]:
    """The survivors."""
    running: dict[int, Mutant] = {}
    survivors = []

    def wait_for_one() -> None:
        pid, status = os.wait()
        mutant = running.pop(pid)
        if status == 0:
            survivors.append(mutant)

    for mutant in mutants:
        if len(running) == jobs:
            wait_for_one()
        running[start(mutant, tests)] = mutant
    while running:
        wait_for_one()
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("places", nargs="*", metavar="FILE[:LINE]", help="default: all files of modes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="a sample: every N-th mutant of a file")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="after those of equations and constants")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    files = [str(MODEL / path.name) for pattern in FILES for path in sorted((ROOT / MODEL).glob(pattern))]
    places = [place.partition(":") for place in arguments.places or files]
    equivalent = {line.split("  #")[0] for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()}
    for name in LIBRARIES:
        import_module(name)
    first = places[0][0]
    unchanged = Mutant(first, 0, "no change", compile((ROOT / first).read_text(encoding="utf-8"), first, "exec"))
    if not run([unchanged], 1, arguments.tests):
        sys.exit("the tests fail without a mutant")
    total = alive = 0
    for file, _, line in places:
        found = [mutant for mutant in mutants_of(file, int(line) if line else None) if mutant.key not in equivalent]
        mutants = found[:: arguments.every]
        survivors = run(mutants, arguments.jobs, arguments.tests)
        for mutant in survivors:
            print(mutant)
        report(file, len(mutants), len(survivors))
        total, alive = total + len(mutants), alive + len(survivors)
    report("all files", total, alive)
    return int(alive > 0)


def report(what: str, total: int, alive: int) -> None:
    print(f"{what}: {total - alive} of {total} killed, {(total - alive) / total:.1%}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
