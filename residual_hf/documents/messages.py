# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Files of messages that translate-toolkit reads: those of Android, .NET and Qt, and YAML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from residual_hf.base.errors import InputError, requires
from residual_hf.base.xml_reader import etree, read_xml
from residual_hf.generation.markup import Block

from . import XML_MESSAGES
from .catalogues import CatalogueOptions
from .document import DocumentFile, has_text, read_bytes
from .literal_text import marked, read_marks, write_marks

with requires("documents"):
    from ruamel.yaml.scalarstring import PlainScalarString
    from translate.storage import aresource, resx, ts2, yaml

PROLOG = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s*(?:<\?.*?\?>|<!--.*?-->|<![^>]*>))*\s*", re.DOTALL)
SEQUENCE = re.compile(r"^( *)[^\s#-][^\n]*:[ \t]*\n( *)- ", re.MULTILINE)
MAPPING = re.compile(r"^[^\s#-][^\n]*:[ \t]*\n( +)[^\s#-]", re.MULTILINE)
"""The indentation of YAML."""
TRUTH_VALUES = ("y", "n", "yes", "no", "on", "off")
"""Of YAML 1.1, as Ruby and PyYAML read them without quotes."""


class Message(NamedTuple):
    """A text to translate, in XML if it `is_escaped`. `write` replaces the `current` translation."""

    text: str
    current: str
    write: Callable[[str], None]
    is_escaped: bool = False

    @property
    def block(self) -> Block:
        return read_marks(marked(self.text, html.unescape if self.is_escaped else str))


class _YAML(yaml.YAMLFile):
    """Keeps the indentation, and leaves out numbers, dates and truth values."""

    def parse(self, input: bytes) -> None:
        text = input.decode("utf-8-sig").replace("\r\n", "\n")
        sequence, mapping = SEQUENCE.search(text), MAPPING.search(text)
        dash = len(sequence[2]) - len(sequence[1]) if sequence else 0
        self.dump_args: dict[str, Any] = {
            **self.dump_args,
            "width": 2**31,
            "map_indent": len(mapping[1]) if mapping else 2,
            "sequence_dash_offset": dash,
            "sequence_indent": dash + 2,
        }
        super().parse(text)

    def _flatten(self, data: Any, *args: Any, **options: Any) -> Iterator[Any]:  # type: ignore[override]
        is_truth_value = type(data) in (str, PlainScalarString) and data.lower() in TRUTH_VALUES
        if isinstance(data, (str, dict, list)) and not is_truth_value:
            yield from super()._flatten(data, *args, **options)


class MessageFile(DocumentFile):
    """Messages under keys, which stay. Of Qt, the translations; of others, the texts themselves are replaced."""

    def __init__(self, path: Path, options: CatalogueOptions):
        super().__init__(path)
        suffix, self._content = path.suffix.lower(), read_bytes(path)
        if suffix in XML_MESSAGES:
            root = read_xml(self._content, str(path)).getroot()  # refuses entities
            if suffix == ".xml" and root.tag != "resources":
                raise InputError(f"{path}: is <{root.tag}>, must be the <resources> of Android")
        self._store = _STORES[suffix]()
        try:
            self._store.parse(self._content)
            found = list(_messages(self._store, options))
        except Exception as error:  # of several parsers
            raise InputError(f"{path}: cannot be read as a {suffix} file of messages: {error}") from error
        read = [(message, block) for message in found if has_text(block := message.block)]
        self._messages, self.blocks = [message for message, _ in read], [block for _, block in read]

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
    **dict.fromkeys((".yml", ".yaml"), _YAML),
}


def _messages(store: Any, options: CatalogueOptions) -> Iterator[Message]:
    if isinstance(store, aresource.AndroidResourceFile):
        yield from _of_android(store)
    elif isinstance(store, ts2.tsfile):
        yield from _of_qt(store, options)
    else:
        units = store.units
        if isinstance(store, _YAML):
            store.units = []  # of those that have changed
        for unit in units:
            found = unit.target
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
    root = store.document.getroot()
    empty = type(store).parsestring(etree.tostring(etree.Element(root.tag, nsmap=root.nsmap)))
    for entry in root.iterchildren("string", "plurals", "string-array"):
        unit = store.UnitClass(None, xmlelement=entry)
        unit._store = empty  # is copied for every text with elements, to know the namespaces
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
    written = written.replace(b"\r\n", b"\n").rstrip(b"\n")
    if b"\r\n" in original:
        written = written.replace(b"\n", b"\r\n")
    written += original[len(original.rstrip(b"\r\n")) :]
    start, own_start = (PROLOG.match(content).end() for content in (original, written))  # type: ignore[union-attr]
    return original[:start] + written[own_start:]
