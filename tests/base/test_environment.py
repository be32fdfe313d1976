"""The command of a record."""

import sys

import pytest

from residual_hf.base.environment import command


@pytest.mark.parametrize(
    ("program", "typed"),
    [
        ("/venv/bin/residual-hf", "residual-hf"),
        ("/venv/lib/residual_hf_cli/__main__.py", "residual-hf"),  # torchrun -m residual_hf_cli
        ("/src/residual_hf/cli.py", "residual-hf"),
        ("examples/comparison/study.py", "study.py"),
    ],
)
def test_the_command_is_what_a_user_types(program, typed, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program, "train", "my recipe.yaml"])
    assert command() == f"{typed} train 'my recipe.yaml'"
