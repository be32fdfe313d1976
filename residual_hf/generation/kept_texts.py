"""Texts that a translation keeps, such as placeholders, and where it has them."""

import re
from collections.abc import Iterable, Iterator, Sequence

from residual_hf.model.placeholders import PLACEHOLDER, RUN

WITHIN_WORD = re.compile(r"\w\w")

Range = tuple[int, int]
Named = tuple[int, int, str]
"""A range and what is there."""


def is_run(text: str) -> bool:
    """Whether a text is a run of placeholders, as it is found in a text. `fullmatch` would try all ways to read it."""
    found = RUN.match(text)
    return found is not None and found.end() == len(text)


class KeptTexts:
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
