# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The translations of a text that a person should look at first."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple

from residual_hf.data.glossary import Glossary

from .checks import suspicions
from .translator import Hypothesis


class Finding(NamedTuple):
    """A translated line, by its number."""

    number: int
    flags: list[str]
    score: float
    source: str
    translation: str

    @property
    def doubt(self) -> tuple[int, float]:
        """Higher for what needs a look more."""
        return len(self.flags), -self.score


class Review:
    """The `most` worst translations of a text: those with suspicions, then those with low scores."""

    def __init__(self, most: int, glossary: Glossary | None = None):
        self.most, self.glossary, self.lines, self.suspicious = most, glossary, 0, 0
        self.worst: list[Finding] = []

    def add(self, first: int, lines: Sequence[str], found: Sequence[Hypothesis]) -> None:
        """Look at the translations of lines that follow each other from the number `first`."""
        if not self.most:
            return
        new = [
            Finding(number, suspicions(line, best.text, self.glossary), best.score or 0.0, line, best.text)
            for number, (line, best) in enumerate(zip(lines, found, strict=True), start=first)
            if line.strip()
        ]
        self.lines += len(lines)
        self.suspicious += sum(bool(finding.flags) for finding in new)
        self.worst = nlargest(self.most, [*self.worst, *new], key=lambda finding: finding.doubt)

    def __str__(self) -> str:
        shown = [
            f"line {each.number}, score {each.score:.4f}{''.join(f', {flag}' for flag in each.flags)}\n"
            f"  {each.source.strip()}\n  {each.translation}"
            for each in self.worst
        ]
        found = f"{self.suspicious} of {self.lines} lines are suspicious"
        return "\n".join([f"{found}; look first at" if shown else found, *shown])
