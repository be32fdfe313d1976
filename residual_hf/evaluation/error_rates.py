# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Word and character error rates of transcripts, by the library jiwer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import ClassVar

from residual_hf.base.errors import InputError, requires

from .metrics import Lines, check_lines

ERROR_RATES = ("wer", "cer")
_OTHERS = re.compile(r"[^\w\s']|_")


@dataclass(frozen=True)
class ErrorRate:
    """Substitutions, deletions and insertions per 100 words (`"wer"`) or characters (`"cer"`) of the references.

    Text is normalized before: lower case; characters other than letters, digits, apostrophes and spaces become spaces;
    spaces are single. The variant `"raw"` compares text as it is. Spaces between words count as characters.

    Raises:
        InputError: another variant, or jiwer is not installed.
    """

    unit: str
    variant: str = ""
    is_fast: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.variant not in ("", "raw"):
            given = f"{self.unit}:{self.variant}"
            raise InputError(f"evaluation.metrics: {given!r} given, must be {self.unit} or {self.unit}:raw")
        with requires("speech"):
            import jiwer  # noqa: F401

    @property
    def signature(self) -> str:
        """What the value depends on, like a signature of sacreBLEU."""
        text = "raw" if self.variant else "lower.letters-digits-apostrophes"
        return f"text:{text}|version:jiwer-{version('jiwer')}"

    def compute(self, predictions: Lines, references: Lines, sources: Lines = ()) -> dict[str, float]:
        """The rate by the name of its unit; sources are not used."""
        import jiwer

        check_lines("predictions", predictions, references)
        if not self.variant:
            predictions, references = ([normalized(line) for line in lines] for lines in (predictions, references))
        rate = jiwer.wer if self.unit == "wer" else jiwer.cer
        return {self.unit: 100 * rate(list(references), list(predictions))}


def normalized(text: str) -> str:
    """Lower case, without punctuation but apostrophes, with single spaces."""
    return " ".join(_OTHERS.sub(" ", text.lower()).split())
