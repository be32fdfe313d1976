# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Names of modes, and files that register more of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from residual_hf.model.connections import LN_MODES

from .errors import InputError


def check_modes(names: Sequence[str]) -> None:
    """Raise `InputError` for a name that is not that of a mode."""
    unknown = [name for name in names if name not in LN_MODES]
    if unknown:
        raise InputError(f"--modes: unknown {', '.join(unknown)}. Known: {', '.join(sorted(LN_MODES))}")


def import_modes(path: Path) -> None:
    """Run a Python file that registers modes. Raises `InputError` for a file that cannot be run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"--import {path}: not a Python file")
    try:
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"--import {path}: {type(error).__name__}: {error}") from error
