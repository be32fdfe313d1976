"""pyproject.toml declares what the package imports; a guard against a missing library means an optional one."""

import ast
import re
import sys

import pytest
from support import ROOT

# where the module of a distribution has another name
NAMES = {
    "google": "protobuf",
    "yaml": "pyyaml",
    "prometheus_client": "prometheus-client",
    "markdown_it": "markdown-it-py",
    "detect_secrets": "detect-secrets",
    "translate": "translate-toolkit",
    "ruamel": "translate-toolkit",  # of its extra `yaml`
}
PROJECT = (ROOT / "pyproject.toml").read_text()


def distributions(content):
    return set(re.findall(r'"([\w-]+)', content))


(required,) = re.findall(r"^dependencies = \[\n(.*?)^\]", PROJECT, re.DOTALL | re.MULTILINE)  # no tomllib in 3.10
(extras,) = re.findall(r"^\[project.optional-dependencies\]\n(.*?)^\[", PROJECT, re.DOTALL | re.MULTILINE)
REQUIRED = distributions(required)
OPTIONAL = distributions(extras) | {"deepspeed"}


def imports(tree):
    """The top-level names of imported third-party modules."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top != "residual_hf":
                yield NAMES.get(top, top)


@pytest.fixture(scope="module")
def trees():
    return [ast.parse(path.read_text()) for path in (ROOT / "residual_hf").rglob("*.py")]


def test_every_import_is_declared_and_every_declaration_imported(trees):
    found = {name for tree in trees for name in imports(tree)}
    assert found - OPTIONAL <= REQUIRED
    assert found >= REQUIRED - {"jinja2"}  # huggingface_hub imports it for card templates


def test_required_libraries_are_not_guarded(trees):
    guarded = {
        name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and any("ImportError" in ast.dump(handler) for handler in node.handlers)
        for statement in node.body
        for name in imports(statement)
    }
    assert guarded <= OPTIONAL


def test_actions_are_pinned_by_hash_and_a_release_needs_the_tests():
    workflows = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    for name, text in workflows.items():
        for action in re.findall(r"uses: (?!\./)(.*)", text):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", action), f"{name}: {action}"
    assert "needs: [tests, wheels]" in workflows["release.yml"] and "workflow_call:" in workflows["tests.yml"]
