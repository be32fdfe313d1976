import shutil

import pytest
from support.recipes import SMALL, make_recipe

from residual_hf.runs.run import train


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The recipe and the folder of a finished run and its corpora, which tests do not change."""
    folder = tmp_path_factory.mktemp("finished")
    recipe = make_recipe(folder, **SMALL)
    train(recipe)
    return recipe, folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run and its corpora, with its recipe."""
    shutil.copytree(finished[1], tmp_path / "copy")
    return make_recipe(tmp_path / "copy", **SMALL), tmp_path / "copy" / "run"
