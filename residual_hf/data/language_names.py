# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Names of languages, for people and of language detectors."""

from __future__ import annotations

import re
from collections.abc import Collection

from babel import Locale, UnknownLocaleError


def language_name(code: str) -> str:
    """English name of a language code, or the code."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


def detected_as(code: str, labels: Collection[str]) -> str:
    """The label for a language among those of a detector: `pt` for `pt-BR` and `por_Latn`."""
    language = re.split("[-_]", code)[0].lower()
    try:
        return language if language in labels else Locale.parse(language).language
    except (UnknownLocaleError, ValueError):
        return language
