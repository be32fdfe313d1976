# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The one error that means "what you gave cannot be used", as opposed to a fault of ours."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input of a user; names the field or file, the value and what is allowed. The command line exits with 2."""
