"""Markdown (CommonMark with tables). Only the text of paragraphs, headings, lists and tables is replaced."""

import re
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category
from urllib.parse import unquote

import regex

from residual_hf.generation.inline import LINE, Block, Inline, links_apart, plain_text
from residual_hf.model.placeholders import Edit, EditedText

from .document import DocumentFile, has_text, read_text
from .literal_text import read_marks, with_marks, write_marks
from .markdown_parts import SHORT_LINK, markdown_parser, parsed, parts_of

WITH_END = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
ANY_END = re.compile(r"\r\n?")
"""Lines end as they do for CommonMark."""
SPECIAL = re.compile(r"[\\`*_{}\[\]<>#!~$&^]|:(?=\S)|\A[-+=]|(?<=\d)[.)](?=\s|\Z)")
"""Characters that may be marks."""
ENTITIES = {"<": "&lt;", "&": "&amp;"}
CONTEXTS = {"heading_open": "# ", "th_open": "|a|\n|-|\n|", "td_open": "|a|\n|-|\n|"}
"""Mark before a text that is no paragraph."""
NO_SLUG = regex.compile(r"[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc} -]")
"""Characters of a heading that its identifier does not have, as GitHub and Docusaurus make it."""
OWN_ID = re.compile(
    r"""<[^<>]*?\s(?:id|name)=["']?([^\s"'<>]+)|^[ \t>]*\(([^()\s]+)\)=|\{[^{}\n]*#([^\s{}]+)""", re.MULTILINE
)
"""An identifier that the page names: in a tag, the label of a heading or its attributes."""
ANCHOR = re.compile(r"""(\][(:]\s*<?|\bhref=["']?)#([^\s<>()"']+)""")
"""The target of a link within the page, in what is behind its text, a definition or a tag."""


class TextRange(NamedTuple):
    """Place of a block in the file, what is between its lines, and the form of its characters."""

    start: int
    end: int
    line_break: str
    context: str
    spelling: dict[str, list[str]]


class MarkdownFile(DocumentFile):
    def __init__(self, path: Path):
        self._text = read_text(path)
        self._parser = markdown_parser(is_mdx=path.suffix.lower() == ".mdx")
        self._env: dict[str, Any] = {}
        lines = WITH_END.findall(self._text)
        self._starts = list(accumulate(map(len, lines), initial=0))
        ends = self._starts[:-1]  # of what is found in each line
        self._spans: list[TextRange] = []
        self._headings: list[tuple[Block, int | None]] = []  # and the place in `blocks`
        self._html: list[Sequence[int]] = []  # first line, and that behind the last one
        self.blocks: list[Block] = []
        last: Any = None
        text = ANY_END.sub("\n", self._text.removeprefix("\ufeff").replace(LINE, " "))
        for token in parsed(self._parser, text, self._env):
            opening, last = last, token
            if token.type == "html_block":
                self._html.append(token.map)
            if token.type != "inline" or not token.map:
                continue
            first = token.map[0]
            places = self._places(token.content.split("\n"), first, ends)
            spelled: list[str] = []
            block = links_apart(read_marks(parts_of(token.children or [], spelled)))
            is_written = has_text(block) or ANCHOR.search(token.content) is not None
            if opening.type == "heading_open":
                self._headings.append((block, len(self.blocks) if places and is_written else None))
            if places and is_written:
                further = min(1, len(places) - 1)
                prefix = self._text[self._starts[first + further] : places[further][0]]
                line_break = lines[first][len(lines[first].rstrip("\r\n")) :] + prefix
                context = CONTEXTS.get(opening.type, "") if opening.markup not in ("=", "-") else ""
                place = (places[0][0], places[-1][1], line_break)
                self._spans.append(TextRange(*place, context, _spelling(block, spelled)))
                self.blocks.append(block)

    def _places(self, content: Sequence[str], first: int, ends: list[int]) -> list[tuple[int, int]] | None:
        """Start and end of each line of a content; None if the file has it in another form."""
        places = []
        for row, part in enumerate(content, start=first):
            part = part.lstrip()  # a tab before it may have become spaces
            forms = (part, part.replace("|", "\\|"))
            start, length = max((self._text.find(form, ends[row], self._starts[row + 1]), len(form)) for form in forms)
            if start < 0:
                return None
            ends[row] = start + length
            places.append((start, ends[row]))
        return places

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        new = self._new_slugs(blocks)

        def relinked(text: str) -> str:
            return ANCHOR.sub(lambda found: f"{found[1]}#{new.get(unquote(found[2]).lower(), found[2])}", text)

        edits = []
        for span, block in zip(self._spans, blocks, strict=True):
            linked = with_marks(block, lambda start, end: (relinked(start), relinked(end)) if end else (start, end))
            text = self._written(_without_empty(linked), span)
            edits.append(Edit(span.start, span.end, text.replace("\n", span.line_break)))
        definitions = (each["map"] for each in self._env.get("references", {}).values())
        for lines in (*self._html, *definitions):
            start, end = (self._starts[line] for line in lines)
            edits.append(Edit(start, end, relinked(self._text[start:end])))
        path.write_bytes(EditedText(self._text, sorted(edits)).text.encode())

    def _new_slugs(self, blocks: Sequence[Block]) -> dict[str, str]:
        """The identifiers of headings that change; those that the page names stay."""
        translated = [heading if place is None else blocks[place] for heading, place in self._headings]
        slugs = zip(_slugs(heading for heading, _ in self._headings), _slugs(translated), strict=True)
        named = {found[found.lastindex or 0] for found in OWN_ID.finditer(self._text)}
        return {old: new for old, new in slugs if new not in ("", old) and old not in named}

    def _written(self, block: Block, span: TextRange) -> str:
        """A block as it is read again: with the escapes of the source, with all, or with other marks of emphasis."""
        for form in (block, _plainer(block), _plainer(block, spaced=True)):
            for encode in (_respelled(form, span.spelling), _escaped):
                text = _with_short_links(write_marks(form, encode))
                text = text.replace("|", "\\|") if "|" in span.context else text
                if self._reads(text, span.context) == _marks(form):
                    return text
        return text

    def _reads(self, text: str, context: str) -> str:
        """The text and the marks of a text in its context; empty for more or less than one block."""
        env = {"references": ChainMap({}, self._env.get("references", {}))}
        tokens = parsed(self._parser, context + text, env)
        opening = "table_open" if "|" in context else "heading_open" if context else "paragraph_open"
        if not tokens or tokens[0].type != opening or [token.level for token in tokens].count(0) > 2:
            return ""
        last = [token for token in tokens if token.type == "inline"][-1]
        return _marks(read_marks(parts_of(last.children or [], [])))


def _slugs(headings: Iterable[Block]) -> Iterator[str]:
    """The identifiers of headings, of which equal ones get numbers."""
    numbers: dict[str, int] = {}
    for heading in headings:
        slug = base = NO_SLUG.sub("", plain_text(heading).strip().lower()).replace(" ", "-")
        while slug in numbers:
            numbers[base] += 1
            slug = f"{base}-{numbers[base]}"
        numbers[slug] = 0
        yield slug


def _without_empty(block: Block) -> Block:
    """A block without the emphasis of no words, whose marks would be text."""
    inner = [
        each if isinstance(each, str) or each.keep else each._replace(pieces=_without_empty(each.pieces))
        for each in block
    ]
    return [each for each in inner if isinstance(each, str) or any(each.pieces) or each.content[0] != each.content[1]]


def _plainer(block: Block, *, spaced: bool = False) -> Block:
    """A block with `*` for `_`, which is no mark beside letters, and with a space between a letter outside of emphasis
    and a mark inside, without which it would be none; with `spaced`, around all emphasis.

    Text without spaces between words has both.
    """
    found: Block = []
    around = ["", *block, ""]
    for previous, piece, following in zip(around, block, around[2:], strict=False):
        if isinstance(piece, str):
            begins = _is_emphasis(previous) and (spaced or not _is_letter(_inside(previous)[-1:]))
            ends = _is_emphasis(following) and (spaced or not _is_letter(_inside(following)[:1]))
            found.append(" " * (begins and _is_letter(piece[:1])) + piece + " " * (ends and _is_letter(piece[-1:])))
        else:
            content = (part.replace("_", "*") for part in piece.content) if _is_emphasis(piece) else piece.content
            found.append(piece._replace(content=tuple(content), pieces=_plainer(piece.pieces, spaced=spaced)))
    return found


def _inside(piece: Any) -> str:
    """What is between the marks of emphasis."""
    return write_marks(piece.pieces, _escaped)


def _is_letter(character: str) -> bool:
    return character.isalnum() or category(character or " ").startswith("M")


def _is_emphasis(piece: str | Inline) -> bool:
    return isinstance(piece, Inline) and re.fullmatch(r"_+|\*+|~~", piece.content[0]) is not None


def _marks(block: Block) -> str:
    """The text and the marks of a block; NUL is around marks that text could be."""
    parts = []
    for piece in block:
        if isinstance(piece, str):
            parts.append(piece.replace("\n", "").replace(LINE, ""))
        elif piece.content[0]:
            written, text = piece.content[0], plain_text(piece.pieces)
            is_text = piece.keep and written == text and text[0] != "$"
            inside = "" if piece.keep and not piece.content[1] else _marks(piece.pieces)
            parts.append(text if is_text else f"\0{written}\0{inside}\0{piece.content[1]}\0")
    return " ".join("".join(parts).split())


def _text(block: Block) -> str:
    """The text that `write_marks` encodes."""
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return ""

    write_marks(block, note)
    return "".join(texts)


def _spelling(block: Block, spelled: Sequence[str]) -> dict[str, list[str]]:
    """How each character is written, in order, of those that the text of a block has escaped."""
    pairs = list(zip(_text(block), spelled, strict=True))
    found: dict[str, list[str]] = {character: [] for character, written in pairs if character != written}
    for character, written in pairs:
        if character in found:
            found[character].append(written)
    return found


def _respelled(block: Block, spelling: Mapping[str, list[str]]) -> Callable[[str], str]:
    """How text is written: characters that it has as often as the source are escaped where they are there."""
    counts = Counter(_text(block))
    given = {character: iter(written) for character, written in spelling.items() if counts[character] == len(written)}
    return lambda text: "".join(next(given[each]) if each in given else each for each in text.replace("\n", ""))


def _with_short_links(text: str) -> str:
    """Links whose label is their text, which get the label if the text is another one."""

    def link(found: re.Match[str]) -> str:
        text, label, end = found.groups()
        return f"[{text}{end}" if text.casefold() == label.casefold() else f"[{text}][{label}]"

    return SHORT_LINK.sub(link, text)


def _escaped(text: str) -> str:
    return SPECIAL.sub(lambda found: ENTITIES.get(found[0], f"\\{found[0]}"), text).replace("\n", "")
