# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Text of any length as sentences and the layout between them. Needs sentencex."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sentencex import segment

from .checks import has_letters
from .long_text import split_text

LINE_BREAKS = re.compile(r"([\r\n\v\f\x85\u2028\u2029]+)")
MARKER = r"(?:[-*+•–—#>]+\s+)*"  # of lists, headings and quotations
BEFORE_SENTENCE = re.compile(rf"\s*{MARKER}")
UNUSUAL_SPACE = re.compile(r"[^\S ]")

Piece = tuple[str, bool]
"""Text, and whether it is a sentence to translate."""


def split_sentences(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[Piece]:
    """The pieces of a text, in order and without gaps: sentences, and numbers, bullets and spaces between them.

    Args:
        language: selects the rules of sentence ends.
        fits: whether the model can read a sentence; longer ones are split at spaces.
    """
    for line in LINE_BREAKS.split(text):
        for sentence in sentences_of(line, language) if has_letters(line) else [line]:
            before = BEFORE_SENTENCE.match(sentence)[0]  # type: ignore[index]  # it matches any text
            core = sentence[len(before) :].rstrip()
            yield before, False
            for part, space in split_text(core, fits):
                yield part, has_letters(part)
                yield space, False
            yield sentence[len(before) + len(core) :], False


def sentences_of(line: str, language: str) -> Iterator[str]:
    """The sentences of a line with the spaces after them. sentencex panics at some spaces before a full stop."""
    end = 0
    for found in segment(language, UNUSUAL_SPACE.sub(" ", line)):
        yield line[end : (end := end + len(found))]
