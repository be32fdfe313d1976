# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Names of languages, for people and of language detectors."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from babel import Locale, UnknownLocaleError


def language_name(code: str) -> str:
    """English name of a language code, or the code."""
    try:
        return Locale.parse(code.replace("-", "_")).get_display_name("en") or code
    except (UnknownLocaleError, ValueError):
        return code


@lru_cache
def names_of(code: str) -> frozenset[str]:
    """The English name of a language code, and the name in the language itself, in lower case."""
    try:
        locale = Locale.parse(re.split("[-_]", code)[0])
        return frozenset(str(locale.get_language_name(language)).casefold() for language in ("en", None))
    except (UnknownLocaleError, ValueError):
        return frozenset()


@lru_cache
def code_named(name: str) -> str | None:
    """The code of a language with this English name, or None."""
    found = (code for code, known in Locale("en").languages.items() if known.casefold() == name.strip().casefold())
    return min(found, key=len, default=None)


def detected_as(code: str, labels: Collection[str]) -> str:
    """The label for a language among those of a detector: `pt` for `pt-BR` and `por_Latn`."""
    language = re.split("[-_]", code)[0].lower()
    try:
        return language if language in labels else Locale.parse(language).language
    except (UnknownLocaleError, ValueError):
        return language


def language_tag(code: str) -> str:
    """A code as documents name it (BCP 47): `de-DE` for `de_DE`, `zh-Hans` for `zho_Hans`, `en` for `en_XX`."""
    language, *more = re.split("[-_]", code)
    return "-".join([detected_as(language, ()), *(part for part in more if part not in ("Latn", "XX"))])
