# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""PO and XLIFF: what has no translation yet is translated, everything else stays as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputError
from residual_hf.base.xml_reader import XML_SPACE, etree, local_name, read_xml
from residual_hf.data.language_names import bcp47
from residual_hf.data.pair_formats import PO_CHARSET, UNTRANSLATED, XLIFF_INLINE, read_po
from residual_hf.generation.markup import Block

from .document import Document, has_text, read_bytes
from .literal_text import marked, marked_block, read_marks, write_marks
from .mixed_content import Dialect, read_mixed, write_mixed

EMPTY_MESSAGE = re.compile(
    r'^(msgstr(?:\[\d+\])?[ \t]*)""(?:[ \t]*\r?\n[ \t]*"")*(?=[ \t]*\r?$)(?!\s*\n[ \t]*")', re.MULTILINE
)
HEADER = re.compile(r'^msgid[ \t]*""[ \t]*\r?\n\Z', re.MULTILINE)
"""What is before the message of a header: an empty name in one line."""
FILLED = re.compile(r"(?<=\S)\n(?=[a-z])")
"""A line break within a sentence."""
ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})
XLIFF_TEXT = Dialect(
    XLIFF_INLINE,
    shown=("equiv-text", "equiv", "disp"),
    spans={"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"},  # of version 1.2, then of 2
)


class POFile(Document):
    """A message catalogue of gettext. Of plural forms, the first is translated from the singular."""

    def __init__(self, path: Path):
        super().__init__(path)
        catalogue = read_po(path)
        self._encoding = catalogue.encoding
        self._text = read_bytes(path).decode(self._encoding)
        self._places = [
            match
            for match in EMPTY_MESSAGE.finditer(self._text)
            if not HEADER.search(self._text, max(0, match.start() - 50), match.start())
        ]
        sources: list[str] = []
        for entry in catalogue:
            if entry.obsolete:
                continue
            forms = sorted(entry.msgstr_plural.items()) if entry.msgid_plural else [(0, entry.msgstr)]
            several = entry.msgid_plural and len(forms) == 1
            for number, text in forms:
                if not text:
                    sources.append(entry.msgid_plural if number or several else entry.msgid)
        if len(sources) != len(self._places):
            raise InputError(f"{path}: {len(sources)} empty messages, but {len(self._places)} lines of such")
        self.blocks = [read_marks(marked(FILLED.sub(" ", source))) for source in sources]

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        written, end = "", 0
        for place, block in zip(self._places, blocks, strict=True):
            written += self._text[end : place.start()] + f'{place[1]}"{write_marks(block).translate(ESCAPES)}"'
            end = place.end()
        written += self._text[end:]
        try:
            path.write_bytes(written.encode(self._encoding))
        except UnicodeEncodeError:  # the other language has other letters
            path.write_bytes(PO_CHARSET.sub(rb"\1UTF-8", written.encode(), count=1))


class XLIFFFile(Document):
    """An XLIFF file, of version 1.2 or 2.x. Elements in the source come into the target.

    A target that is a copy of the source, with a state that says so, is translated too.
    """

    def __init__(self, path: Path):
        super().__init__(path)
        self._tree = read_xml(read_bytes(path), str(path))
        sources = [(unit, _source(unit)) for unit in self._untranslated()]
        read = partial(read_mixed, dialect=XLIFF_TEXT)
        found = [(unit, marked_block(read(each, keeps_space=_keeps_space(each)))) for unit, each in sources]
        self._units = [unit for unit, block in found if has_text(block)]
        self.blocks = [block for _, block in found if has_text(block)]

    def _untranslated(self) -> Iterator[Any]:
        for unit in self._tree.iter("{*}trans-unit", "{*}segment"):
            source, target = unit.find("{*}source"), unit.find("{*}target")
            marks = (each.get("translate") for each in (unit, *unit.iterancestors()))
            if source is None or next(filter(None, marks), "yes") == "no":  # the innermost one holds
                continue
            if target is None or _is_empty(target) or (_is_new(unit) and _text(target) == _text(source)):
                yield unit

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        root, target_lang = self._tree.getroot(), bcp47(self.target_lang or "")
        for source, own in (("srcLang", "trgLang"), ("source-language", "target-language")):
            for each in (root, *root.iter("{*}file")) if target_lang and self._units else ():
                if each.get(source) and not each.get(own):
                    each.set(own, target_lang)  # without which targets are not allowed in XLIFF 2
        for unit, block in zip(self._units, blocks, strict=True):
            source, target = _source(unit), unit.find("{*}target")
            if target is None:
                before = next(unit.iterchildren("{*}seg-source", "{*}source", reversed=True))
                target = etree.Element(unit.find("{*}source").tag.removesuffix("source") + "target")
                target.tail = before.tail
                before.addnext(target)
            keeps_space = _keeps_space(source)
            if keeps_space and not _keeps_space(target):
                target.set(XML_SPACE, "preserve")
            write_mixed(target, block, XLIFF_TEXT, copied=True, keeps_space=keeps_space)
            if unit.tag.endswith("segment"):
                unit.set("state", "translated")
            else:
                target.set("state", "needs-review-translation")
                target.set("state-qualifier", "mt-suggestion")
        encoding = self._tree.docinfo.encoding or "UTF-8"
        path.write_bytes(etree.tostring(self._tree, xml_declaration=True, encoding=encoding))


def _source(unit: Any) -> Any:
    """The source of a unit, with the marks of its segments if it has them."""
    segmented = unit.find("{*}seg-source")
    has_marks = segmented is not None and segmented.find('.//{*}mrk[@mtype="seg"]') is not None
    return segmented if has_marks else unit.find("{*}source")


def _is_new(unit: Any) -> bool:
    return unit.find("{*}target").get("state", unit.get("state")) in UNTRANSLATED


def _text(element: Any) -> str:
    return "".join(element.itertext()).strip()


def _is_empty(target: Any) -> bool:
    """Whether a target has nothing but the marks of segments."""
    return not _text(target) and all(local_name(part) == "mrk" for part in target.iterdescendants("*"))


def _keeps_space(element: Any) -> bool:
    marks = (each.get(XML_SPACE) for each in (element, *element.iterancestors()))
    return next(filter(None, marks), "") == "preserve"
