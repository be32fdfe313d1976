# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""HTML files, and e-books (EPUB), which are archives of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from residual_hf.base.archives import open_archive, read_part
from residual_hf.base.errors import InputError
from residual_hf.base.xml_reader import etree, read_xml
from residual_hf.generation.html_text import HTMLText
from residual_hf.generation.markup import Block

from .archived import rewrite_archive
from .document import Document, read_bytes
from .mixed_content import Dialect, read_mixed, write_mixed

CHARSET = re.compile(rb"<meta[^>]+charset=[\"']?([\w-]+)|<\?xml[^>]+encoding=[\"']([\w-]+)", re.IGNORECASE)
OPENING = re.compile("<(?=[A-Za-z/!?])")
CONSTRUCT = re.compile(r"<(?:!--.*?--|[A-Za-z/](?:[^>\"']|\"[^\"]*\"|'[^']*')*|[!?](?!--)[^>]*)>", re.DOTALL)
RAW = re.compile("<(script|style)", re.IGNORECASE)
RAW_END = re.compile("</(script|style)", re.IGNORECASE)
"""Of elements whose content has no tags."""
MOST_UNFINISHED = 100
LABELS = Dialect(())
"""Of a table of contents."""


class HTMLFile(Document):
    """An HTML file in UTF-8 or the encoding that it names."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._text, self._encoding = decoded(read_bytes(path), str(path))
        check_ends(self._text, str(path))
        self._html = HTMLText(self._text)
        self.blocks = self._html.blocks

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        path.write_bytes(self._html.render(blocks).encode(self._encoding, "xmlcharrefreplace"))


class EPUB(Document):
    """The pages of an e-book and the labels of its table of contents."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._pages: dict[str, tuple[HTMLText, str]] = {}
        self._contents: dict[str, tuple[Any, list[Any]]] = {}
        self.blocks: list[Block] = []
        with open_archive(path) as archive:
            for name in archive.namelist():
                if name.lower().endswith((".xhtml", ".html", ".htm")):
                    text, encoding = decoded(read_part(archive, name), f"{path}: {name}")
                    check_ends(text, f"{path}: {name}")
                    self._pages[name] = HTMLText(text), encoding
                elif name.lower().endswith(".ncx"):
                    tree = read_xml(read_part(archive, name), f"{path}: {name}")
                    self._contents[name] = tree, list(tree.iter("{*}text"))
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
            text = page.render([next(following) for _ in page.blocks])
            changed[name] = text.encode(encoding, "xmlcharrefreplace")
        for name, (tree, labels) in self._contents.items():
            for label in labels:
                write_mixed(label, next(following), LABELS)
            changed[name] = etree.tostring(tree, xml_declaration=True, encoding="UTF-8")
        rewrite_archive(self.path, path, changed)


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


def decoded(content: bytes, where: str) -> tuple[str, str]:
    """A text and its encoding. Raises `InputError` for bytes of another one."""
    named = CHARSET.search(content[:2000])
    encoding = "utf-8"
    try:
        return content.decode(encoding), encoding
    except UnicodeDecodeError as error:
        if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
            encoding = "utf-16"
        elif named:
            encoding = (named[1] or named[2]).decode()
        try:
            if encoding != "utf-8":
                return content.decode(encoding), encoding
        except (UnicodeDecodeError, LookupError):
            pass
        raise InputError(f"{where}: not {encoding.upper()} at byte {error.start + 1}") from error
