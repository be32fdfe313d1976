# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from residual_hf.catalogue import describe_mode, modes_table
from residual_hf.cli import main
from residual_hf.model.connections import LN_MODES

OURS = sorted(name for name, mode in LN_MODES.items() if mode.__module__.startswith("residual_hf."))
README = Path(__file__).parents[1] / "README.md"


def rows(table):
    return {match[1]: line for line in table.splitlines() if (match := re.match(r"\| `(\w+)`", line))}


@pytest.mark.parametrize("name", OURS)
def test_every_mode_declares_what_the_catalogue_shows(name):
    mode = LN_MODES[name]
    assert mode.__doc__ and mode.equation and mode.source
    text = describe_mode(name)
    assert mode.equation in text and mode.source in text
    for option in fields(mode.Options):
        assert f"{option.name}: " in text and option.metadata["help"] in text


def test_readme_shows_the_table_of_the_command():
    shown, printed = rows(README.read_text(encoding="utf-8")), rows(modes_table())
    assert set(OURS) <= set(printed)
    for name in OURS:
        assert shown.get(name) == printed[name], f"paste the output of `residual-hf modes` into README.md ({name})"


def test_command(capsys):
    assert main(["modes"]) == 0
    assert set(OURS) <= set(rows(capsys.readouterr().out))
    assert main(["modes", "resi_dual"]) == 0
    assert "dual_scale: float = 1.0 (> 0)" in capsys.readouterr().out
    assert main(["modes", "nothing"]) == 2
    assert "unknown ln_mode 'nothing'" in capsys.readouterr().err
