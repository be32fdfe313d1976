"""The layers, their picture, and what a release says of itself in several places."""

import re
import runpy
from pathlib import Path

import pytest
import yaml
from support import ROOT

from residual_hf import __version__


@pytest.fixture(scope="module")
def drawing():
    pytest.importorskip("grimp", reason="comes with import-linter: pip install '.[lint]'")
    return runpy.run_path(str(ROOT / "docs" / "architecture.py"))


def test_the_picture_shows_the_imports(drawing):
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert page == drawing["render"](page), "update it: python docs/architecture.py"


def test_every_import_points_down(drawing):
    layer = {name: number for number, row in enumerate(drawing["layers"]()) for name in row}
    upward = [
        f"{above} -> {below}"
        for above, imported in drawing["folder_imports"]().items()
        for below in imported
        if layer[below] <= layer[above]
    ]
    assert upward == []


def test_model_code_imports_only_itself():
    """Transformers copies these files next to a checkpoint, and follows `from .x import`."""
    for path in (ROOT / "residual_hf" / "model").glob("*.py"):
        assert not re.search(
            r"residual_hf\.|from \.\.", re.sub(r'""".*?"""|`[^`]*`', "", path.read_text(), flags=re.S)
        ), path


def test_every_folder_and_way_in_the_page_exists(drawing):
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = {name for row in drawing["layers"]() for name in row}
    listed = set(re.findall(r"^\| .*", page.partition("From the top:")[2].partition("\n\n`model/`")[0], re.MULTILINE))
    named = {Path(name).stem for row in listed for name in re.findall(r"`([\w.]+)/?`", row.split("|")[1])}
    assert folders - {"checkpoint_checks"} <= named
    for path in re.findall(r"`((?:\w+/)+[\w*]*(?:\.\w+)?)`", page):
        roots = (ROOT, ROOT / "residual_hf")
        assert any(root.joinpath(path).exists() or list(root.glob(path)) for root in roots), path


def test_a_release_has_one_version():
    release = __version__.partition(".dev")[0]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == release
    dated = re.search(
        r"^## \[(\S+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert dated and dated[1] == release
