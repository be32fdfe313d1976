"""Words of a sentence and of its translation, and how much each of these comes from a part of the sentence."""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import regex

from residual_hf.data import scripts
from residual_hf.model.alignment import Alignment, Array

from .kept_texts import Range, is_run

LETTER = r"[\w\p{M}]"
UNSPACED = scripts.UNSPACED.pattern
JOINT = r"[^\s\w—–]"
SPACED = rf"(?:(?!{UNSPACED}){LETTER})+"
WHOLE = regex.compile(r"\S(?:.*\S)?", regex.DOTALL)
UNIT, PART = (regex.compile(rf"(?={UNSPACED})\X|{SPACED}{more}|(?!\s)\X") for more in (f"(?:{JOINT}{SPACED})*", ""))
"""A word, a character of a script without spaces, or a mark of punctuation; words may have marks inside, or not."""
SAME = regex.compile(r"\d|\p{Lu}|\p{L}{5}")


class SentencePair(NamedTuple):
    """A sentence or another piece of a text, its translation, and where both begin."""

    source: str
    source_start: int
    target: str
    target_start: int
    alignment: Alignment | None


class AlignedPair:
    """A pair of texts with the units of both; those of the source end where an element begins or ends.

    If this is within a word, those of the translation end in the same places of the same word, and at marks in others.
    A text of `kept` in the translation is one unit.
    """

    def __init__(self, pair: SentencePair, corners: Sequence[int], kept: Sequence[Range]):
        self.pair, self.first = pair, 0
        self.source_start, self.target_start = pair.source_start, pair.target_start
        self.source_end = pair.source_start + len(pair.source)
        within = corners[bisect_right(corners, self.source_start) : bisect_left(corners, self.source_end)]
        inside = [corner - self.source_start for corner in within]
        whole = {pair.target[start:end] for start, end in kept}
        self.source_units = [unit.span() for unit in _units(pair.source, [0, *inside, len(pair.source)], whole)]
        divided: dict[str, list[int]] = {}
        for unit in UNIT.finditer(pair.source) if inside else ():
            start, end = unit.span()
            if cuts := inside[bisect_right(inside, start) : bisect_left(inside, end)]:
                divided[unit[0]] = [cut - start for cut in cuts]
        places = [0, *(place for span in kept for place in span), len(pair.target)]
        self.target_units = [part for unit in _units(pair.target, places, whole) for part in _parts(unit, divided)]
        self.weights = self._weights() if inside else None

    def _weights(self) -> Array:
        """The share of each source unit in each target unit, (target units, source units).

        Words are compared with words only: much of the attention that belongs nowhere is on full stops. A name, a
        number or a long word that is once in both texts belongs to itself.
        """
        pair, sources, targets = self.pair, self.source_units, self.target_units
        weights = self._attention() if pair.alignment else _in_order(pair, sources, targets)
        read = [pair.source[start:end] for start, end in sources]
        written = [pair.target[start:end] for start, end in targets]
        for row, word in enumerate(written):
            if (SAME.search(word) or is_run(word)) and written.count(word) == read.count(word) == 1:
                weights[row] = [other == word for other in read]
        return weights

    def _attention(self) -> Array:
        pair, sources, targets = self.pair, self.source_units, self.target_units
        words = np.array([pair.source[start].isalnum() for start, _ in sources])
        is_word = np.array([pair.target[start].isalnum() for start, _ in targets], dtype=bool)
        weights = np.zeros((len(targets), len(sources)))
        for part in pair.alignment.parts if pair.alignment else ():
            plain = part.between(sources, targets)
            plain[is_word] = 0
            plain[np.ix_(is_word, words)] = part.between(np.array(sources)[words], np.array(targets)[is_word])
            weights += plain
        return weights

    def shares(self, start: int, end: int) -> Array | float:
        """How much of each target unit a range of the source text has, (target units,)."""
        start, end = start - self.source_start, end - self.source_start
        inside = [start <= a and b <= end for a, b in self.source_units]
        return 1.0 if all(inside) or self.weights is None else self.weights[:, inside].sum(1)

    def place_of(self, position: int) -> int:
        """The number of the target unit before which a position of the source text is.

        It is behind the translation of a word, or a part of one, that it follows without a space.
        """
        position -= self.source_start
        following = bisect_right([end for _, end in self.source_units], position)
        if following == 0 or not self.target_units:
            return 0
        if self.weights is None or following == len(self.source_units):
            return len(self.target_units)
        text = self.pair.source
        may_follow = text[position - 1].isalnum() or not text[position].isalnum()
        follows_word = may_follow and self.source_units[following - 1][1] == position
        for column, shift in ((following - 1, 1), (following, 0))[not follows_word :]:
            weights = self.weights[:, column]
            if weights.max() > 0:
                return int(weights.argmax()) + shift
        return int(self.weights[:, following - 1].argmax()) + 1


def _units(text: str, places: Sequence[int], whole: Container[str]) -> Iterator[Any]:
    """The units between places of a text; what is `whole` is one."""
    for start, end in pairwise(places):
        yield from (WHOLE if text[start:end] in whole else UNIT).finditer(text, start, end)


def _parts(unit: Any, divided: Mapping[str, Sequence[int]]) -> Iterator[Range]:
    """The ranges of a word that is divided in the source, if any word is."""
    start, end = unit.span()
    if not divided:
        yield start, end
        return
    for place, following in pairwise([start, *(start + cut for cut in divided.get(unit[0], ())), end]):
        yield from (part.span() for part in PART.finditer(unit.string, place, following))


def _in_order(pair: SentencePair, sources: Sequence[Range], targets: Sequence[Range]) -> Array:
    """Weights of an alignment in which words keep their order."""
    weights = np.zeros((len(targets), len(sources)))
    for row, (start, end) in enumerate(targets):
        place = (start + end) / 2 * len(pair.source) / len(pair.target)
        weights[row, min(bisect_left([b for _, b in sources], place), len(sources) - 1)] = 1
    return weights
