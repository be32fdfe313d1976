"""Projection of the elements of a source text onto its translation, by the alignment of words.

An element has one range of words of the translation: the one with the largest sum of `m - 1/2`, where m is the share
of a word's attention that is on the words of the element. Ranges of elements side by side do not overlap, and those
within an element are within its range. An element without such a range has the word that is aligned with it best; a
link and an element within another one however weak that is, others only if the share is not tiny.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from residual_hf.model.alignment import Array
from residual_hf.model.placeholders import Edit, EditedText, removal

from .aligned_pair import AlignedPair, SentencePair
from .inline import merged
from .kept_texts import KeptTexts, Range

LEAST_SHARE = 0.1  # of the attention of a word that may be the only one of an element


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
        self.kept = KeptTexts(kept, target)
        self.pairs = [AlignedPair(pair, corners, self._kept_in(pair)) for pair in pairs]
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
