"""XML elements whose content is text with elements inside, as OpenDocument and XLIFF have."""

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from residual_hf.base.xml_reader import attribute, etree, local_name
from residual_hf.generation.markup import Block, Inline

from .literal_text import spelled

OF_ANGULAR = re.compile(r"(START|CLOSE)_(.+?)(?:_\d+)?")
"""Identifiers of `<x>` in XLIFF where a tag starts or ends."""
MOST_SPANS = 8  # within each other in an element; elements may be within each other too


class Dialect(NamedTuple):
    """Local names of elements inside text.

    Attributes:
        paired: whose content is part of the text; others are moved as they are.
        spaces: which stand for a space, or for more after a space.
        breaks: which end a line.
        without_text: elements whose text is not read, by default all; that of others is, and stays.
        shown: attributes with the text that others stand for, which is read with the sentence.
        spans: which begin a part of the text, and which end it; what these stand for is not read.
    """

    paired: Collection[str]
    spaces: Collection[str] = ()
    breaks: Collection[str] = ()
    without_text: Collection[str] | None = None
    shown: Collection[str] = ()
    spans: Mapping[str, str] = {}


@dataclass(frozen=True)
class Span:
    """Two empty elements around a part of the text, such as the start and the end of a bookmark."""

    first: Any
    last: Any


def read_mixed(element: Any, dialect: Dialect, *, keeps_space: bool = False) -> Block:
    """The content of an element without comments; the elements inside are the content of `Inline`.

    `keeps_space`: as it is written.
    """
    as_text = str if keeps_space else _in_line
    block: Block = [as_text(element.text or "")]
    for child in element:
        name = local_name(child)
        if not name:  # a comment or a processing instruction
            block[-1] = as_text(f"{block[-1]}{child.tail or ''}")
            continue
        last = block[-1]
        count = _count(child) if name in dialect.spaces else 0
        if count == 1 and isinstance(last, str) and last[-1:].strip():
            block.append(" ")
        elif count:
            block.append(Inline(child, [" " * count], keep=True))
        elif name in dialect.breaks:
            block.append(Inline(child, ["\n"], keep=True))
        elif name in dialect.paired:
            pieces = read_mixed(child, dialect, keeps_space=keeps_space)
            is_protected = child.get("translate") == "no" or child.get("mtype") == "protected"  # in XLIFF 2 or 1.2
            block.append(Inline(child, pieces, is_protected, link=name == "a"))
        else:
            text = next((child.get(name) for name in dialect.shown if child.get(name)), "")
            if dialect.without_text is not None and name not in dialect.without_text and len(child) == 0:
                text = _in_line(child.text or "")
            block.append(Inline(child, [text] if text else [], keep=text != ""))
        block.append(as_text(child.tail or ""))
    return _with_spans([piece for piece in block if piece != ""], dialect.spans)


def write_mixed(
    element: Any, block: Block, dialect: Dialect, *, copied: bool = False, keeps_space: bool = False
) -> None:
    """Replace the content of an element. What is not paired is moved there, or `copied`."""
    del element[:]
    element.text = None
    _append(element, block, dialect, copied, keeps_space)


def _append(element: Any, block: Block, dialect: Dialect, copied: bool, keeps_space: bool) -> None:
    for piece in spelled(block):
        if isinstance(piece, str):
            text = piece if keeps_space else piece.replace("\n", "")  # which stood for a break
            if len(element):
                element[-1].tail = (element[-1].tail or "") + text
            else:
                element.text = (element.text or "") + text
        elif isinstance(piece.content, Span):
            around = [Inline(piece.content.first), *piece.pieces, Inline(piece.content.last)]
            _append(element, around, dialect, copied, keeps_space)
        elif local_name(piece.content) in dialect.paired and not piece.keep:
            inside = etree.SubElement(element, piece.content.tag, piece.content.attrib, piece.content.nsmap)
            _append(inside, piece.pieces, dialect, copied, keeps_space)
        else:
            child = copy.deepcopy(piece.content) if copied else piece.content
            child.tail = None
            element.append(child)


def _with_spans(block: Block, spans: Mapping[str, str]) -> Block:
    """A block with spans as elements; of two that cross, the ends of the one that begins later stay apart."""
    found: Block = []
    opened: list[tuple[tuple[str, str], int, Any]] = []
    for piece in block:
        if isinstance(piece, Inline):
            name, identifier = local_name(piece.content), _identifier(piece.content)
            is_start, key = name in spans, (spans.get(name, name), identifier)
            if angular := name == "x" and OF_ANGULAR.fullmatch(identifier):
                is_start, key = angular[1] == "START", (name, angular[2])
            if is_start and len(opened) < MOST_SPANS:
                opened.append((key, len(found), piece.content))
            elif not is_start and any(key == begun for begun, *_ in opened):
                while opened[-1][0] != key:
                    opened.pop()
                _, place, first = opened.pop()
                found[place:] = [Inline(Span(first, piece.content), found[place + 1 :])]
                continue
        found.append(piece)
    return found


def _identifier(element: Any) -> str:
    """The identifier that the elements at the start and at the end of a span share."""
    found = (attribute(element, name) for name in ("startRef", "rid", "name", "change-id", "id"))
    return next(filter(None, found), "")


def _count(spaces: Any) -> int:
    """How many spaces an element of OpenDocument stands for, of at most 1,000."""
    count = attribute(spaces, "c", "1")
    return min(int(count), 1000) if count.isdecimal() and len(count) < 9 else 1


def _in_line(text: str) -> str:
    return re.sub("[ \\t\\r\\n]+", " ", text)
