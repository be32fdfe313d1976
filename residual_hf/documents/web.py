"""HTML files, and e-books (EPUB), which are archives of them."""

import posixpath
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from residual_hf.base import archives
from residual_hf.base.archives import open_archive, read_part
from residual_hf.base.errors import InputError
from residual_hf.base.xml_reader import XML_LANG, etree, read_xml
from residual_hf.generation.html_text import HTMLText
from residual_hf.generation.markup import Block

from .archived import rewrite_archive
from .document import DocumentFile, decoded, read_bytes
from .mixed_content import Dialect, read_mixed, write_mixed

CHARSET = re.compile(rb"<meta[^<>]+charset=[\"']?([\w-]+)|<\?xml[^<>]+encoding=[\"']([\w-]+)", re.IGNORECASE)
OPENING = re.compile("<(?=[A-Za-z/!?])")
CONSTRUCT = re.compile(r"<(?:!--.*?--|[A-Za-z/](?:[^>\"']|\"[^\"]*\"|'[^']*')*|[!?](?!--)[^>]*)>", re.DOTALL)
RAW = re.compile("<(script|style)", re.IGNORECASE)
RAW_END = re.compile("</(script|style)", re.IGNORECASE)
"""Tags of elements whose content has no tags."""
WITHOUT_REFERENCES = re.compile(
    r"(<(?:script|style)\b.*?(?:</(?:script|style)|\Z)|<!--.*?(?:-->|\Z))", re.DOTALL | re.I
)
"""Parts without character references."""
MOST_UNFINISHED = 100
HTML_MARK = 4
"""Marks of XML (`MOST_MARKS`) whose time and memory a tag of HTML takes."""
AS_BROWSERS_READ = {
    "iso-8859-1": "cp1252",
    "latin1": "cp1252",
    "gb2312": "gb18030",
    "shift_jis": "cp932",
    "euc-kr": "cp949",
}
LANGUAGE = "{http://purl.org/dc/elements/1.1/}language"
LABELS = Dialect(())
"""Syntax of the labels in a table of contents."""


class HTMLFile(DocumentFile):
    def __init__(self, path: Path):
        is_xml = path.suffix.lower() == ".xhtml"
        self._html, self._encoding = read_page(read_bytes(path), str(path), is_xml=is_xml)
        self.blocks = self._html.blocks

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        text = self._html.render(blocks, self.language)
        parts = [text] if self._encoding else WITHOUT_REFERENCES.split(text)
        encodings = (self._encoding or "ascii", "utf-8")
        written = [part.encode(encodings[number % 2], "xmlcharrefreplace") for number, part in enumerate(parts)]
        path.write_bytes(b"".join(written))


class EPUB(DocumentFile):
    """The pages of an e-book, the labels of its table of contents, and the languages that it names."""

    def __init__(self, path: Path):
        self._path = path
        self._pages: dict[str, tuple[HTMLText, str]] = {}
        self._contents: dict[str, tuple[Any, list[Any]]] = {}
        self.blocks: list[Block] = []
        with open_archive(path) as archive:
            names = [name for name in archive.namelist() if not name.startswith("__MACOSX/")]  # of no document
            pages = {name for name in names if name.lower().endswith((".xhtml", ".html", ".htm"))}
            for name in names:
                if name.lower().endswith((".ncx", ".opf")):
                    tree = read_xml(read_part(archive, name), f"{path}: {name}")
                    self._contents[name] = tree, list(tree.iter("{*}text"))
                    for item in tree.iterfind(".//{*}manifest/{*}item[@media-type='application/xhtml+xml']"):
                        listed = unquote(item.get("href", ""))  # a page, whatever its extension
                        pages.add(posixpath.normpath(posixpath.join(posixpath.dirname(name), listed)))
            for name in filter(pages.__contains__, names):
                self._pages[name] = read_page(read_part(archive, name, mark=HTML_MARK), f"{path}: {name}", is_xml=True)
        if not self._pages:
            raise InputError(f"{path}: no pages found, must be an .epub e-book")
        for page, _ in self._pages.values():
            self.blocks += page.blocks
        for _, labels in self._contents.values():
            self.blocks += [read_mixed(label, LABELS) for label in labels]

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        following = iter(blocks)
        changed = {}
        for name, (page, encoding) in self._pages.items():
            text = page.render([next(following) for _ in page.blocks], self.language)
            changed[name] = text.encode(encoding, "xmlcharrefreplace")
        for name, (tree, labels) in self._contents.items():
            for label in labels:
                write_mixed(label, next(following), LABELS)
            for element in tree.iter("*"):
                if label := element.get(XML_LANG):
                    element.set(XML_LANG, self.language(label))
                if element.tag == LANGUAGE and element.text:
                    element.text = self.language(element.text.strip())
            changed[name] = etree.tostring(tree, xml_declaration=True, encoding="UTF-8")
        rewrite_archive(self._path, path, changed)


def check_ends(text: str, where: str) -> None:
    """Raise `InputError` for HTML whose rest is an unfinished comment or tag, of many that begin in it.

    HTMLParser would look for the end of each (https://github.com/python/cpython/issues/135462).
    """
    position = 0
    while found := OPENING.search(text, position):
        construct = CONSTRUCT.match(text, found.start())
        position = found.end() if construct is None else construct.end()
        if construct is None and text.count("<", position) > MOST_UNFINISHED:
            raise InputError(f"{where}: a tag or comment that begins at character {position} has no end")
        if construct is not None and RAW.match(construct[0]):
            end = RAW_END.search(text, position)
            position = len(text) if end is None else end.start()


def read_page(content: bytes, where: str, *, is_xml: bool) -> tuple[HTMLText, str]:
    """The text of a page in UTF-8 or the encoding that it names, and its encoding.

    The encoding is empty for UTF-8 that HTML does not name: browsers read it as windows-1252.
    """
    named = CHARSET.search(content[:2000])
    label = (named[1] or named[2]).decode().lower() if named else "utf-8" if is_xml else "cp1252"
    label = AS_BROWSERS_READ.get(label, label)
    text, encoding = decoded(content, where, label)
    if text.isascii():  # also what is written is in the encoding that it names
        with suppress(LookupError, UnicodeError):
            encoding = label if text.encode(label) == content else encoding
    if HTML_MARK * (text.count("<") + text.count("=")) > archives.MOST_MARKS:
        most = archives.MOST_MARKS // HTML_MARK
        raise InputError(f"{where}: has more than {most:,} tags and attributes; divide it into several documents")
    check_ends(text, where)
    is_plain = content.isascii() or (encoding == "utf-8" and text[:1] != "\ufeff")
    return HTMLText(text), encoding if is_xml or named or not is_plain else ""
