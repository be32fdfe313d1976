# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Names of languages for people."""

from __future__ import annotations

from babel import Locale, UnknownLocaleError


def language_name(code: str) -> str:
    """English name of a language code, or the code."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code
