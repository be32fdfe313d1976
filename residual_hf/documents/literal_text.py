"""Text whose tags are written in it, such as `<b>` in messages and `**` in Markdown."""

import html
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import NamedTuple

from residual_hf.generation.html_text import DEEPEST
from residual_hf.generation.html_tokens import VERBATIM
from residual_hf.generation.inline import BETWEEN, LINE, Block, Inline, plain_text, texts_of
from residual_hf.model import placeholders
from residual_hf.model.placeholders import FORMAT, PLACEHOLDER, RUN, TYPE
from residual_hf.model.translation_inputs import CHARACTER

EMPTY, START, END = "empty", "start", "end"
TAG = re.compile(rf"{placeholders.TAG.pattern}|<\d[\d:.]*>|\{{\\[^{{}}]*\}}")
"""Tags in messages and subtitles: of HTML, times of WebVTT, commands of SubStation Alpha."""
CODE = re.compile(f"({TAG.pattern}|{RUN.pattern})")
REFERENCE = re.compile(f"({CHARACTER.pattern})")
NAME = re.compile(r"</?([A-Za-z][\w:-]*|\d+(?= ?/?>))")
ARGUMENT, MESSAGE, BRACES = "argument", "message", "braces"
CHOICE = re.compile(r"\{\s*[\w.-]+\s*,\s*(?:plural|select|selectordinal)\s*,")
BRACE = re.compile(rf"{CHOICE.pattern}|'[{{}}][^']*'|[{{}}#]")
"""In messages of ICU: the start of a choice, quoted text, a brace, a number."""
OF_PRINTF = re.compile(rf"%(?:{FORMAT}|#@\w+@|<PRI\w+>)")
OF_PYTHON = re.compile(r"\{(?:[!:][^{}]*)?\}")
"""Placeholders that stand for the next argument."""
OF_OTHERS = re.compile(rf"(?<!%)%(?:L?\d{{1,2}}(?![\d$.]|{TYPE})|[-_0^#]?[aAbBHIjmMUWyYZ])")
"""In texts without placeholders of printf: those of Qt, and of dates."""


class Mark(NamedTuple):
    """A tag as it is written; an end has the name of its start. `text` is read with the sentence, but kept."""

    written: str
    kind: str = EMPTY
    name: str = ""
    text: str = ""


def read_marks(parts: Iterable[str | Mark]) -> Block:
    """Text and marks as a block; a start without an end, and an end without a start, is empty.

    A vertical tab in the text is a line break, and stays.
    """
    root: Block = []
    stack: list[tuple[Mark, Block]] = []
    is_open: Counter[str] = Counter()
    for part in parts:
        inside = stack[-1][1] if stack else root
        if isinstance(part, str):
            first, *rest = part.split(LINE)
            inside += [first] if first else []
            for line in rest:
                inside += [_empty(Mark(LINE, text=BETWEEN)), *filter(None, [line])]
        elif part.kind == START and len(stack) < DEEPEST:
            stack.append((part, []))
            is_open[part.name] += 1
        elif part.kind == END and is_open[part.name]:
            while True:
                mark, pieces = stack.pop()
                is_open[mark.name] -= 1
                outside = stack[-1][1] if stack else root
                if mark.name == part.name:
                    name = mark.name.lower()
                    keep = name in (*VERBATIM, "xliff:g")  # of Android
                    outside.append(Inline((mark.written, part.written), pieces, keep, name == "a", name == "sup"))
                    break
                outside += [_empty(mark), *pieces]
        else:
            inside.append(_empty(part))
    for mark, pieces in stack:
        root += [_empty(mark), *pieces]
    return root


def write_marks(block: Block, encode: Callable[[str], str] = str) -> str:
    """A block that `read_marks` has read, as text; `encode` is how text is written."""
    return "".join(map(str, spelled(block, encode)))


def characters(text: str) -> Iterator[str | Mark]:
    """A text with the characters that HTML names in it; the names of `<`, `>` and `&` stay."""
    for number, written in enumerate(REFERENCE.split(text)):
        read = html.unescape(written) if number % 2 else written
        yield Mark(written, text=read) if number % 2 and read in ("<", ">", "&") else read


def unescaped(text: str) -> Iterator[str]:
    """A text with all characters that HTML names in it."""
    yield html.unescape(text)


def kept(parts: Iterable[str]) -> Iterator[str | Mark]:
    """A text that is split at a pattern with one group: what this has found is read with the sentence, but stays."""
    for number, part in enumerate(parts):
        yield Mark(part, text=part) if number % 2 else part


def divided(parts: Iterable[str | Mark], read: Callable[[str], Iterable[str | Mark]]) -> Iterator[str | Mark]:
    """Text and marks, with what a function finds in each text in its place."""
    for part in parts:
        yield from [part] if isinstance(part, Mark) else read(part)


def marked(text: str, read: Callable[[str], Iterable[str | Mark]] = characters) -> Iterator[str | Mark]:
    """The text, the tags and the placeholders of a message or a subtitle. Each text of a choice of ICU is a line.

    `read`: gives what is between them, as `characters` or, where it is written as in HTML, `unescaped`.
    """
    return _marked(text, read, [] if _is_balanced([text]) else None)


def marked_block(block: Block, split: Callable[[str], Iterable[str | Mark]] = lambda text: [text]) -> Block:
    """A block with the tags and the placeholders in its text as elements; a choice of ICU may go over elements.

    `split`: gives further marks in a text, and what is between them.
    """
    opened: list[str] | None = [] if _is_balanced(texts_of(block)) else None

    def read(pieces: Block) -> Block:
        found: Block = []
        for piece in pieces:
            if isinstance(piece, str):
                found += read_marks(divided(split(piece), lambda text: _marked(text, characters, opened)))
            else:
                found.append(piece if piece.keep else piece._replace(pieces=read(piece.pieces)))
        return found

    return read(block)


def spelled(block: Block, encode: Callable[[str], str] = str) -> Iterator[str | Inline]:
    """The pieces of a block with its marks as text; `encode` is how other text is written."""
    for piece in block:
        if isinstance(piece, str):
            yield encode(piece.replace(LINE, ""))
        elif not isinstance(piece.content, tuple):
            yield piece
        else:
            start, end = piece.content
            yield start
            if end or not piece.keep:  # else it is written by its tag alone, and has what is read for it
                yield from spelled(piece.pieces, encode)
            yield end


def in_order(source: Block, translation: Block) -> Block:
    """A translation whose placeholders that stand for the next argument have its number, if their order changes."""
    if not OF_OTHERS.search(plain_text(source)):
        translation = _in_order(source, translation, OF_PRINTF, "%{}$", 1)
    return _in_order(source, translation, OF_PYTHON, "{{{}", 0)


def _in_order(source: Block, translation: Block, kind: re.Pattern[str], begin: str, first: int) -> Block:
    """`begin`: how placeholders of a kind begin with a number; `first`: that of the first argument."""
    places = count(first)

    def numbered(name: re.Match[str]) -> str:
        return begin.format(next(places)) + name[0][1:] if kind.fullmatch(name[0]) else name[0]

    own, moved = (
        [mark for mark in _starts(block) if any(map(kind.fullmatch, PLACEHOLDER.findall(mark)))]
        for block in (source, translation)
    )
    if own == moved or sorted(own) != sorted(moved):
        return translation
    new: dict[str, deque[str]] = {mark: deque() for mark in own}
    for mark in own:
        new[mark].append(PLACEHOLDER.sub(numbered, mark))
    return with_marks(translation, lambda start, end: (new[start].popleft() if start in new else start, end))


def _starts(block: Block) -> Iterator[str]:
    """The marks of a block as they are written, without ends."""
    for piece in block:
        if isinstance(piece, Inline):
            yield from piece.content[:1] if isinstance(piece.content, tuple) else ()
            yield from _starts(piece.pieces)


def with_marks(block: Block, change: Callable[[str, str], tuple[str, str]]) -> Block:
    """A block with other marks, in order, given by a function of the start and the end of each."""
    found: Block = []
    for piece in block:
        if isinstance(piece, Inline):
            content = change(*piece.content) if isinstance(piece.content, tuple) else piece.content
            piece = piece._replace(content=content, pieces=with_marks(piece.pieces, change))
        found.append(piece)
    return found


def _is_balanced(texts: Iterable[str]) -> bool:
    opened: list[str] = []
    for text in texts:
        list(_choices(text, opened))
    return not opened


def _marked(text: str, read: Callable[[str], Iterable[str | Mark]], opened: list[str] | None) -> Iterator[str | Mark]:
    parts: Iterable[str | Mark] = [text] if opened is None else _choices(text, opened)
    return divided(divided(parts, _codes), read)


def _codes(text: str) -> Iterator[str | Mark]:
    """The tags and the placeholders in a text, and what is between them."""
    for part in kept(CODE.split(text)):
        yield tag(part.written) if isinstance(part, Mark) and TAG.fullmatch(part.written) else part


def _choices(text: str, opened: list[str]) -> Iterator[str | Mark]:
    """A text with the syntax of choices as marks; `opened`: what is open before it, and after it."""
    start = 0
    for found in BRACE.finditer(text):
        within = opened[-1] if opened else ""
        begins = ends = False  # syntax
        if found[0] == "#":
            if MESSAGE in opened[-DEEPEST:] and within != ARGUMENT:
                yield text[start : found.start()]
                yield Mark("#", text="#")
                start = found.end()
        elif found[0] == "{":
            ends = within == ARGUMENT
            opened.append(MESSAGE if ends else BRACES)
        elif found[0] == "}" and opened:
            begins, ends = opened.pop() == MESSAGE, within == ARGUMENT
        elif found[0].endswith(","):
            opened.append(ARGUMENT)
            begins = True
        if begins:
            yield text[start : found.start()]
            start = found.start()
        elif ends:
            yield Mark(text[start : found.end()], text=BETWEEN)
            start = found.end()
    rest = text[start:]
    yield Mark(rest, text=BETWEEN) if opened[-1:] == [ARGUMENT] and rest else rest


def tag(written: str) -> Mark:
    """A tag or a comment."""
    name = NAME.match(written)
    if name is not None and name[1].lower() in ("br", "byte"):
        return Mark(written, text=BETWEEN)
    if name is None or written.endswith("/>"):
        return Mark(written)
    return Mark(written, END if written.startswith("</") else START, name[1])


def _empty(mark: Mark) -> Inline:
    return Inline((mark.written, ""), [mark.text] if mark.text else [], keep=True)
