# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The error for bad user input, and settings that raise it."""

from __future__ import annotations

from residual_hf.model.options import Settings


class InputError(ValueError):
    """Bad input; names the field or file, the value and what is allowed. The command line exits with 2."""


class InputSettings(Settings):
    """Base class of the settings in a recipe: a value that is not allowed is an `InputError`."""

    error = InputError
