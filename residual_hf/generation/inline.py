"""Blocks of text with inline elements, and what a model reads of elements without text and of notes."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import regex

from .long_text import UNSPACED


class Inline(NamedTuple):
    """A part of a block with markup; see `markup`. A `link` is around a word of the translation in any case.

    `raised`: it is a superscript, whose letter after a word is the sign of a note.
    """

    content: Any
    pieces: "list[str | Inline]" = []  # never changed
    keep: bool = False
    link: bool = False
    raised: bool = False


Block = list[str | Inline]


def plain_text(block: Block) -> str:
    """The text of a block, with that of its elements."""
    return "".join(piece if isinstance(piece, str) else plain_text(piece.pieces) for piece in block)


def texts_of(block: Block) -> Iterator[str]:
    """The texts of a block, but not those that are kept."""
    for piece in block:
        if isinstance(piece, str):
            yield piece
        elif not piece.keep:
            yield from texts_of(piece.pieces)


def merged(block: Block) -> Block:
    """A block with texts side by side as one, and without empty ones."""
    found: Block = []
    for is_text, group in groupby(block, lambda piece: isinstance(piece, str)):
        pieces = list(group)
        found += filter(None, ["".join(map(str, pieces))]) if is_text else pieces
    return found


def links_apart(block: Block) -> Block:
    """A block with its links as texts of their own, if it has nothing but links that touch each other."""
    found: Block = []
    end = 0  # of the last piece with text
    for piece in block:
        if isinstance(piece, str) or not _is_linked(piece):
            return block
        has_text = plain_text([piece]) != ""
        if has_text and end:
            found.insert(end, Inline(("", ""), [BETWEEN], keep=True))
        found.append(piece if piece.link else piece._replace(pieces=links_apart(piece.pieces)))
        end = len(found) if has_text else end
    return found


def _is_linked(piece: str | Inline) -> bool:
    """Whether all of the text of a piece is in links."""
    if isinstance(piece, str):
        return False
    return piece.link or not plain_text([piece]) or (not piece.keep and all(map(_is_linked, piece.pieces)))


LINE = "\v"
"""Separator of texts that are translated one by one."""
BETWEEN = f"{LINE}|{LINE}"
"""Stand-in for what is between such texts."""
LINES = ("\n", LINE)
"""Characters before the start of a line."""
AFTER_WORD = re.compile(r"(?:[^\W\d_][^\w\s]*|\d)\Z")
AFTER_LONG_WORD = re.compile(r"[^\W\d_]{2}[^\w\s]*\Z")
AFTER_WHOLE_WORD = re.compile(r"[^\W\d_]{4}\Z")
"""Before a superscript that is a note within a word, as in "king<sup>1</sup>s"; formulas have shorter names."""
BESIDE_NUMBER = regex.compile(rf"(?:{UNSPACED.pattern})\p{{M}}*[^\s\w]*\Z")
"""Before a number of the text, in scripts without spaces."""
NOTE = re.compile(r"[\d*†‡§,–-]{1,5}|\[\w{1,4}\]")
"""Text of an element that the model does not read: a number, or a sign in brackets, directly after a word."""
RAISED_NOTE = re.compile(r"[^\W\d_]")
"""The same of a superscript after a word of several letters; in "M<sup>r</sup>" it is a part of the word."""


class Content(NamedTuple):
    """The content of an element, and whether it is without text: between two spaces, or after a word, as notes are.

    Of a note with text, `value` is the element.
    """

    value: Any
    is_word: bool = False
    follows_word: bool = False


def read_block(block: Block, contents: list[Content], *, at_start: bool = True) -> Block:
    """A block whose elements have numbers as content, which are the places of their contents in a list.

    The model reads one space where an element without text is between two, and none where one is before the first
    word of a paragraph (`at_start`).
    """
    found: Block = []
    for previous, piece, following in zip(["", *block], block, [*block[1:], ""], strict=False):
        last = found[-1] if found else ""
        if isinstance(piece, str):
            is_word = isinstance(last, Inline) and contents[last.content].is_word
            found.append(piece[1:] if is_word else piece)
            continue
        before, after = plain_text([previous])[-1:], plain_text([following])[:1]
        is_note = _is_note(piece, plain_text([previous]), after)
        if is_note:
            piece = Inline(piece)
        empty = plain_text([piece]) == ""
        if (at_start and not found) or before in LINES:
            before = " "
        follows_word = empty and before.strip() != "" and (is_note or not after.isalnum())
        number = len(contents)
        contents.append(Content(piece.content, empty and before == after == " ", follows_word))
        found.append(piece._replace(content=number, pieces=read_block(piece.pieces, contents, at_start=False)))
    return found


def _is_note(piece: Inline, before: str, after: str) -> bool:
    """Whether an element between two texts is a note, which the model does not read."""
    text = plain_text([piece])
    if after.isalpha():
        return piece.raised and NOTE.fullmatch(text) is not None and AFTER_WHOLE_WORD.search(before) is not None
    if not piece.raised and text[:1].isdecimal() and BESIDE_NUMBER.search(before):
        return False
    note, word = (RAISED_NOTE, AFTER_LONG_WORD) if piece.raised and text.isalpha() else (NOTE, AFTER_WORD)
    return not after.isalnum() and note.fullmatch(text) is not None and word.search(before) is not None


def restored(block: Block, contents: list[Content]) -> Block:
    """A block with the contents of its elements, after `read_block`."""
    found: Block = []
    space = ""
    for piece, following in zip(block, [*block[1:], None], strict=False):
        if isinstance(piece, str):
            found.append(space + piece)
            space = ""
            continue
        if space:
            found.append(space)
            space = ""
        content, last = contents[piece.content], found[-1] if found else ""
        if isinstance(last, str) and last[-1:] in ("", " ", *LINES):
            moves = content.follows_word and bool(found)
            space = " " * ((content.is_word or moves) and following is not None)
            if moves:
                found[-1] = last[:-1]
        elif content.is_word:
            found.append(" ")
        written = piece._replace(content=content.value, pieces=restored(piece.pieces, contents))
        found.append(content.value if isinstance(content.value, Inline) else written)
    return found
