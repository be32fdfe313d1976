# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""All residual connections of the package. Importing this module registers those of each file `modes_*.py`.

In a checkpoint it names the files, see `self_contained`.
"""

from importlib import import_module
from pathlib import Path

from .ln_modes import ResiDual  # noqa: F401

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("modes_*.py"))

for module in MODULES:
    import_module(f".{module}", __package__)
