# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Access tokens, keys and passwords in text.

They are found by the detectors of `detect-secrets`, and by patterns for those that it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open

from residual_hf.base.files import read_json

SECRET_NAME = r"(?i:[\w-]*(?:(?:api|access|auth|secret|private|hub|hf)[_-]?(?:key|token)|secret|passw(?:or)?d))"
NAMED = re.compile(
    rf"""(?<![\w-])({SECRET_NAME}["']?\s*[=:]\s*|--{SECRET_NAME}\s+)(?:"[^"\n]*"|'[^'\n]*'|[^\s'",}}&]+)"""
)
ASSIGNED = re.compile(  # not the prose of a translation: a name with `_` or a sign of equality, a value with a digit
    rf"""(?<![\w-])(?:{SECRET_NAME}["']?\s*=|(?=\w*_){SECRET_NAME}["']?\s*:)\s*["']?(?=[^\s"']*\d)[\w.~+/=-]{{8,}}"""
)
PATTERNS = {
    "Hugging Face Token": r"\b(?:hf|api_org)_(?:[A-Za-z0-9]{20,}|(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,})",
    "GitHub or GitLab Token": r"\b(?:gh[oprsu]|github_pat|glpat)[_-][\w-]{8,}",
    "Slack Token": r"\bxox[a-z]-[\w-]{8,}",
    "OpenAI or Anthropic Key": r"\bsk-(?=\w*\d)\w{16,}[\w-]*|\bsk-(?:proj|ant|svcacct)-[\w-]{16,}",
    "AWS Access Key": r"\b(?:AKIA|ASIA)(?=\w*\d)\w{12,}",
    "Google Key": r"\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|\bGOCSPX-[\w-]{20,}",
    "JSON Web Token": r"\beyJ[\w-]{10,}\.[\w.-]+",
    "Private Key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END[A-Z -]*|\Z)",
    "Bearer Token": r"(?<=Bearer )(?=\S*\d)[\w.~+/=-]{16,}",
}
FORMS = {kind: re.compile(pattern) for kind, pattern in PATTERNS.items()}
NOT_USED = ("IPPublicDetector", "ArtifactoryDetector")  # whose tokens look like words in capitals
MINIMUM = 16  # characters of a secret


@cache
def detectors() -> list[Any]:
    """The detectors of `detect-secrets` that know the form of a token; the others guess by entropy or names."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class  # takes a second
    from detect_secrets.plugins.base import RegexBasedDetector

    classes: Iterable[Any] = get_mapping_from_secret_type_to_class().values()
    return [cls() for cls in classes if issubclass(cls, RegexBasedDetector) and cls.__name__ not in NOT_USED]


def secrets_in(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the text of each secret in a text, without values of fields with a name like `api_key`."""
    if len(text) < MINIMUM:
        return
    for kind, pattern in FORMS.items():
        for match in pattern.finditer(text):
            yield kind, match[0]
    for line in text.splitlines():
        for detector in detectors() if len(line) >= MINIMUM else ():
            for secret in detector.analyze_string(line):
                yield detector.secret_type, secret


def first_secret(path: Path) -> tuple[str, str] | None:
    """The field or line of a file with a secret, and the kind of it.

    JSON files, the metadata of safetensors files and other files as lines of text are searched.
    """
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            places = _fields(file.metadata() or {}, "metadata")
    elif path.suffix == ".json":
        places = _fields(read_json(path), "")
    else:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
        places = ((f"line {number}", line, False) for number, line in enumerate(lines, start=1))
    for place, text, named in places:
        kind = "by its name" if named or ASSIGNED.search(text) else None
        if kind := next((kind for kind, _ in secrets_in(text)), kind):
            return place, kind
    return None


def _fields(value: Any, place: str) -> Iterator[tuple[str, str, bool]]:
    """The dotted field of each text in nested JSON values, the text, and whether it is named as a secret."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        inner = f"{place}.{name}" if place else str(name)
        yield f"a name in {place}", str(name), False
        if isinstance(entry, str):
            yield inner, entry, bool(re.fullmatch(SECRET_NAME, str(name)) and entry.strip("*"))
        yield from _fields(entry, inner)
