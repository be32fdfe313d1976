"""The tokens of HTML: tags, the text between them, and what is not translated, such as code, also of templates."""

import html
import re
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from itertools import groupby
from typing import NamedTuple

VERBATIM = ("code", "kbd", "pre", "samp", "script", "style", "svg", "math", "textarea", "var", "rt", "rp")
UNREAD = (
    *("script", "style", "svg", "math", "template", "noscript", "object", "video", "audio", "canvas", "iframe"),
    *("rt", "rp"),
)
"""Elements whose text is no part of the sentence around them."""
VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
"""Elements without an end tag."""
CELL = ("td", "th", "tr", "tbody", "tfoot")
BLOCKS = (
    *("address", "article", "aside", "blockquote", "dd", "details", "dialog", "div", "dl", "dt", "fieldset"),
    *("figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main"),
    *("menu", "nav", "ol", "p", "pre", "search", "section", "table", "ul"),
)
ENDED_BY = {"p": BLOCKS, "li": ("li",), "dt": ("dt", "dd"), "dd": ("dt", "dd"), "option": ("option", "optgroup")}
ENDED_BY |= {"td": CELL, "th": CELL, "tr": CELL[2:], "rt": ("rt", "rp"), "rp": ("rt", "rp")}
"""Elements whose end tag may be left out, and the start tags that end them; so does the end of their parent."""
BOUNDARIES = {
    *(*BLOCKS, *CELL, "thead", "caption", "colgroup", "col", "html", "head", "body", "title", "link", "meta", "base"),
    *("br", "button", "select", "option", "optgroup", "datalist", "legend", "summary", "textarea", "center"),
    *("frameset", "object", "video", "audio", "canvas", "iframe"),
}
"""Tags between which a sentence does not continue."""
LONGEST_KEPT = 100  # characters of code, for example, that are read as a part of a sentence
COMMENT_END, ABRUPT_END = re.compile("--!?>"), re.compile("-?>")
escaped = partial(html.escape, quote=False)


def _between(opening: str, closing: str, without: str = "") -> str:
    """The pattern of code between two marks, in which neither further code nor, outside quotes, what is `without`
    begins."""
    if not without:
        return f"{opening}(?:(?!{opening}|{closing}).)*{closing}"
    rest = {mark: rf"(?:(?!{opening}|{closing})[^{mark}\n])*{mark}" for mark in "\"'"}  # of a text in quotes
    quoted = "|".join(f"{mark}{end}|{mark}(?!{end})" for mark, end in rest.items())
    return f"{opening}(?:{quoted}|(?!{opening}|{closing}{without})[^\"'])*{closing}"


ENDS_OF_BLOCKS = r"|-->|</(?:p|div|li|t[dhr]|h[1-6]|table|[uo]l|code|pre|body)\b"
TEMPLATE = re.compile(
    "|".join(
        (
            _between("<%--", "--%>"),
            _between(r"<\?php", r"(?:\?>|\Z)"),
            *(_between(*marks, ENDS_OF_BLOCKS) for marks in (("<%", "%>"), (r"<\?[=\s]", r"\?>"))),
            *(_between(*marks, "|</|<!--|-->") for marks in (("{%", "%}"), ("{#", "#}"), ("{{", "}}+"))),
            "\ufdd0",
        )
    ),
    re.DOTALL,
)
"""Code of ERB, JSP, PHP, Jinja and Mustache, and the first character of `HIDDEN`."""
HIDDEN = re.compile("\ufdd0([0-9]+)\ufdd1")
"""What HTMLParser reads in the place of code that has characters of HTML."""


class Token(NamedTuple):
    """A part of HTML. `kind`: "start" or "end" of an element, "text", or "other"; `text` is what can be read of it."""

    kind: str
    raw: str
    tag: str = ""
    text: str = ""


def tokens_of(text: str) -> list[Token]:
    codes: list[str] = []

    def hidden(found: re.Match[str]) -> str:
        if escaped(found[0]) == found[0] != "\ufdd0":
            return found[0]
        codes.append(found[0])
        return f"\ufdd0{len(codes) - 1}\ufdd1"

    def shown(text: str) -> str:
        return HIDDEN.sub(lambda found: codes[int(found[1])], text)

    parser = _Parser()
    parser.feed(TEMPLATE.sub(hidden, text))
    parser.close()
    parser.end_kept()
    found: list[Token] = []
    for is_text, group in groupby(parser.tokens, lambda token: token.kind == "text"):
        tokens = list(group)
        if is_text:  # which HTMLParser ends at `<` alone
            forms = (HIDDEN.split("".join(parts)) for parts in zip(*((t.raw, t.text) for t in tokens), strict=True))
            for number, (raw, read) in enumerate(zip(*forms, strict=True)):
                found.append(_code(codes[int(raw)]) if number % 2 else Token("text", raw, text=read))
        else:
            found += (Token(*map(shown, token)) for token in tokens)
    return [*found, Token("other", shown(parser.rawdata))]  # the rest of a script without its end tag


def _code(written: str) -> Token:
    """Code of a template; that of PHP is not read."""
    is_read = not written.startswith("<?") and len(written) <= LONGEST_KEPT
    return Token("other", written, text=written if is_read else "")


class _Parser(HTMLParser):
    """Splits HTML into text, without entities, and everything else, as it was."""

    CDATA_CONTENT_ELEMENTS = ("script", "style")  # type: ignore[misc]  # newer versions of Python have more

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tokens: list[Token] = []
        self._end = 0  # where an end tag begins
        self._length = self._last_end = 0  # of the text, and of the last tag in it
        self._verbatim: list[str] = []  # an element that is not translated, and the open ones in it
        self._kept: list[Token] = []  # its tokens

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        while self._verbatim and tag in ENDED_BY.get(self._verbatim[-1], ()):
            self._verbatim.pop()
        if not self._verbatim:
            self.end_kept()
        given = {name: (value or "").lower() for name, value in attrs}
        marked = given.get("translate") == "no" or "notranslate" in given.get("class", "").split()
        if (self._verbatim or marked or tag in VERBATIM) and tag not in VOID:
            self._verbatim.append(tag)
        self._add(Token("other" if tag in VOID else "start", self.get_starttag_text() or "", tag))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add(Token("other", self.get_starttag_text() or "", tag))

    def handle_endtag(self, tag: str) -> None:
        token = Token("end", self.rawdata[self._end : self.rawdata.find(">", self._end) + 1], tag)
        if tag in self._verbatim:
            while self._verbatim[-1] != tag:
                self._close()
            self._verbatim.pop()
            self._kept.append(token)
            if not self._verbatim:
                self.end_kept()
        elif not self._verbatim:
            self._add(token)
        elif self._verbatim[0] in ENDED_BY:
            self.end_kept()
            self._add(token)
        elif tag in BOUNDARIES:
            self._kept.append(token)

    def _close(self) -> None:
        """End the innermost open element of those that are kept."""
        tag = self._verbatim.pop()
        if tag not in (*BOUNDARIES, *UNREAD):
            self._kept.append(Token("end", f"</{tag}>", tag))

    def _if_it_ends(self, parse: Callable[[int], int], i: int) -> int:
        """What a method of Python finds; the beginning of a tag without an end is text, which newer versions drop.

        Where no tag ends behind it, Python would read all of the text for each that begins.
        """
        if len(self.rawdata) != self._length:
            self._length, self._last_end = len(self.rawdata), self.rawdata.rfind(">")
        if i < self._last_end and (end := parse(i)) >= 0:
            return end
        self.handle_data("<")
        return i + 1

    def parse_starttag(self, i: int) -> int:
        return self._if_it_ends(super().parse_starttag, i)

    def parse_pi(self, i: int) -> int:
        return self._if_it_ends(super().parse_pi, i)

    def parse_html_declaration(self, i: int) -> int:
        return self._if_it_ends(super().parse_html_declaration, i)

    def parse_endtag(self, i: int) -> int:
        self._end = i
        return self._if_it_ends(super().parse_endtag, i)

    def parse_comment(self, i: int, report: bool = True) -> int:
        """As in browsers, which end a comment in more ways than Python, and an open one with the text."""
        start = i + len("<!--")
        end = ABRUPT_END.match(self.rawdata, start) or COMMENT_END.search(self.rawdata, start)
        self.handle_comment(self.rawdata[start : end.start() if end else None])
        return end.end() if end else len(self.rawdata)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:  # not a section
            self.handle_data("<![")
            return i + len("<![")

    def handle_data(self, data: str) -> None:
        in_script = self._verbatim and self.cdata_elem not in (None, "textarea", "title")
        self._add(Token("text", data if in_script else escaped(data), text=data))  # newer Pythons resolve entities

    def handle_comment(self, data: str) -> None:
        self._add(Token("other", f"<!--{data}-->"))

    def handle_decl(self, decl: str) -> None:
        self._add(Token("other", f"<!{decl}>", "html"))

    def handle_pi(self, data: str) -> None:
        self._add(Token("other", f"<?{data}>"))

    def unknown_decl(self, data: str) -> None:
        self._add(Token("other", f"<![{data}]]>" if data.startswith("CDATA[") else f"<![{data}]>"))

    def end_kept(self) -> None:
        """Add what an element that is not translated consists of, as one token."""
        while self._verbatim:
            self._close()
        if self._kept:
            tags = [token.tag for token in self._kept]
            tag = next((tag for tag in tags if tag in BOUNDARIES), tags[0])
            text = "" if {*tags} & {*UNREAD} else "".join(token.text for token in self._kept).strip()
            raw = "".join(token.raw for token in self._kept)
            self._kept = []
            self.tokens.append(Token("other", raw, tag, text if len(text) <= LONGEST_KEPT else ""))

    def _add(self, token: Token) -> None:
        (self._kept if self._verbatim else self.tokens).append(token)
