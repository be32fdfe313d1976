"""Names of modes, and files that register more of them."""

from collections.abc import Sequence
from pathlib import Path

from residual_hf.model.connections import get_ln_mode
from residual_hf.model.self_contained import import_file

from .errors import input_errors


def check_modes(names: Sequence[str]) -> None:
    """Raise `InputError` for a name that is not that of a mode."""
    for name in names:
        with input_errors("--modes: ", ValueError):
            get_ln_mode(name)


def import_modes(path: Path) -> None:
    """Run a Python file that registers modes. Raises `InputError` for a file that cannot be run."""
    with input_errors(f"--import {path}: ", Exception, named=True):  # of any code
        import_file(path, path.stem)
