"""Layout in blocks: spaces, line breaks, pictures and notes, which the model does not read, stay in their places."""

import re
from collections.abc import Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple

from residual_hf.generation.inline import LINE, Block, Inline, merged, plain_text

SPACES = " \t\xa0\u2002\u2003\u2007\u2009\u202f\u3000"
UNREAD = re.compile(r"<r[tp][\s>]", re.IGNORECASE)
"""The start tag of the reading of ruby text."""
WIDE = re.compile(r"\s\s|\A\s.*\s\Z", re.DOTALL)
"""Layout between words of which the model reads one space. NUL stands for elements."""
LEAST_GAP = 3
"""Spaces between words that are layout."""
GAP = re.compile(rf"(?<=\S)(?=[{SPACES}]{{0,2}}\t|[{SPACES}]{{{LEAST_GAP}}})([{SPACES}]+)(?=\S)")
"""Tabs and spaces between words of a line that are layout."""


class Layout(NamedTuple):
    """Content of `Inline`: spaces, and elements without text."""

    pieces: Block


def numbered(block: Block, contents: list[Any], edges: tuple[bool, bool] = (True, True)) -> Block:
    """A block whose elements have numbers as content, which are the places of their contents in a list.

    Layout is an element: tabs, line breaks and pictures with the spaces around them. The model reads a line feed for
    one with a break, a vertical tab for a tab in the text, one space between words, and nothing at the `edges` of a
    paragraph: whether the block begins, and ends, where the paragraph does. Of many spaces it reads one.
    """
    found: Block = []
    block = _with_layout(block, edges)
    for place, piece in enumerate(block):
        if isinstance(piece, str):
            found.append(piece)
        elif isinstance(piece.content, Layout):
            read: Block = [LINE if _is_tab(piece) else "\n"] if piece.keep else []
            found += [Inline(len(contents), read, piece.keep), *piece.pieces]
            contents.append(piece)
        else:
            number = len(contents)
            contents.append(piece.content)
            inner = edges[0] and place == 0, edges[1] and place == len(block) - 1
            found.append(piece._replace(content=number, pieces=numbered(piece.pieces, contents, inner)))
    return merged(found)


def _with_layout(block: Block, edges: tuple[bool, bool]) -> Block:
    """A block with layout as elements: `keep` if it has a break, with the text that is read between words."""
    parts: list[str | Inline] = []
    for piece in block:
        if isinstance(piece, str):
            start, end = len(piece) - len(piece.lstrip(SPACES)), len(piece.rstrip(SPACES))
            parts += filter(None, (piece[:start], *GAP.split(piece[start:end]), piece[max(start, end) :]))
        else:
            is_unread = isinstance(piece.content, tuple) and UNREAD.match(str(piece.content[0])) is not None
            parts.append(_layout([piece]) if is_unread else piece)
    groups = [(key, list(group)) for key, group in groupby(parts, lambda piece: not plain_text([piece]).strip())]
    found: Block = []
    for number, (is_layout, pieces) in enumerate(groups):
        after_line = bool(found) and plain_text(found[-1:]).endswith(LINE)
        at_start, at_end = after_line or edges[0] and not number, edges[1] and number == len(groups) - 1
        if is_layout and number and not at_start:
            notes = [*takewhile(lambda piece: not plain_text([piece]), pieces)]
            found += notes if len(notes) < 2 else [_layout(notes)]
            del pieces[: len(notes)]
        text = "".join(piece if isinstance(piece, str) else plain_text([piece]) or "\0" for piece in pieces)
        has_break, has_element = "\n" in text, any(isinstance(piece, Inline) for piece in pieces)
        is_within = not (has_break or at_start or at_end)
        if is_layout and has_element and (not is_within or WIDE.search(text)):
            if (has_break or at_start) and number + 1 < len(groups):
                following = groups[number + 1][1]
                spaces, following[0] = _without_indent(following[0])
                pieces += filter(None, [spaces])
            found.append(_layout(pieces, [" "] * is_within, has_break=has_break))
        elif is_layout and is_within and not has_element and "\t" in text:
            found.append(_layout(pieces, has_break=True))
        elif is_layout and is_within and not has_element and len(text) >= LEAST_GAP:
            found += [_layout([text[:-1]]), " "]
        else:
            found += pieces
    return merged(found)


def _layout(pieces: Block, read: Sequence[str] = (), *, has_break: bool = False) -> Inline:
    found: Block = []
    for piece in pieces:
        found += piece.content.pieces if isinstance(piece, Inline) and isinstance(piece.content, Layout) else [piece]
    return Inline(Layout(found), [*read], has_break)


def _without_indent(piece: str | Inline) -> tuple[str, str | Inline]:
    """The spaces at the start of a piece, and the rest of it."""
    if isinstance(piece, str):
        rest = piece.lstrip(SPACES)
        return piece[: len(piece) - len(rest)], rest
    if piece.keep or not piece.pieces:
        return "", piece
    spaces, first = _without_indent(piece.pieces[0])
    return spaces, piece._replace(pieces=[first, *piece.pieces[1:]])


def _is_tab(content: Any) -> bool:
    """Whether the content of an element is a break without an element of the format."""
    is_break = isinstance(content, Inline) and isinstance(content.content, Layout) and content.keep
    return is_break and all(isinstance(piece, str) for piece in content.content.pieces)


def restored(block: list[Any], contents: list[Any]) -> Block:
    """A block with the contents of its elements, after `numbered` and JSON, which makes lists of them."""
    found = _restored(block, contents)
    return _without_lines(found) if any(map(_is_tab, contents)) else found


def _without_lines(block: Block) -> Block:
    """A block without what the model has read for tabs."""
    return [
        piece.replace(LINE, "") if isinstance(piece, str) else piece._replace(pieces=_without_lines(piece.pieces))
        for piece in block
    ]


def _restored(block: list[Any], contents: list[Any]) -> Block:
    found: Block = []
    pending = list(block)
    for place, piece in enumerate(pending):
        if isinstance(piece, str):
            found.append(piece)
            continue
        number, pieces, *marks = piece
        value, last = contents[number], found[-1] if found else ""
        following = pending[place + 1] if place + 1 < len(pending) else None
        if not (isinstance(value, Inline) and isinstance(value.content, Layout)):
            found.append(Inline(value, _restored(pieces, contents), *marks))
            continue
        if value.pieces:  # in the place of a space
            if isinstance(last, str) and last.endswith(" "):
                found[-1] = last[:-1]
            elif isinstance(following, str):
                pending[place + 1] = following.removeprefix(" ")
                if following == " ":
                    following = pending[place + 2] if place + 2 < len(pending) else None
        found += _trimmed(value, is_first=not any(found), following=following)
    return merged(found)


def _trimmed(layout: Inline, *, is_first: bool, following: Any) -> Block:
    """The pieces of layout, which was between words, without the spaces that are not."""
    pieces = list(layout.content.pieces)
    if layout.pieces and is_first and isinstance(pieces[0], str):
        del pieces[0]
    at_end = following is None or isinstance(following, str) and not following[:1].isalnum() and following[:1] != " "
    if layout.pieces and at_end and pieces and isinstance(pieces[-1], str):
        del pieces[-1]
    return pieces
