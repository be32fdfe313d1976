"""Whatever README, guides and examples tell a reader to type is run here, or checked as far as it goes without."""

import contextlib
import io
import re
import runpy
import shutil
import sys
import typing
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from support.documentation import (
    FENCE,
    ROOT,
    Block,
    Command,
    check_recipe,
    commands,
    complete_recipe,
    make_folder,
    merged,
    pages,
    read_blocks,
)
from support.models import OURS
from support.plain_models import LN
from support.random_models import assert_same, build, outputs_of
from support.slow import slow_except

import residual_hf
from residual_hf import ResidualForConditionalGeneration, cli
from residual_hf.base.yaml_files import load_yaml
from residual_hf.cli import main
from residual_hf.commands.arguments import parse_overrides
from residual_hf.model.connections import LN_MODES
from residual_hf.runs.recipe import Recipe, load_recipe
from residual_hf.runs.run import train

PAGES = pages()
RUN = [page for page in PAGES if not page.startswith("examples/")]  # those of examples need their corpora, and hours
QUICK = {"README.md", "docs/practitioner.md", "docs/trainer_user.md", "docs/translate.md"}
"""What users read first; the other pages run with the slow tests."""
parser = cache(cli.build_parser)
BLOCKS = [block for page in PAGES for block in read_blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "bash"]
ELSEWHERE = {  # how commands begin that are run in other places
    "residual-hf quickstart": ".ci/run",
    "python -m venv": ".ci/run",
    ". ": ".ci/run",
    "pip install": ".ci/run",
    "pytest": ".ci/run",
    "torchrun": "tests/training/test_distributed.py",
    "accelerate launch": "tests/training/test_distributed.py",
}


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documentation")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return make_folder(folder)


@pytest.fixture
def folder(written, tmp_path, monkeypatch):
    """Run each page in its own folder and process, so that nothing it registers remains."""
    shutil.copytree(written, tmp_path / "reader")
    monkeypatch.chdir(tmp_path / "reader")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    known = dict(LN_MODES)
    yield tmp_path / "reader"
    LN_MODES.clear()
    LN_MODES.update(known)


@pytest.mark.parametrize("page", slow_except(QUICK, RUN))
def test_page_runs_from_its_top_to_its_end(page, folder, monkeypatch):
    module = ModuleType("page")  # where dataclasses look for the names in annotations
    monkeypatch.setitem(sys.modules, "page", module)
    names = vars(module)
    for block in read_blocks(page):
        if block.reason is None and block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), names)
        elif block.reason is None and block.language == "bash":
            for command in commands(block):
                run(command, block)


@pytest.mark.parametrize("stream", [False, True])
def test_recipe_of_the_guide_runs_as_printed(folder, stream):
    """Only the model and the run are smaller."""
    overrides: dict[str, Any] = {"model.d_model": 16, "model.encoder_layers": 1, "model.decoder_layers": 1}
    overrides |= {
        "data.stream": stream,
        "training.max_updates": 2,
        "training.eval_every": 2,
        "output_dir": "runs/printed",
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(complete_recipe()), encoding="utf-8")
    recipe = load_recipe("recipe.yaml", overrides | {"decoding.max_length_a": 0.0, "decoding.max_length_b": 8})
    assert train(recipe)["updates"] == 2


def run(command: Command, block: Block) -> None:
    if command.words[0] != "residual-hf" or str(command).startswith(tuple(ELSEWHERE)):
        assert str(command).startswith(tuple(ELSEWHERE)) or has_test(command), f"{block}: nothing runs `{command}`"
        return
    if command.verb[0] == "train" and "--resume" not in command.verb:
        shutil.rmtree(output_of(command.verb), ignore_errors=True)  # a reader has not trained it yet
    given = Path(command.stdin).read_text(encoding="utf-8") if command.stdin else ""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given.encode()))))
        assert main(command.verb) == 0, f"{block}: {command}"
    if command.stdout:
        Path(command.stdout).write_text(printed.getvalue(), encoding="utf-8")


def output_of(arguments: list[str]) -> str:
    options = parser().parse_args(arguments)
    return options.output_dir or yaml.safe_load(options.recipe.read_text(encoding="utf-8"))["output_dir"]


def has_test(command: Command) -> bool:
    """Is it a script of examples/ that some test runs?"""
    if command.words[0] != "python" or not command.words[1].startswith("examples/"):
        return False
    script = "/".join(Path(command.words[1]).parts[1:])
    return any(script in file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_verbs_flags_and_overrides_exist(block, capsys):
    for command in commands(block):
        if command.verb is None:
            continue
        try:
            options = parser().parse_args(command.verb)
        except SystemExit:
            pytest.fail(f"{block}: {command}: {capsys.readouterr().err}")
        if options.verb == "train" and str(options.recipe).startswith("examples/"):
            load_recipe(ROOT / options.recipe, parse_overrides(options.set))


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_scripts_exist_and_know_their_flags(block):
    for command in commands(block):
        for word in command.words:
            if re.match(r"(examples|tests|docs|model_cards|residual_hf)/", word):
                assert (ROOT / word).exists(), f"{block}: there is no {word}"
        scripts = [ROOT / word for word in command.words if word.startswith("examples/") and word.endswith(".py")]
        for script in scripts:
            code = "".join(file.read_text(encoding="utf-8") for file in script.parent.glob("*.py"))
            for word in command.words[command.words.index(script.relative_to(ROOT).as_posix()) :]:
                names = f'"{word}"', f'"{word[2:].replace("-", "_")}"'  # an option, or the field that it is made of
                known = not word.startswith("--") or any(name in code for name in names)
                assert known, f"{block}: {script.name} has no {word}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.reason is not None], ids=str)
def test_block_that_is_not_run_says_why(block):
    assert len(block.reason.split()) > 2, f"{block}: <!-- not run: {block.reason} -->"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_yaml_is_a_recipe_or_a_part_of_one(block):
    content, complete = load_yaml(block.text), complete_recipe()
    if "task" in content:  # with data, languages and a model of its own
        complete = {name: complete[name] for name in ("output_dir", "tokenizer")}
    check_recipe(merged(complete, content))


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/papers.md"])  # test_docs_papers.py has it
def test_overrides_in_the_text_are_those_of_recipes(page):
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for code in re.findall(r"`([^`]*--set [^`]+)`", text):
        recipe, overrides = complete_recipe(), parse_overrides(re.findall(r"--set (\S+=\S+)", code))
        if "--import" in code:
            del overrides["model.ln_mode"]  # a mode of the file
        for name, value in overrides.items():
            for part in reversed(name.split(".")):
                value = {part: value}
            recipe = merged(recipe, value)
        check_recipe(recipe)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_names_its_language(page):
    fences = re.findall(r"^ *```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    directives = re.findall(r"^```\{", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * (len(read_blocks(page)) + len(directives)), (
        "what a block without one says is not checked"
    )


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert "://" in link or (ROOT / page).parent.joinpath(link).exists(), f"{page}: {link}"
    for path in re.findall(r"`((?:examples|tests|docs|model_cards)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), f"{page}: {path}"


def test_front_page_counts_the_modes():
    (others,) = re.findall(r"more than (\d+) others", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(OURS) - 7 > int(others) > len(OURS) - 17


def test_example_of_a_mode_computes_its_equation(monkeypatch):
    mode, plain = (block.text for block in read_blocks("CONTRIBUTING.md", "python"))
    monkeypatch.setitem(LN_MODES, "weighted_branch", LN_MODES["post_ln"])  # forgets it after the test
    monkeypatch.delitem(LN_MODES, "weighted_branch")
    module = ModuleType("contributed")
    monkeypatch.setitem(sys.modules, "contributed", module)
    exec(mode, vars(module))
    names = {"equation": lambda function: function, "LN": LN}
    exec(plain, names)
    built, parameters = build(ResidualForConditionalGeneration, "weighted_branch", {"scale": 0.3})
    assert_same(built, *outputs_of(built, parameters, partial(names["weighted_branch"], scale=0.3)))


@pytest.mark.slow
def test_example_of_a_mode_has_types(tmp_path):
    api = pytest.importorskip("mypy.api", reason="pip install '.[lint]'")
    (tmp_path / "contributed.py").write_text(read_blocks("CONTRIBUTING.md", "python")[0].text)
    printed, _, status = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(tmp_path / "contributed.py")])
    assert status == 0, printed


def test_recipe_reference_is_what_the_declarations_say():
    script = runpy.run_path(str(ROOT / "docs" / "recipe_fields.py"))
    page = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    assert page == script["render"](page), "update it: python docs/recipe_fields.py"
    assert re.findall(r"^\|.*\|\s*\|$", page, re.MULTILINE) == []  # each field has a meaning
    sections = set(re.findall(r"<!-- fields of ([\w.]+) -->", page))
    assert sections == {"recipe"} | {f"recipe.{name}" for name in nested_sections(Recipe)}


def nested_sections(cls: type) -> list[str]:
    """Dotted names of the sections in a settings class; the splits of the data share theirs."""
    found = []
    dataclass_in = runpy.run_path(str(ROOT / "docs" / "recipe_fields.py"))["dataclass_in"]
    for name, hint in typing.get_type_hints(cls).items():
        nested = dataclass_in(hint)
        if nested is not None and name not in ("valid", "test"):
            found += [name, *(f"{name}.{inner}" for inner in nested_sections(nested))]
    return found


def test_api_reference_documents_what_the_package_offers():
    """Every name that `import residual_hf` offers is on a page, and every name on a page exists."""
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md"))
    documented = [
        getattr(import_module(module), name)
        for module, name in re.findall(r"^\.\. auto\w+:: ([\w.]+)\.(\w+)$", text, re.MULTILINE)
    ]
    offered = [getattr(residual_hf, name) for name in residual_hf.__all__ if name != "__version__"]
    assert [value.__name__ for value in offered if value not in documented] == []
    assert [value.__name__ for value in documented if not value.__doc__] == []
