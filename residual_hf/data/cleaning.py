"""Cleaning of parallel corpora by rules, with a report of what was dropped."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .corpus import ParallelCorpus
from .data_settings import CleaningSettings, CorpusSpec
from .pair_reader import Pair, PairReader
from .scripts import share_of_script, words
from .text_files import is_blank

logger = logging.getLogger(__name__)


@dataclass
class CleaningReport:
    """How many pairs were dropped for each reason (the first that applies), with the numbers of five, from 1."""

    pairs: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)

    def count(self, reason: str | None) -> bool:
        """Count the next pair; returns whether it is kept, for which the reason is None."""
        self.pairs += 1
        if reason is None:
            self.kept += 1
        else:
            self.dropped[reason] += 1
            self.examples[reason] = [*self.examples.get(reason, ()), self.pairs][:5]
        return reason is None

    def warn_if_most_is_gone(self, corpus: str) -> None:
        """Log a warning if more than half of the pairs were dropped."""
        if self.kept < self.pairs / 2:
            examples = ", ".join(f"{reason}: pair {numbers[0]}" for reason, numbers in self.examples.items())
            logger.warning(
                f"{corpus}: more than half of the pairs were dropped by data.cleaning ({self}; for example "
                f"{examples}): check its limits, and that the lines of both sides are aligned"
            )

    def __str__(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common())
        return f"kept {self.kept} of {self.pairs} pairs" + (f"; dropped: {reasons}" if reasons else "")


def clean_corpus(
    corpus: ParallelCorpus, reason_to_drop: Callable[[str, str], str | None]
) -> tuple[ParallelCorpus, CleaningReport]:
    """The pairs that pass a `pair_filter`, and the report about all of them."""
    report = CleaningReport()
    return corpus.with_pairs(pair for pair in corpus if report.count(reason_to_drop(*pair))), report


def cleaned_pairs(spec: CorpusSpec, settings: CleaningSettings | None, *, streaming: bool = True) -> Iterator[Pair]:
    """The pairs of a pass over a corpus that a `pair_filter` keeps, read one after another; None keeps all."""
    reason_to_drop = None if settings is None else pair_filter(settings)
    for pair in PairReader(spec, streaming=streaming).one_pass():
        if reason_to_drop is None or reason_to_drop(*pair) is None:
            yield pair


def pair_filter(settings: CleaningSettings) -> Callable[[str, str], str | None]:
    """A function that returns the reason to drop a pair, or None to keep it.

    It finds duplicates by the hashes of all pairs that it kept before.
    """
    seen: set[int] = set()

    def reason_to_drop(source: str, target: str) -> str | None:
        if is_blank(source) or is_blank(target):
            return "empty"
        sides = words(source), words(target)
        shortest, longest = sorted(map(len, sides))
        if shortest < settings.min_words:
            return "too short"
        if settings.max_words is not None and longest > settings.max_words:
            return "too long"
        if settings.max_ratio is not None and longest > settings.max_ratio * shortest:
            return "length ratio"
        limit = settings.max_characters_per_word
        if limit is not None and max(max(map(len, side)) for side in sides) > limit:
            return "long word"
        if settings.identical and sides[0] == sides[1]:
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

    return reason_to_drop
