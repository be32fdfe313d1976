"""The notebooks of examples/ run from their first cell to their last."""

import json
import re
from typing import Any

import matplotlib
import pytest
from support import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"


def run(name: str, **constants: int) -> dict[str, Any]:
    """The names after the last cell; `constants` replace values that the notebook assigns together."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"], start=1):
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "saved without outputs"
            text = "".join(cell["source"])
            if constants and number == 2:
                assignment = f"{', '.join(constants)} = {', '.join(map(str, constants.values()))}"
                text, count = re.subn(rf"^{', '.join(constants)} = .*$", assignment, text)
                assert count == 1
            exec(compile(text, f"{name}, cell {number}", "exec"), names)
    return names


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_notebook_has_a_test():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {"translate_your_own", "does_not_train"}


@pytest.mark.slow
def test_translate_your_own(capsys):
    names = run("translate_your_own.ipynb")
    assert names["metrics"]["updates"] == 150 and len(names["translations"]) == 5
    assert "on the test set" in capsys.readouterr().out


@pytest.mark.slow
def test_does_not_train(small_generated_corpus):
    """Smaller than there; the gradients of 8 layers already differ."""
    matplotlib.use("Agg")
    names = run("does_not_train.ipynb", LAYERS=8, WIDTH=16, UPDATES=1)
    ratios = names["profiles"]["first / last gradient"]
    assert ratios["post_ln"] < 0.5 < ratios["pre_ln"]
    assert set(names["final"]) == set(names["modes"])
