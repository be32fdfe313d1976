# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Text of any length as sentences and the layout between them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html.parser import HTMLParser

from sentencex import segment

from residual_hf.generation.checks import has_letters
from residual_hf.generation.long_text import space_between, split_text

LINE_BREAKS = re.compile(r"([\r\n\v\f\x85\u2028\u2029]+)")
MARKER = r"(?:[-*+•–—#>]+\s+)*"  # of lists, headings and quotations
BEFORE_SENTENCE = re.compile(rf"\s*{MARKER}")
UNUSUAL_SPACE = re.compile(r"[^\S ]")
VERBATIM = ("code", "kbd", "pre", "samp", "script", "style", "svg", "textarea", "var")
VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
"""Elements without an end tag."""
CELL = ("td", "th", "tr", "tbody", "tfoot")
BLOCKS = (
    *("address", "article", "aside", "blockquote", "dd", "details", "dialog", "div", "dl", "dt", "fieldset"),
    *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main"),
    *("menu", "nav", "ol", "p", "pre", "search", "section", "table", "ul"),
)
ENDED_BY = {"p": BLOCKS, "li": ("li",), "dt": ("dt", "dd"), "dd": ("dt", "dd"), "option": ("option", "optgroup")}
ENDED_BY |= {"td": CELL, "th": CELL, "tr": CELL[2:]}
"""Elements whose end tag may be left out, and the start tags that end them; so does the end of their parent."""
_escape = partial(html.escape, quote=False)

Piece = tuple[str, bool]  # text, and whether it is a sentence to translate


class Document:
    """A text whose sentences can be replaced.

    Args:
        language: selects the rules of sentence ends.
        fits: whether the model can read a sentence; longer ones are split at spaces.
        markup: the text is HTML. Tags, comments, code and elements with `translate="no"` are kept; each run of text
            between two tags is translated by itself.
    """

    def __init__(self, text: str, language: str, fits: Callable[[str], bool], *, markup: bool = False):
        self._encode: Callable[[str], str] = _escape if markup else str
        self._pieces: list[Piece] = []
        for part, is_text in _html_parts(text) if markup else [(text, True)]:
            if is_text:
                pieces = _pieces(part, language, fits)
                self._pieces += [(piece if wanted else self._encode(piece), wanted) for piece, wanted in pieces]
            else:
                self._pieces.append((part, False))

    @property
    def sentences(self) -> list[str]:
        return [piece for piece, is_sentence in self._pieces if is_sentence]

    def join(self, translations: Sequence[str]) -> str:
        """The text with a translation for each of `sentences`."""
        following = iter(translations)
        text = space = source = translation = ""
        for piece, is_sentence in self._pieces:
            if not is_sentence:
                space += piece
                continue
            before, translation = translation, next(following)
            between = space_between(source, space, before, translation) if before and not space.strip() else space
            text += between + self._encode(translation)
            source, space = piece, ""
        return text + space


def _pieces(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[Piece]:
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


def visible_text(text: str) -> str:
    """The text of HTML without its markup and without what is not translated."""
    return " ".join(part for part, is_text in _html_parts(text) if is_text)


def _html_parts(text: str) -> list[Piece]:
    parser = _HTMLParts()
    parser.feed(text)
    parser.close()
    return [*parser.parts, (parser.rawdata, False)]  # the rest of a script without its end tag


class _HTMLParts(HTMLParser):
    """Splits HTML into text, without entities, and everything else, as it was."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[Piece] = []
        self._end = 0  # where an end tag begins
        self._verbatim: list[str] = []  # an element that is not translated, and the open ones in it

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        while self._verbatim and tag in ENDED_BY.get(self._verbatim[-1], ()):
            self._verbatim.pop()
        marked = any(name == "translate" and (value or "").lower() == "no" for name, value in attrs)
        if (self._verbatim or marked or tag in VERBATIM) and tag not in VOID:
            self._verbatim.append(tag)
        self._keep(self.get_starttag_text() or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._keep(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._verbatim:
            while self._verbatim.pop() != tag:
                pass
        elif self._verbatim and self._verbatim[0] in ENDED_BY:
            self._verbatim.clear()
        self._keep(self.rawdata[self._end : self.rawdata.find(">", self._end) + 1])

    def parse_endtag(self, i: int) -> int:
        self._end = i
        return super().parse_endtag(i)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:  # not a section
            self.handle_data("<![")
            return i + len("<![")

    def handle_data(self, data: str) -> None:
        if self._verbatim:
            in_script = self.cdata_elem not in (None, "textarea", "title")  # whose entities newer Pythons resolve
            self._keep(data if in_script else _escape(data))
        elif self.parts and self.parts[-1][1]:
            self.parts[-1] = (self.parts[-1][0] + data, True)  # HTMLParser ends a run at `<` alone
        else:
            self.parts.append((data, True))

    def handle_comment(self, data: str) -> None:
        self._keep(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._keep(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self._keep(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self._keep(f"<![{data}]]>" if data.startswith("CDATA[") else f"<![{data}]>")

    def _keep(self, text: str) -> None:
        self.parts.append((text, False))
