"""Every item in `docs/papers/` has a command that exists, or a reason, and no answer without a measurement."""

import argparse
import contextlib
import io
import re
import runpy
import shlex
import sys
from functools import cache

import pytest
from all_figures import find_figures
from support.documentation import ROOT

from residual_hf import cli
from residual_hf.base.modes import check_modes
from residual_hf.commands.arguments import parse_overrides
from residual_hf.runs.recipe import load_recipe

PAGE = runpy.run_path(str(ROOT / "docs" / "papers.py"))
PAPERS = PAGE["read_papers"]()
PLACE = re.compile(r"`((?:docs|examples|tests)/[\w./-]+)`")


class Parsed(Exception):
    """A script has read its arguments."""


@pytest.fixture(params=PAPERS)
def paper(request):
    return PAPERS[request.param]


def test_every_paper_of_the_page_exists():
    assert {path.stem for path in (ROOT / "docs" / "papers").glob("*")} == {*PAPERS}
    assert all(set(paper) == {"title", "url", "items"} for paper in PAPERS.values())


def test_items_of_a_paper_are_complete(paper):
    assert [f"{item['name']}: {fault}" for item in paper["items"] for fault in faults(item)] == []


def faults(item):
    """What is wrong with an item."""
    places = PLACE.findall(item["measured"])
    if not PAGE["REQUIRED"] <= set(item) <= PAGE["FIELDS"]:
        yield f"has the fields {sorted(item)}"
    if ("command" in item) == ("reason" in item):
        yield "must have a command, or a reason why there is none"
    if item["agrees"] not in PAGE["ANSWERS"]:
        yield f"agrees: {item['agrees']}"
    if item["measured"] == PAGE["OPEN"] and item["agrees"] != "open":
        yield "an answer needs a measurement"
    if item["measured"] != PAGE["OPEN"] and not places:
        yield "must say where the measurement is: the path of a page, file or test"
    pictures = [f"docs/{item['picture']}"] if "picture" in item else []
    yield from (f"there is no {path}" for path in (*places, *pictures) if not (ROOT / path).exists())


def test_items_of_a_paper_have_different_names(paper):
    names = [item["name"] for item in paper["items"]]
    assert sorted({*names}) == sorted(names)


def test_commands_of_a_paper_exist(paper, monkeypatch):
    monkeypatch.chdir(ROOT)
    for words in commands(paper):
        check_command(words)


def commands(paper):
    """The commands of a paper, as words."""
    return [tuple(shlex.split(line)) for item in paper["items"] for line in PAGE["command_lines"](item)]


parser = cache(cli.build_parser)


@cache
def check_command(words):
    """A command of the package, a script of `examples/` or tests: its arguments, recipes, modes and figures exist."""
    line = shlex.join(words)
    printed = io.StringIO()
    start = next((i for i, word in enumerate(words) if word in ("residual-hf", "residual_hf_cli")), None)
    try:
        with contextlib.redirect_stderr(printed):
            if start is not None:
                parser().parse_args(words[start + 1 :])
            elif words[0] == "python":
                options = parse_arguments(words[1:])
                if words[1] == "examples/papers/figures.py":
                    find_figures(options.names)
            else:
                assert words[0] == "pytest", f"{line}: neither residual-hf, nor python, nor pytest"
                assert all((ROOT / word.split("::")[0]).exists() for word in words[1:] if "/" in word), line
    except SystemExit:
        pytest.fail(f"{line}: {printed.getvalue()}")
    check_modes([mode.split()[0] for mode in option(words, "--modes") if mode != "all"])
    recipe = next((word for word in words if re.fullmatch(r"examples/.*\.yaml", word)), None)
    if recipe is not None:
        loaded = load_recipe(ROOT / recipe, parse_overrides(option(words, "--set")))
        if loaded.starts_from is None:
            loaded.build_config()


def test_runs_of_different_commands_have_different_folders():
    """`train` refuses a folder that has a run, and `study.py` one that has a run of another recipe."""
    folders = {}
    for words in (words for paper in PAPERS.values() for words in commands(paper)):
        if "train" in words[:2]:
            own = option(words, "--output-dir") or [str(load_recipe(ROOT / words[2]).output_dir)]
            folders.setdefault(own[0], set()).add(words)
        elif words[1:2] == ("examples/comparison/study.py",):
            folders.setdefault(*option(words, "--output-dir"), set()).add((words[2], *option(words, "--set")))
    assert {folder: runs for folder, runs in folders.items() if len(runs) > 1} == {}


def test_pytest_commands_of_a_paper_select_tests(paper, request):
    """Those among the tests of this process: none is slow or misspelt."""
    collected = [item.nodeid.lower() for item in request.session.items]
    for words in commands(paper):
        files = [word for word in words if word.startswith("tests/")]
        own = [[node for node in collected if node.startswith(file)] for file in files]
        names = " ".join(option(words, "-k")).split(" or ")
        if words[0] == "pytest" and all(own):
            assert all(any(name in node for nodes in own for node in nodes) for name in names), words


def option(words, name):
    """The values of an option, of all its occurrences."""
    found, current = [], None
    for word in words:
        if word.startswith("-"):
            current = word
        elif current == name:
            found.append(word)
    return found


def parse_arguments(words):
    """What a script reads from its arguments; it is run up to this point."""

    def parse(self, *arguments, parse=argparse.ArgumentParser.parse_args):
        raise Parsed(parse(self, *arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(sys, "argv", list(words))
        patch.syspath_prepend(str((ROOT / words[0]).parent))
        with pytest.raises(Parsed) as parsed:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    return parsed.value.args[0]


def test_page_is_up_to_date():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    assert page == PAGE["render"](PAPERS), "update it: python docs/papers.py"
    counts = re.search(r"\d+ items: .*(?=\.)", page).group()
    assert counts in (ROOT / "README.md").read_text(encoding="utf-8")
