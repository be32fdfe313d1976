import shutil
import signal

import pytest
from support.recipes import SMALL, make_recipe

from residual_hf.runs import fitting
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


@pytest.fixture
def interrupted(monkeypatch):
    """Trains a recipe, interrupted after a number of updates."""

    def run(recipe, updates):
        class Interrupt(fitting.InterruptCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == updates:
                    signal.raise_signal(signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(fitting, "InterruptCallback", Interrupt)
            with pytest.raises(fitting.Interrupted, match=f"stopped at update {updates + 1}; use --resume"):
                train(recipe)

    return run
