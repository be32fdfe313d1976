"""Projection of the elements of a source text onto its translation, by the alignment of words.

An element has one range of words of the translation: the one with the largest sum of `m - 1/2`, where m is the share
of a word's attention that is on the words of the element. Ranges of elements side by side do not overlap, and those
within an element are within its range. An element without such a range has the word that is aligned with it best; a
link and an element within another one however weak that is, others only if the share is not tiny.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import regex

from residual_hf.data import scripts
from residual_hf.model.alignment import Alignment, Array
from residual_hf.model.placeholders import PLACEHOLDER, RUN, Edit, EditedText, removal

from .inline import merged

LETTER = r"[\w\p{M}]"
UNSPACED = scripts.UNSPACED.pattern
JOINT = r"[^\s\w—–]"
SPACED = rf"(?:(?!{UNSPACED}){LETTER})+"
WHOLE = regex.compile(r"\S(?:.*\S)?", regex.DOTALL)
UNIT, PART = (regex.compile(rf"(?={UNSPACED})\X|{SPACED}{more}|(?!\s)\X") for more in (f"(?:{JOINT}{SPACED})*", ""))
"""A word, a character of a script without spaces, or a mark of punctuation; words may have marks inside, or not."""
LEAST_SHARE = 0.1  # of the attention of a word that may be the only one of an element
WITHIN_WORD = re.compile(r"\w\w")
SAME = regex.compile(r"\d|\p{Lu}|\p{L}{5}")

Range = tuple[int, int]
Named = tuple[int, int, str]
"""A range and what is there."""


class KeptText(NamedTuple):
    """A placeholder within text, an element that is written as text."""

    text: str
    keep: bool = True
    link: bool = False


class Node:
    """An element of a block and where its text is in that of the block."""

    def __init__(self, element: Any, start: int, end: int | None = None):
        self.element, self.start, self.end = element, start, start if end is None else end
        self.children: list[Node] = []

    def descendants(self) -> "Iterator[Node]":
        for child in self.children:
            yield child
            yield from child.descendants()

    def corners(self) -> list[int]:
        """The places where elements within begin or end, in ascending order."""
        return sorted({corner for node in self.descendants() for corner in (node.start, node.end)})


class SentencePair(NamedTuple):
    """A sentence or another piece of a text, its translation, and where both begin."""

    source: str
    source_start: int
    target: str
    target_start: int
    alignment: Alignment | None


def project(root: Node, source: str, target: str, pairs: Sequence[SentencePair]) -> list:
    """The pieces of a translated block: text, and the elements of `root` around their translations."""
    found = _Projection(root, source, target, pairs)
    found.place(root, (0, len(found.units)))
    found.find_surplus()
    return found.pieces(root, (0, len(found.units)), (0, len(target)))


class _Projection:
    def __init__(self, root: Node, source: str, target: str, pairs: Sequence[SentencePair]):
        self.source, self.target = source, target
        corners = root.corners()
        kept = (source[node.start : node.end].strip() for node in root.descendants() if node.element.keep)
        self.kept = _Kept(kept, target)
        self.pairs = [_AlignedPair(pair, corners, self._kept_in(pair)) for pair in pairs]
        self.units: list[Range] = []
        for pair in self.pairs:
            pair.first = len(self.units)
            self.units += [(a + pair.target_start, b + pair.target_start) for a, b in pair.target_units]
        self.starts, self.ends = ([unit[side] for unit in self.units] for side in range(2))
        self.ranges: dict[Node, Range] = {}
        self.surplus: list[Range] = []

    def _kept_in(self, pair: SentencePair) -> list[Range]:
        start, end = pair.target_start, pair.target_start + len(pair.target)
        first, last = (bisect_left(self.kept.spans, place, key=itemgetter(0)) for place in (start, end))
        return [(a - start, b - start) for a, b, _ in self.kept.spans[first:last] if b <= end]

    def place(self, node: Node, limits: Range) -> None:
        """Give the elements within a node their ranges, those first whose range is the clearest."""
        owners: list[Node | None] = [None] * (limits[1] - limits[0])
        waiting: list[tuple[float, int, Range]] = []  # a heap
        for number, child in enumerate(node.children):
            if self.source[child.start : child.end].strip():
                score, chosen = self._best(child, limits, owners)
                heappush(waiting, (-score, number, chosen))
        while waiting:
            _, number, (first, last) = heappop(waiting)
            child = node.children[number]
            if any(owners[first - limits[0] : last - limits[0]]):  # taken since then
                score, chosen = self._best(child, limits, owners)
                heappush(waiting, (-score, number, chosen))
            elif first < last:
                self.ranges[child] = first, last
                owners[first - limits[0] : last - limits[0]] = [child] * (last - first)
        for child in node.children:
            if child.element.keep and child in self.ranges:
                self.ranges[child] = self._whole_copy(child, limits, owners)
            if child not in self.ranges:
                place = self._nearest(child, limits)
                owner = owners[place - limits[0]] if place < limits[1] else None
                if owner is not None:
                    first, last = self.ranges[owner]
                    place = last if (owner.start, owner.end) < (child.start, child.end) else first
                self.ranges[child] = place, place
            if not child.element.keep:
                self.place(child, self.ranges[child])

    def _best(self, child: Node, limits: Range, owners: Sequence[Node | None]) -> tuple[float, Range]:
        """The sum of the best range that nobody owns, and the range, which is empty if none is worth it."""
        start, values = self._values(child)
        low = min(max(start, limits[0]), limits[1])
        high = max(low, min(start + len(values), limits[1]))
        taken = [owner is not None for owner in owners[low - limits[0] : high - limits[0]]]
        values = np.where(taken, -np.inf, values[low - start : high - start] if low < high else [])
        text = self.source[child.start : child.end].strip()
        if child.element.keep:
            found = self._occurrences(text, low, high)
            sums = [(float(values[a - low : b - low].sum()), (a, b)) for a, b in found]
            score, place = max(sums, default=(-np.inf, (low, low)))
            if score > -np.inf:
                return len(values) + score, place
        score, (first, last) = _best_range(values, low)
        while first < last and text[0].isalnum() and not self._is_word(first):  # words begin and end with words
            first += 1
        while first < last and text[-1].isalnum() and not self._is_word(last - 1):
            last -= 1
        if first == last and not child.element.keep:
            has_words = any(map(str.isalnum, text))
            fitting = [self._is_word(unit) or not has_words for unit in range(low, low + len(values))]
            values = np.where(fitting, values, -np.inf)
            needs_word = child.element.link or limits != (0, len(self.units))
            least = -np.inf if needs_word else LEAST_SHARE - 0.5
            if values.size and values.max() > least:
                score, first = float(values.max()), low + int(values.argmax())
                last = first + 1
        return score, (first, last)

    def _whole_copy(self, child: Node, limits: Range, owners: list[Node | None]) -> Range:
        """The range of a kept element with the units around that are of the same broken copy, such as `{name`."""
        first, last = self.ranges[child]
        shown = "".join(self.source[child.start : child.end].casefold().split())

        def is_copy(begin: int, end: int) -> bool:
            free = all(owner in (None, child) for owner in owners[begin - limits[0] : end - limits[0]])
            return free and "".join(self.target[self.starts[begin] : self.ends[end - 1]].casefold().split()) in shown

        while first > limits[0] and is_copy(first - 1, last):
            first -= 1
        while last < limits[1] and is_copy(first, last + 1):
            last += 1
        owners[first - limits[0] : last - limits[0]] = [child] * (last - first)
        return first, last

    def _is_word(self, unit: int) -> bool:
        return any(map(str.isalnum, self.target[self.starts[unit] : self.ends[unit]]))

    def _values(self, child: Node) -> tuple[int, Array]:
        """The first unit of the sentences with the element, and the values of their units."""
        begin = bisect_right(self.pairs, child.start, key=lambda pair: pair.source_end)
        end = bisect_left(self.pairs, child.end, key=lambda pair: pair.source_start)
        pairs = self.pairs[begin:end]
        values = [np.zeros(len(pair.target_units)) + pair.shares(child.start, child.end) - 0.5 for pair in pairs]
        return (pairs[0].first, np.concatenate(values)) if pairs else (0, np.zeros(0))

    def _occurrences(self, text: str, low: int, high: int) -> Iterator[Range]:
        """The ranges of units of the translation that are a text."""
        if low >= high:
            return
        for start, end in self.kept.places(text, self.starts[low], self.ends[high - 1]):
            first, last = bisect_left(self.starts, start), bisect_left(self.ends, end)
            if first < high and (self.starts[first], self.ends[last]) == (start, end):
                yield first, last + 1

    def _nearest(self, child: Node, limits: Range) -> int:
        """The unit of the translation before which an element without text is."""
        number = bisect_left(self.pairs, child.start, key=lambda pair: pair.source_end)
        pair = self.pairs[number] if number < len(self.pairs) else None
        place = len(self.units) if pair is None else pair.first + pair.place_of(child.start)
        return min(max(place, limits[0]), limits[1])

    def find_surplus(self) -> None:
        """Find the copies of placeholders that the translation has in addition to those of the source."""
        owned = {(self.starts[first], self.ends[last - 1]) for first, last in self.ranges.values() if first < last}
        written = self.kept.placeholders(self.target)
        more = Counter(name for *_, name in written)
        more.subtract(name for *_, name in self.kept.placeholders(self.source))
        for start, end, name in written:
            if (start, end) not in owned and more[name] > 0:
                more[name] -= 1
                self.surplus.append((start, end))

    def _text(self, start: int, end: int) -> str:
        """A part of the translation without surplus copies."""
        first, last = (bisect_left(self.surplus, place, key=itemgetter(0)) for place in (start, end))
        if first == last:
            return self.target[start:end]
        edits = [removal(self.target, *span) for span in self.surplus[first:last] if span[1] <= end]
        return EditedText(self.target[:end], [Edit(0, start, ""), *edits]).text

    def pieces(self, node: Node, units: Range, text: Range) -> list:
        """The content of a node whose translation has these units and characters."""
        found: list[Any] = []
        place = text[0]
        for child in sorted(node.children, key=lambda each: (*self.ranges[each], each.start, each.end)):
            first, last = self.ranges[child]
            is_empty = first == last
            start = self.units[first][0] if first < units[1] else text[1]
            end = start if is_empty else self.units[last - 1][1]
            if last == units[1] and child.end == node.end and not child.element.keep:
                end = text[1]  # with the space at the end
            before = self._text(place, start)
            place = end
            element = child.element
            if element.keep:
                left, right = self._spaces(child, first, (start, end), units[1])
                written = element.text if isinstance(element, KeptText) else element
                found += [before, " " * left, written, " " * right]
            else:
                found += [before, element._replace(pieces=self.pieces(child, (first, last), (start, end)))]
        return merged([*found, self._text(place, text[1])])

    def _spaces(self, child: Node, first: int, text: Range, last: int) -> tuple[bool, bool]:
        """Whether a kept element needs a space before it, and one behind it, in the place of a range of the target.

        `first` is the unit at its beginning, of those before `last`.
        """
        shown, (start, end) = self.source[child.start : child.end].strip(), text
        glued = self.target[max(0, start - 1) : start].strip() != ""
        if not shown or self.target[start:end] == shown:
            return False, False
        if start == end:
            before = glued and (first == last or not self._is_word(first))
            return before, first < last and not before and not self.target[:start].endswith(shown)
        left, right = self.source[max(0, child.start - 1) : child.start], self.source[child.end : child.end + 1]
        return glued and not left.strip(), self.target[end : end + 1].isalnum() and not right.strip()


def is_run(text: str) -> bool:
    """Whether a text is a run of placeholders, as it is found in a text. `fullmatch` would try all ways to read it."""
    found = RUN.match(text)
    return found is not None and found.end() == len(text)


class _Kept:
    """Finds the texts of elements that are kept: placeholders anywhere, others as words.

    The signs of a run of placeholders may be others in a translation, or apart.
    """

    def __init__(self, texts: Iterable[str], target: str):
        self._texts = sorted({text for text in texts if text}, key=len, reverse=True)
        self._parts = {text: PLACEHOLDER.findall(text) for text in self._texts if is_run(text)}
        self._singles = {part for parts in self._parts.values() for part in parts} - {*self._texts}
        self._target = target
        self._in_target = found, taken = self._spans(target)
        self._places: dict[str, list[Range]] = {}
        for start, end, name in found:
            self._places.setdefault(name, []).append((start, end))
        new = (match.span() for match in RUN.finditer(target) if self._parts)
        self.spans = sorted([*found, *((*span, "") for span in new if not any(taken[slice(*span)]))])
        """In the translation; with them, placeholders that the source does not have."""

    def places(self, text: str, start: int, end: int) -> Iterator[Range]:
        """The places of a text in a part of the translation."""
        if text in self._parts:
            yield from ((a, b) for a, b in self._places.get(text, ()) if start <= a and b <= end)
            return
        place = self._target.find(text, start, end)
        while place >= 0:
            yield place, place + len(text)
            place = self._target.find(text, place + 1, end)

    def placeholders(self, text: str) -> list[Named]:
        """Placeholders and runs of them, and parts of these elsewhere."""
        found, taken = self._in_target if text == self._target else self._spans(text)
        single = ((*match.span(), match[0]) for match in PLACEHOLDER.finditer(text) if match[0] in self._singles)
        free = (span for span in single if not any(taken[span[0] : span[1]]))
        return sorted([*(span for span in found if span[2] in self._parts), *free])

    def _spans(self, text: str) -> tuple[list[Named], bytearray]:
        """The longer ones where they overlap, and whether each character belongs to one."""
        found: list[Named] = []
        taken = bytearray(len(text))

        def take(start: int, end: int, name: str) -> None:
            if not any(taken[start:end]):
                found.append((start, end, name))
                taken[start:end] = bytes([1]) * (end - start)

        for each in self._texts:
            start = text.find(each)
            while start >= 0:
                end = start + len(each)
                edges = (text[max(0, place - 1) : place + 1] for place in (start, end))
                if each in self._parts or not any(map(WITHIN_WORD.fullmatch, edges)):
                    take(start, end, each)
                start = text.find(each, end)
            for match in _apart(each, self._parts[each]).finditer(text) if self._is_run(each) else ():
                take(*match.span(), each)
        runs = {tuple(sorted(self._parts[each])): each for each in filter(self._is_run, self._parts)}
        for match in RUN.finditer(text) if runs else ():
            if name := runs.get(tuple(sorted(PLACEHOLDER.findall(match[0])))):
                take(*match.span(), name)
        return sorted(found), taken

    def _is_run(self, text: str) -> bool:
        return text in self._parts and self._parts[text] != [text]


def _apart(run: str, parts: Sequence[str]) -> re.Pattern[str]:
    """A run of placeholders with spaces or other marks between them."""
    pattern, place = "", 0
    for part in parts:
        start = run.index(part, place)
        between = run[place:start]
        if place == 0:
            pattern = re.escape(between) + r"\s?" * bool(between)
        elif between.isalpha():
            pattern += r"\s?[xX×]?\s?"
        else:
            pattern += rf"[\s.,;:{re.escape(between)}]{{,5}}"
        pattern += re.escape(part)
        place = start + len(part)
    return re.compile(pattern + (r"\s?" + re.escape(run[place:])) * (place < len(run)))


class _AlignedPair:
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


def _best_range(values: Array, start: int) -> tuple[float, Range]:
    """The largest sum of consecutive values, and their range, if they are counted from `start`."""
    best, total, first = (0.0, (start, start)), 0.0, start
    for place, value in enumerate(values.tolist(), start):
        if total <= 0:
            total, first = 0.0, place
        total += value
        if total > best[0]:
            best = total, (first, place + 1)
    return best
