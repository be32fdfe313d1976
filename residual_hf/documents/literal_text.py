# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Text whose tags are written in it, such as `<b>` in messages and `**` in Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from residual_hf.generation.markup import Block, Inline
from residual_hf.model import placeholders
from residual_hf.model.placeholders import PLACEHOLDER

EMPTY, START, END = "empty", "start", "end"
TAG = re.compile(rf"{placeholders.TAG.pattern}|<\d[\d:.]*>|\{{\\[^{{}}]*\}}")
"""Tags in messages and subtitles: of HTML, times of WebVTT, commands of SubStation Alpha."""
CODE = re.compile(f"({TAG.pattern}|{PLACEHOLDER.pattern})")
DEEPEST = 100  # tags within each other; further ones are empty
NAME = re.compile(r"</?([A-Za-z][\w:-]*)")


class Mark(NamedTuple):
    """A tag as it is written; an end has the name of its start. `text` is read with the sentence, but kept."""

    written: str
    kind: str = EMPTY
    name: str = ""
    text: str = ""


def read_marks(parts: Iterable[str | Mark]) -> Block:
    """Text and marks as a block; a start without an end, and an end without a start, is empty."""
    root: Block = []
    stack: list[tuple[Mark, Block]] = []
    is_open: Counter[str] = Counter()
    for part in parts:
        inside = stack[-1][1] if stack else root
        if isinstance(part, str):
            inside += [part] if part else []
        elif part.kind == START and len(stack) < DEEPEST:
            stack.append((part, []))
            is_open[part.name] += 1
        elif part.kind == END and is_open[part.name]:
            while True:
                mark, pieces = stack.pop()
                is_open[mark.name] -= 1
                outside = stack[-1][1] if stack else root
                if mark.name == part.name:
                    outside.append(Inline((mark.written, part.written), pieces))
                    break
                outside += [_empty(mark), *pieces]
        else:
            inside.append(_empty(part))
    for mark, pieces in stack:
        root += [_empty(mark), *pieces]
    return root


def write_marks(block: Block, encode: Callable[[str], str] = str) -> str:
    """A block that `read_marks` has read, as text; `encode` is how text is written."""
    return "".join(
        encode(piece)
        if isinstance(piece, str)
        else piece.content[0] + ("" if piece.keep else write_marks(piece.pieces, encode)) + piece.content[1]
        for piece in block
    )


def marked(text: str, decode: Callable[[str], str] = str) -> Iterator[str | Mark]:
    """The text, the tags and the placeholders of a message or a subtitle."""
    for number, part in enumerate(CODE.split(text)):
        if number % 2 == 0:
            yield decode(part)
        else:
            yield tag(part) if TAG.fullmatch(part) else Mark(part, text=part)


def tag(written: str, line_break: str = " ") -> Mark:
    """A tag or a comment. `line_break`: how `<br>` is read."""
    name = NAME.match(written)
    if name is not None and name[1].lower() == "br":
        return Mark(written, text=line_break)
    if name is None or written.endswith("/>"):
        return Mark(written)
    return Mark(written, END if written.startswith("</") else START, name[1])


def _empty(mark: Mark) -> Inline:
    return Inline((mark.written, ""), [mark.text] if mark.text else [], keep=True)
