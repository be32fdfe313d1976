# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Files of messages: those of Java, Android, Apple, .NET, Qt, YAML and INI, by translate-toolkit, and JSON.

translate-toolkit would format JSON anew, and lose empty objects and repeated keys.
"""

from __future__ import annotations

import codecs
import html
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from residual_hf.base.errors import InputError, requires
from residual_hf.base.xml_reader import read_xml
from residual_hf.generation.markup import Block

from . import XML_MESSAGES
from .catalogues import CatalogueOptions
from .document import Document, decoded, has_text, read_bytes
from .literal_text import marked, read_marks, write_marks

with requires("documents"):
    from translate.storage import aresource, ini, properties, resx, ts2, yaml

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
PROLOG = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s*(?:<\?.*?\?>|<!--.*?-->|<![^>]*>))*\s*", re.DOTALL)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?|[{}\[\]]')
"""Of JSON; a text with a colon is a key."""
SPACED = re.compile(r"^[ \t]*((?:[^\s#!=:\\]|\\.)+) [=:] ", re.MULTILINE)
SEQUENCE = re.compile(r"^( *)[^\s#-][^\n]*:[ \t]*\n( *)- ", re.MULTILINE)
MAPPING = re.compile(r"^[^\s#-][^\n]*:[ \t]*\n( +)[^\s#-]", re.MULTILINE)
"""The indentation of YAML."""


class Message(NamedTuple):
    """A text to translate.

    Attributes:
        current: what is in the place of the translation.
        write: replaces that.
        is_escaped: the text is XML.
    """

    text: str
    current: str
    write: Callable[[str], None]
    is_escaped: bool = False

    @property
    def block(self) -> Block:
        return read_marks(marked(self.text, html.unescape if self.is_escaped else str))


class _YAML(yaml.YAMLFile):
    """Leaves out numbers, dates and truth values."""

    def _flatten(self, data: Any, *args: Any, **options: Any) -> Iterator[Any]:
        if isinstance(data, (str, dict, list)):
            yield from super()._flatten(data, *args, **options)


class JSONFile(Document):
    """The texts of a JSON file. Of Flutter and of extensions of browsers, not what describes them."""

    def __init__(self, path: Path, options: CatalogueOptions):
        super().__init__(path)
        content = read_bytes(path)
        self._text = decoded(content, str(path))[0]
        try:
            data = json.loads(self._text.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: cannot be read as JSON: {error}") from error
        members = list(data.values()) if isinstance(data, dict) else []
        of_browser = bool(members) and all(isinstance(member, dict) and "message" in member for member in members)
        found = [place for keys, place in self._texts() if not of_browser or keys[1:] == ["message"]]
        read = [(place, read_marks(marked(json.loads(place[0])))) for place in found]
        self._places = [place for place, block in read if has_text(block)]
        self.blocks = [block for _, block in read if has_text(block)]

    def _texts(self) -> Iterator[tuple[list[str], re.Match[str]]]:
        """The texts that are not described by a key with `@`, with the keys that lead to them."""
        keys: list[str] = []
        for token in TOKEN.finditer(self._text):
            if token[0] in "{[":
                keys.append("")
            elif token[0] in "}]":
                keys.pop()
            elif token[1]:
                keys[-1] = json.loads(token[0].removesuffix(token[1]))
            elif not any(key.startswith("@") for key in keys):
                yield keys, token

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        is_escaped = "\\u" in self._text and self._text.removeprefix("\ufeff").isascii()
        written, end = "", 0
        for place, block in zip(self._places, blocks, strict=True):
            text = write_marks(block)
            new = place[0] if text == json.loads(place[0]) else json.dumps(text, ensure_ascii=is_escaped)
            written += self._text[end : place.start()] + new
            end = place.end()
        path.write_text(written + self._text[end:], encoding="utf-8", newline="")


class MessageFile(Document):
    """Messages under keys, which stay. Of Qt, the translations; of others, the texts themselves are replaced."""

    def __init__(self, path: Path, options: CatalogueOptions):
        super().__init__(path)
        suffix, self._content = path.suffix.lower(), read_bytes(path)
        text, encoding = decoded(self._content, str(path), "iso-8859-1")
        if suffix in XML_MESSAGES:
            read_xml(self._content, str(path))  # refuses entities
        elif suffix == ".properties" and text.isascii():
            encoding = "us-ascii"  # other characters are escapes, which Java 8 needs
        self._store = _STORES[suffix]()
        self._store.detect_encoding = lambda *_, **__: (text, encoding)  # instead of a guess
        try:
            _adapt(self._store, text.replace("\r\n", "\n"))
            self._store.parse(self._content if suffix != ".ini" else text.encode())
            found = list(_messages(self._store, text, options))
        except Exception as error:  # of six parsers
            raise InputError(f"{path}: cannot be read as a {suffix} file of messages: {error}") from error
        blocks = [message.block for message in found]
        self._messages = [message for message, block in zip(found, blocks, strict=True) if has_text(block)]
        self.blocks = list(filter(has_text, blocks))

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        for message, block in zip(self._messages, blocks, strict=True):
            text = write_marks(block, partial(html.escape, quote=False) if message.is_escaped else str)
            if text != message.current:
                message.write(text)
        path.write_bytes(_as_before(bytes(self._store), self._content))


_STORES: dict[str, Any] = {
    ".xml": aresource.AndroidResourceFile,
    **dict.fromkeys((".resx", ".resw"), resx.RESXFile),
    ".ts": ts2.tsfile,
    ".properties": properties.javafile,
    ".strings": properties.stringsfile,
    **dict.fromkeys((".yml", ".yaml"), _YAML),
    ".ini": ini.inifile,
}


def _adapt(store: Any, text: str) -> None:
    """Have YAML written with the indentation of a text."""
    if isinstance(store, _YAML):
        sequence, mapping = SEQUENCE.search(text), MAPPING.search(text)
        dash = len(sequence[2]) - len(sequence[1]) if sequence else 0
        store.dump_args |= {
            "width": 2**31,
            "map_indent": len(mapping[1]) if mapping else 2,
            "sequence_dash_offset": dash,
            "sequence_indent": dash + 2,
        }


def _messages(store: Any, text: str, options: CatalogueOptions) -> Iterator[Message]:
    if isinstance(store, aresource.AndroidResourceFile):
        yield from _of_android(store)
    elif isinstance(store, ts2.tsfile):
        yield from _of_qt(store, options)
    else:
        units, spaced = store.units, set(SPACED.findall(text))
        if isinstance(store, _YAML):
            store.units = []  # of those that have changed
        for unit in units:
            if isinstance(store, properties.javafile):
                unit.out_delimiter_wrappers = " " * (unit.name in spaced)
            found = unit.target or unit.source
            if found and unit.istranslatable() and not _is_object(unit):
                yield Message(found, found, partial(_replace, store, unit))


def _replace(store: Any, unit: Any, text: str) -> None:
    unit.target = text
    if isinstance(store, _YAML):
        store.units.append(unit)


def _is_object(unit: Any) -> bool:
    """Whether a message of .NET is a file, a picture or a property of a form."""
    if not isinstance(unit, resx.RESXUnit):
        return False
    element = unit.xmlelement
    return bool(element.get("type") or element.get("mimetype") or element.get("name", "").startswith(">>"))


def _of_android(store: Any) -> Iterator[Message]:
    """Texts, forms of plurals and members of lists."""
    for entry in store.document.getroot().iterchildren("string", "plurals", "string-array"):
        unit = store.UnitClass(None, xmlelement=entry)
        if entry.get("translatable") != "false":
            for element in [entry] if entry.tag == "string" else entry.iterchildren("item"):
                text = unit.get_xml_text_value(element)
                if not text.startswith(("@", "?")):  # names of other messages
                    yield Message(text, text, partial(unit.set_xml_text_value, xmltarget=element), len(element) > 0)


def _of_qt(store: Any, options: CatalogueOptions) -> Iterator[Message]:
    for unit in store.units:
        if unit.istranslatable() and options.wants(not str(unit.target).strip(), unit.isfuzzy()):
            forms = list(unit.target.strings if unit.hasplural() else [unit.target])
            for number, form in enumerate(forms):
                yield Message(unit.source, form, partial(_replace_form, unit, forms, number))


def _replace_form(unit: Any, forms: list[str], number: int, text: str) -> None:
    forms[number] = text
    unit.target = forms if unit.hasplural() else text
    unit.markfuzzy()  # until somebody has read it


def _as_before(written: bytes, original: bytes) -> bytes:
    """A file with the start, up to the first element of XML, and the line ends of another one."""
    if original[:2] in UTF_16:
        return written
    written = written.replace(b"\r\n", b"\n").rstrip(b"\n")
    if b"\r\n" in original:
        written = written.replace(b"\n", b"\r\n")
    written += original[len(original.rstrip(b"\r\n")) :]
    start, own_start = (PROLOG.match(content).end() for content in (original, written))  # type: ignore[union-attr]
    return original[:start] + written[own_start:]
