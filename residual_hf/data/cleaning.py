# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What of a parallel corpus is not worth training on, and a report of what was left out and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import regex

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.settings import CleaningSettings, letters_of
from residual_hf.errors import InputError

EXAMPLES = 5
LETTER = regex.compile(r"\p{L}")
Pair = tuple[str, str]


@dataclass
class CleaningReport:
    """How many pairs were left out for which reason (the first that holds), with line numbers of some of them."""

    pairs: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[int]] = field(default_factory=dict)

    def count(self, reason: str | None) -> None:
        self.pairs += 1
        if reason is None:
            self.kept += 1
            return
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        lines = self.examples.setdefault(reason, [])
        if len(lines) < EXAMPLES:
            lines.append(self.pairs)

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items(), key=lambda x: -x[1]))
        return f"kept {self.kept} of {self.pairs} pairs" + (f"; left out: {reasons}" if reasons else "")


def clean(pairs: Iterable[Pair], settings: CleaningSettings, report: CleaningReport) -> Iterator[Pair]:
    """The pairs that pass, one by one; `report` counts all. Only hashes of what was seen are held in memory."""
    why_not = reasons(settings)
    for pair in pairs:
        reason = why_not(*pair)
        report.count(reason)
        if reason is None:
            yield pair


def clean_corpus(corpus: ParallelCorpus, settings: CleaningSettings) -> tuple[ParallelCorpus, CleaningReport]:
    """A cleaned corpus in memory, and the report. Raises `InputError` where nothing is left."""
    report = CleaningReport()
    kept = list(clean(corpus, settings, report))
    if not kept:
        raise InputError(f"cleaning: nothing is left of {corpus.name}: {report}")
    sources, targets = map(list, zip(*kept, strict=True))
    return replace(corpus, sources=sources, targets=targets), report


def reasons(settings: CleaningSettings) -> Callable[[str, str], str | None]:
    """A function from a pair to the reason for leaving it out, None for none; it remembers what it has seen."""
    seen: set[int] = set()

    def why_not(source: str, target: str) -> str | None:
        words = source.split(), target.split()
        shortest, longest = sorted(map(len, words))
        if shortest == 0:
            return "empty"
        if shortest < settings.min_words:
            return "too short"
        if settings.max_words is not None and longest > settings.max_words:
            return "too long"
        if settings.max_ratio is not None and longest > settings.max_ratio * shortest:
            return "length ratio"
        limit = settings.max_characters_per_word
        if limit is not None and max(max(map(len, side)) for side in words) > limit:
            return "long word"
        if settings.identical and words[0] == words[1]:
            return "identical"
        for script, text in ((settings.source_script, source), (settings.target_script, target)):
            if script is not None and share_of_script(text, script) < settings.script_share:
                return "wrong script"
        if settings.duplicates is not None:
            key = {"pair": (source, target), "source": source, "target": target}[settings.duplicates]
            if hash(key) in seen:
                return "duplicate"
            seen.add(hash(key))
        return None

    return why_not


def share_of_script(text: str, script: str) -> float:
    """Of the letters of a text, how many are of a script (or of one of several, joined by `+`); 1 without letters."""
    letters = LETTER.findall(text)
    return len(letters_of(script).findall(text)) / len(letters) if letters else 1.0
