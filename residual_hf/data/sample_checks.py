"""Checks of corpora for text that cannot be right (shifted, copied, swapped, escaped), and warnings about text.

The limits are far from the real text that they were measured on (16 pairs of files in German, English, French and
Vietnamese): lengths correlate by at least 0.74 in every block of 200 pairs, by at most 0.43 after a shift by a line;
at most 0.2 % of the pairs are copies; the language of single lines is recognized in at least 95 %.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import mean

import numpy as np
from transformers import PreTrainedTokenizerBase

from residual_hf.model.placeholders import PLACEHOLDER_TOKENS

from .corpus import ParallelCorpus
from .encoding import EncodedCorpus
from .language_names import detected_as
from .pair_reader import Pair

logger = logging.getLogger(__name__)

BLOCK, BLOCKS = 200, 50
"""A sample has at most so many blocks of so many consecutive pairs."""
RELATED = 0.5
"""Correlation of the logarithms of the lengths of source and target, in characters; parallel text has more."""
FARTHEST = 5
"""Lines of a shift that are tried."""
LINES, MOST_PIECES = 5, 100
"""The language of the first long one of so many lines is recognized, in so many places of a side."""
LONG = 40  # characters
SURE = 0.8
"""Share of the places of a side that are in its language or in one other, if that is recognized well."""
MIXED = 0.1
"""Share of the places that are in the other."""
MOST_UNKNOWN = 0.02
"""Share of unknown tokens above which a text gets a warning."""
MARKS = {
    "moses": {
        "escapes such as &apos; and &quot;": re.compile(r"&(?:apos|quot|amp|lt|gt|nbsp|#\d+|#x[\da-fA-F]+);"),
        "hyphens as @-@": re.compile(r"(?:^|\s)@[-/.,]@(?:\s|$)"),
        "a space before the full stop or comma at their end": re.compile(r"[^\s.]{2} [.,。，]\s*$"),
    },
    "subwords": {
        "subwords joined by @@": re.compile(r"\S@@(?:\s|$)"),
        "subwords joined by ▁": re.compile("▁"),
        "subwords joined by ￭": re.compile("￭"),
        "subwords joined by ##": re.compile(r"(?:^|\s)##\w"),
        "words split into characters": re.compile(r"^(?:\S ){10}(?:\S ?)*$"),
    },
    "encoding": {
        "UTF-8 read as Latin-1, such as Ã¼ for ü": re.compile("Ã[\x80-\xbf‚-™]|â€[\x80-\x9d\u0153\u2013-\u2122]"),
        "characters that were lost (U+FFFD)": re.compile("\ufffd"),
    },
}
"""Patterns of what processing leaves in text, by the reason to expect it."""


def sample_rows(size: int) -> list[int]:
    """The rows of a sample of a corpus of this size: evenly spread blocks of consecutive pairs."""
    starts = np.linspace(0, max(0, size - BLOCK), max(1, min(BLOCKS, size // BLOCK))).astype(int)
    return [int(row) for start in starts for row in range(start, min(start + BLOCK, size))]


def take_sample(pairs: Iterable[Pair], size: int) -> list[Pair]:
    """The pairs of `sample_rows` of a corpus that is read in order."""
    rows = set(sample_rows(size))
    return [pair for row, pair in enumerate(pairs) if row in rows]


def faults_of(corpus: ParallelCorpus, expected: Collection[str] = ()) -> list[str]:
    """The faults of a corpus, with figures; none of less than 100 pairs.

    Args:
        corpus: with the same language on both sides, as for summarization, only its characters are checked.
        expected: what is no fault: "moses" for text that is tokenized by Moses, "subwords", "copies" up to a half.
    """
    return sample_faults(corpus.select(sample_rows(len(corpus))), len(corpus), expected)


def sample_faults(sample: ParallelCorpus, size: int, expected: Collection[str] = ()) -> list[str]:
    """The same for the sample of a corpus of this size."""
    if len(sample) < 100:  # whose figures are left to chance
        return []
    found = [fault for kind in MARKS if kind not in expected for fault in marks_in(sample, kind)]
    if sample.source_lang is not None and sample.source_lang == sample.target_lang:
        return found
    copies = sum(map(str.__eq__, sample.sources, sample.targets)) / len(sample)
    if copies > (0.5 if "copies" in expected else 0.05):
        found.append(
            f"{copies:.0%} of the pairs have the same text on both sides (data.cleaning.identical drops them)"
        )
    if copies > 0.5:  # of which the other figures say nothing
        return found
    repeats = 1 - len({*sample}) / len(sample)
    if repeats > 0.5:
        found.append(f"{repeats:.0%} of the pairs repeat others of a sample (data.cleaning.duplicates drops them)")
    return [*found, *misaligned(sample, sample_rows(size)), *other_languages(sample)]


def misaligned(sample: ParallelCorpus, rows: Sequence[int]) -> Iterator[str]:
    """Whether the target is shifted against the source, or has nothing to do with it, by the lengths of the lines."""
    sources, targets = (np.log1p([len(text) for text in side]) for side in (sample.sources, sample.targets))
    shifts: list[tuple[int, int, float, float]] = []
    starts = range(0, len(rows), BLOCK)
    for start in starts:
        block = slice(start, start + BLOCK)
        found = correlation(sources[block], targets[block])
        moved = {by: correlation(sources[block], targets[block], by) for by in range(-FARTHEST, FARTHEST + 1)}
        best = max(moved, key=lambda by: moved[by])
        if found < RELATED < moved[best]:
            shifts.append((rows[start], best, found, moved[best]))
    total = correlation(sources, targets)
    if shifts:
        _, by, found, moved_by = max(shifts, key=lambda shift: shift[3] - shift[2])
        lines = f"{abs(by)} line{'s' * (abs(by) > 1)} {'later' if by > 0 else 'earlier'}"
        yield (
            f"the sides are not aligned in {len(shifts)} of {len(starts)} blocks of {min(BLOCK, len(rows))} pairs, "
            f"from about pair {shifts[0][0] + 1:,} on: translations are {lines} (correlation of the lengths "
            f"{found:.2f}, and {moved_by:.2f} if moved)"
        )
    elif total < RELATED:
        yield (
            f"the sides do not belong together: their lengths correlate by {total:.2f} in {len(rows):,} pairs, in "
            "parallel text by more than 0.7"
        )


def correlation(sources: np.ndarray, targets: np.ndarray, by: int = 0) -> float:
    """The correlation of lengths, with the target moved by so many lines; 1 if all lines are of one length."""
    end = len(sources) - abs(by)
    moved = sources[max(0, -by) :][:end], targets[max(0, by) :][:end]
    return float(np.corrcoef(*moved)[0, 1]) if all(side.std() > 0 for side in moved) else 1.0


def marks_in(sample: ParallelCorpus, kind: str) -> Iterator[str]:
    """Which marks of processing more than 1 % of the lines of a side have, and more than four."""
    advice = "; if Moses tokenized it, set pretokenized to moses, else replace the marks" if kind == "moses" else ""
    sides = {"source": sample.sources, "target": sample.targets}
    for name, mark in MARKS[kind].items():
        counts = {side: sum(map(bool, map(mark.search, lines))) for side, lines in sides.items()}
        most = max(4, 0.01 * len(sample))
        shares = [f"{count / len(sample):.0%} of the {side} lines" for side, count in counts.items() if count > most]
        if shares:
            yield f"{' and '.join(shares)} have {name}: this is not raw text{advice}"


def other_languages(sample: ParallelCorpus) -> Iterator[str]:
    """Whether the sides are in other languages than theirs, as far as py3langid knows these."""
    rank = language_ranker()
    labels = rank("")
    languages = [detected_as(str(code), labels) for code in (sample.source_lang, sample.target_lang)]
    texts, swapped = [], []
    for side, lines, (own, other) in (
        ("source", sample.sources, languages),
        ("target", sample.targets, languages[::-1]),
    ):
        step = max(LINES, len(lines) // MOST_PIECES) | 1  # odd, for lines by turns
        places = (lines[start : start + LINES] for start in range(0, len(lines) - LINES, step))
        pieces = [rank(max(place, key=lambda line: min(len(line), LONG))) for place in places]
        if own not in pieces[0]:
            return
        if other in pieces[0]:
            swapped.append(mean(labels.index(other) < labels.index(own) for labels in pieces))
        found = Counter(labels[0] for labels in pieces)
        others = Counter(labels[0] for labels in pieces if own not in labels[:3])  # similar languages are mixed up
        texts += [
            f"{found[label] / len(pieces):.0%} of the {side} look like {label}, not {own}"
            for label, count in others.most_common(1)
            if count >= MIXED * len(pieces) and found[label] + found[own] >= SURE * len(pieces)
        ]
    if len(swapped) == 2 and min(swapped) >= SURE:
        texts = [
            f"the sides are swapped: {swapped[0]:.0%} of the source look more like {languages[1]} than {languages[0]}"
        ]
    yield from texts


@lru_cache(maxsize=1)
def language_ranker() -> Callable[[str], list[str]]:
    """A function that returns the codes of all languages it knows, the most likely one first."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # half a second

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=False)
    return lambda text: [label for label, _ in identifier.rank(text)]


def warn_about_rare_placeholders(train: EncodedCorpus, tokenizer: PreTrainedTokenizerBase) -> None:
    """Log a warning if the training text has too few placeholders for a model to learn to copy them."""
    ids = tokenizer.convert_tokens_to_ids(list(PLACEHOLDER_TOKENS))
    found = int(np.isin(train.arrays["source_ids"], ids).sum())
    if found < 1000:
        logger.warning(
            f"data.placeholders: the training text has only {found} placeholders, tags, addresses or numbers on both "
            "sides: too few to learn that they come through unchanged"
        )


def warn_about_unknown_tokens(encoded: Mapping[str, EncodedCorpus], tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn about text that the tokenizer was not made for."""
    for name, corpus in encoded.items():
        for side in corpus.sides:
            share = float(np.mean(corpus.arrays[f"{side}_ids"] == tokenizer.unk_token_id))
            if share > MOST_UNKNOWN:
                logger.warning(
                    f"data.{name}: {100 * share:.0f} % of the {side} tokens are unknown to the tokenizer: the text "
                    "must be segmented and normalized like the text that it was made from"
                )


def warn_about_faults(texts: Mapping[str, Iterable[ParallelCorpus]], expected: Collection[str]) -> None:
    """Warn about text that cannot be right, see `faults_of`."""
    for name, corpora in texts.items():
        for corpus in corpora:
            for fault in faults_of(corpus, expected):
                logger.warning("data.%s: %s: %s", name, corpus.name, fault)


def overlaps(train: Iterable[Iterable[Pair]], held_out: Mapping[str, Sequence[ParallelCorpus]]) -> list[str]:
    """Warnings of pairs of `valid` and `test` that are also training pairs; reads `train` once, in order."""
    pairs = {split: {pair for corpus in corpora for pair in corpus} for split, corpora in held_out.items()}
    every = set().union(*pairs.values())
    found = {pair for corpus in train for pair in corpus if pair in every}
    return [
        f"data.{split}: {len(own & found)} of {len(own)} pairs are also training pairs, which makes the scores too "
        "high: remove them from the training corpora"
        for split, own in pairs.items()
        if own & found
    ]
