# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Markdown (CommonMark with tables). Only the text of paragraphs, headings, lists and tables is replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from residual_hf.base.errors import requires
from residual_hf.generation.markup import Block
from residual_hf.model.placeholders import PLACEHOLDER

from .document import Document, has_text, read_text
from .literal_text import END, START, Mark, read_marks, tag, write_marks
from .plain import write_lines

with requires("documents"):
    from markdown_it import MarkdownIt

LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
ANY_END = re.compile(r"\r\n?")
"""Lines end as they do for CommonMark."""
FRONT_MATTER = re.compile(
    r"\A(?:---[ \t]*\n.*?^(?:---|\.\.\.)|\+\+\+[ \t]*\n.*?^\+\+\+)[ \t]*$", re.DOTALL | re.MULTILINE
)
"""In YAML or TOML."""
DIRECTIVE = re.compile(
    r"^([ \t>]*)(?::{3,}.*|\{:[^{}\n]*\}|\[![\w-]+\][-+]?.*|\*\[[^\]\n]+\]:.*|\[{1,2}_?TOC_?\]{1,2})[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
"""Lines of their own: containers of Pandoc and Docusaurus, attributes of kramdown, alerts of GitHub, abbreviations,
tables of contents."""
ADMONITION = re.compile(r"^([ \t]*)(?:!!!|\?\?\?\+?|===)[+ \t].*(?=\n\s*\n?\1 {4})", re.MULTILINE)
"""Of MkDocs, whose text is indented."""
DEFINITION = re.compile(r"(?<=[^\s])(\n(?:[ \t]*\n)?[ ]{0,3}):(?=[ \t]+\S)")
"""A line below a term, read as the item of a list."""
NOTE = re.compile(r"^( {0,3})\[\^[^\]\s]+\]:(?=[ \t])", re.MULTILINE)
"""The begin of a note, whose other paragraphs are indented as those of an item."""
SPECIAL = re.compile(
    r"\\(?=[!-/:-@\[-`{-~])|`|\*(?=\S)|(?<=\S)\*|(?<!\w)_(?=\S)|(?<=\S)_(?!\w)|<(?=[A-Za-z/!?])|\](?=[(\[])|&(?=#?\w+;)"
)
"""Characters that would not be text."""
AT_START = re.compile(r"\A([-+#>](?=\s)|\d+(?=[.)]\s))")
KEPT = re.compile(
    r"(\[\^[^\[\]\s]+\]|\{:? ?(?:[#.][\w-]|[\w-]+=)[^{}]*\}|(?<![\w:]):[a-z][\w+-]*:(?![\w:])|:[+-]1:"
    rf"|{PLACEHOLDER.pattern})"
)
"""Marks of notes, attributes, names of emoji, bare addresses and the placeholders of templates."""
TASK = re.compile(r"\[[ xX]\]\s+(?=\S)")
MATH = re.compile(r"\$\$[^$]{1,5000}\$\$|\$(?![\s$])(?:\\.|[^$\\]){1,1000}(?<!\s)\$(?!\d)")
"""As in Pandoc, so that prices are text."""
MATH_LINES = re.compile(r"^[ \t>]*\$\$(?:(?!\$\$|\n[ \t>]*\n).)*\$\$[ \t]*$", re.DOTALL | re.MULTILINE)
WIKI_LINK = re.compile(r"!?\[\[([^\[\]|\n]+)(?:\|([^\[\]|\n]+))?\]\]")
"""Of a page, with a text of its own if there is one; after `!` the page itself is shown."""

Place = tuple[int, int]
"""Line and column."""


class MarkdownFile(Document):
    def __init__(self, path: Path):
        super().__init__(path)
        text = read_text(path)
        self._lines = LINE.findall(text)
        text = ANY_END.sub("\n", text.removeprefix("\ufeff"))
        for kept in (FRONT_MATTER, MATH_LINES):  # blank lines in their place keep the numbers
            text = kept.sub(lambda found: "\n" * found[0].count("\n"), text)
        readings = ((DIRECTIVE, r"\1"), (ADMONITION, r"\1-   <!---->"), (DEFINITION, r"\1-"), (NOTE, r"\1-"))
        for pattern, read in readings:
            text = pattern.sub(read, text)
        parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        parser.normalizeLink = lambda url: url  # type: ignore[method-assign]  # links stay as they are written
        parser.normalizeLinkText = lambda link: link  # type: ignore[method-assign]
        parser.validateLink = lambda url: True  # type: ignore[method-assign]
        for name, pattern in (("math", MATH), ("wiki_link", WIKI_LINK)):
            parser.inline.ruler.before("escape", name, partial(_token, name, pattern))
        ends = [0] * len(self._lines)  # of what is found in each line
        self._spans: list[tuple[Place, Place, bool]] = []  # start and end of each block, and whether it is in a table
        self.blocks: list[Block] = []
        in_table = False
        for token in parser.parse(text):
            in_table = {"table_open": True, "table_close": False}.get(token.type, in_table)
            if token.type != "inline" or not token.map:
                continue
            places = self._places(token.content.split("\n"), token.map[0], ends)
            if places is None:
                continue
            prefixes = [self._lines[row][:start] for row, start, _ in places]
            block = read_marks(_parts(token.children or [], prefixes))
            if has_text(block):
                self._spans.append((places[0][:2], (places[-1][0], places[-1][2]), in_table))
                self.blocks.append(block)

    def _places(self, content: Sequence[str], first: int, ends: list[int]) -> list[tuple[int, int, int]] | None:
        """Line, start and end of each line of a content; None if the file has it in another form."""
        places = []
        for row, part in enumerate(content, start=first):
            line, end, part = self._lines[row], ends[row], part.lstrip()  # a tab before it may have become spaces
            found = [(line.find(written, end), len(written)) for written in (part, part.replace("|", "\\|"))]
            start, length = max(found)
            if start < 0:
                return None
            ends[row] = start + length
            places.append((row, start, ends[row]))
        return places

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        written: list[str] = []
        place = (0, 0)
        for (start, end, in_table), block in zip(self._spans, blocks, strict=True):
            text = write_marks(_without_empty(block), _escaped)
            text = text.replace("|", "\\|") if in_table else AT_START.sub(_escaped_start, text, count=1)
            written += [*self._between(place, start), text]
            place = end
        written += self._between(place, (len(self._lines), 0))
        write_lines(path, written)

    def _between(self, start: Place, end: Place) -> list[str]:
        lines = self._lines[start[0] : end[0] + 1]
        if end[0] < len(self._lines):
            lines[-1] = lines[-1][: end[1]]
        if lines:
            lines[0] = lines[0][start[1] :]
        return lines


def _parts(tokens: Sequence[Any], prefixes: Sequence[str]) -> Iterator[str | Mark]:
    """The text and the marks of a content whose lines begin with `prefixes`."""
    line = 0
    links: list[str] = []  # what ends those that are open
    following = iter(tokens)
    for token in following:
        if token.type == "text":
            task = TASK.match(token.content) if token is tokens[0] else None
            if task is not None:
                yield Mark(task[0])
            for number, part in enumerate(KEPT.split(token.content[task.end() if task else 0 :])):
                yield Mark(part, text="" if part.startswith("[") else part) if number % 2 else part
        elif token.type in ("softbreak", "hardbreak"):
            line += 1
            yield " " if token.type == "softbreak" else Mark(f"  \n{prefixes[line]}", text="\n")
        elif token.type == "math":
            written = token.content.split("\n")
            line += len(written) - 1
            lines = zip(prefixes[line - len(written) + 2 : line + 1], written[1:], strict=True)
            yield Mark(
                written[0] + "".join(f"\n{prefix}{part.lstrip()}" for prefix, part in lines), text=token.content
            )
        elif token.type == "wiki_link":
            page, text = WIKI_LINK.fullmatch(token.content).groups()  # type: ignore[union-attr]
            if text and token.content[0] != "!":
                yield from (Mark(f"[[{page}|", START, "a"), text, Mark("]]", END, "a"))
            else:
                yield Mark(token.content, text=page)
        elif token.type == "code_inline":
            space = " " * (token.content[:1] == "`" or token.content[-1:] == "`")
            yield Mark(f"{token.markup}{space}{token.content}{space}{token.markup}", text=token.content)
        elif token.type == "link_open" and token.markup == "autolink":
            content = next(following).content
            next(following)
            yield Mark(f"<{content}>", text=content)
        elif token.type == "link_open":
            links.append(f"]({_target(token, 'href')})")
            yield Mark("[", START, "a")
        elif token.type == "link_close":
            yield Mark(links.pop(), END, "a")
        elif token.type == "image":
            yield Mark(f"![{token.content}]({_target(token, 'src')})")
        elif token.type == "html_inline":
            yield tag(token.content)
        elif token.nesting:
            yield Mark(token.markup, START if token.nesting > 0 else END, token.tag)


def _token(name: str, pattern: re.Pattern[str], state: Any, silent: bool) -> bool:
    """A rule of the parser for what a pattern describes."""
    found = pattern.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        state.push(name, "", 0).content = found[0]
    state.pos = found.end()
    return True


def _target(token: Any, name: str) -> str:
    """Address and title of a link or an image, as they are written."""
    address, title = str(token.attrs.get(name, "")), token.attrs.get("title")
    address = f"<{address}>" if re.search("[ ()]", address) or not address else address
    return address if title is None else f'{address} "{title.replace(chr(34), chr(92) + chr(34))}"'


def _without_empty(block: Block) -> Block:
    """A block without the emphasis of no words, whose marks would be text."""
    inner = [
        each if isinstance(each, str) or each.keep else each._replace(pieces=_without_empty(each.pieces))
        for each in block
    ]
    return [each for each in inner if isinstance(each, str) or any(each.pieces) or each.content[0] != each.content[1]]


def _escaped(text: str) -> str:
    return SPECIAL.sub(lambda found: "&amp;" if found[0] == "&" else f"\\{found[0]}", text).replace("\n", "")


def _escaped_start(found: re.Match[str]) -> str:
    return f"{found[0]}\\" if found[0].isdecimal() else f"\\{found[0]}"
