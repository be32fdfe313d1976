"""Files of messages that translate-toolkit reads: those of Android, .NET and Qt, and YAML."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from residual_hf.base.errors import InputError, input_errors, requires
from residual_hf.base.xml_reader import XMLText, etree, read_xml, serialized
from residual_hf.generation.html_tokens import escaped
from residual_hf.generation.markup import Block

from . import XML_MESSAGES
from .catalogues import DEFAULTS, CatalogueOptions
from .document import DocumentFile, read_bytes, with_blocks
from .literal_text import characters, in_order, marked, read_marks, unescaped, write_marks

with requires("documents"):
    from ruamel.yaml import RoundTripConstructor, RoundTripRepresenter
    from ruamel.yaml.comments import TaggedScalar
    from ruamel.yaml.nodes import ScalarNode
    from ruamel.yaml.resolver import VersionedResolver
    from ruamel.yaml.scalarstring import PlainScalarString, SingleQuotedScalarString
    from translate.misc.xml_helpers import safely_set_text
    from translate.storage import aresource, resx, ts2, yaml

logger = logging.getLogger(__name__)

COMMENTS = (etree.Comment, etree.PI)
BYTE = re.compile(r'<byte value="(\w+)"/>')
BEFORE = re.compile(rb"(?:\xef\xbb\xbf)?\s*")
DOCUMENT = re.compile(rb"(?:\xef\xbb\xbf)?(?:(?:[#%][^\n]*|\r)?\n)*---[ \t]*(?:\r?\n|(?=#))")
"""The start of YAML, up to its first line."""
SEQUENCE = re.compile(r"^( *)[^\s#-][^\n]*:[ \t]*\n( *)- ", re.MULTILINE)
MAPPING = re.compile(r"^[^\s#-][^\n]*:[ \t]*\n( +)[^\s#-]", re.MULTILINE)
"""The indentation of YAML."""
NULL = "tag:yaml.org,2002:null"
RESOLVER = VersionedResolver(version=(1, 1))
"""Tells what a scalar without quotes is to Ruby and PyYAML."""


class Message(NamedTuple):
    """A text to translate, in XML if it `is_escaped`.

    `write` replaces the `current` translation, and returns what is then in the place of the `element` of XML.
    """

    text: str
    current: str
    write: Callable[[str], Any]
    is_escaped: bool = False
    element: Any = None

    @property
    def block(self) -> Block:
        return read_marks(marked(self.text, unescaped if self.is_escaped else characters))


class _Null:
    """Nothing, as YAML writes it."""

    def __init__(self, loader: Any, node: Any):
        self.written = node.value


class _Constructor(RoundTripConstructor):
    pass


class _Representer(RoundTripRepresenter):
    pass


_Constructor.add_constructor(NULL, _Null)
_Representer.add_representer(_Null, lambda representer, null: representer.represent_scalar(NULL, null.written))


class _YAML(yaml.YAMLFile):
    """Keeps the indentation, and leaves out numbers, dates, truth values and what has a tag, such as `!include`."""

    tagged = 0

    def parse(self, input: bytes) -> None:
        text = input.decode("utf-8-sig").replace("\r\n", "\n")
        sequence, mapping = SEQUENCE.search(text), MAPPING.search(text)
        dash = len(sequence[2]) - len(sequence[1]) if sequence else 0
        self.dump_args: dict[str, Any] = {
            **self.dump_args,
            "Constructor": _Constructor,
            "Representer": _Representer,
            "width": 2**31,
            "map_indent": len(mapping[1]) if mapping else 2,
            "sequence_dash_offset": dash,
            "sequence_indent": dash + 2,
        }
        super().parse(text)
        if isinstance(self._original, str):
            raise ValueError("it has a text without a key")

    def _flatten(self, data: Any, *args: Any, **options: Any) -> Iterator[Any]:  # type: ignore[override]
        self.tagged += isinstance(data, TaggedScalar)
        if isinstance(data, (str, dict, list)) and not (_is_plain(data) and _needs_quotes(data)):
            yield from super()._flatten(data, *args, **options)


class MessageFile(DocumentFile):
    """Messages under keys, which stay. Of Qt, the translations; of others, the texts themselves are replaced."""

    def __init__(self, path: Path, options: CatalogueOptions = DEFAULTS):
        suffix, self._content = path.suffix.lower(), read_bytes(path)
        is_xml = suffix in XML_MESSAGES
        if is_xml:
            root = read_xml(self._content, str(path)).getroot()  # refuses entities
            if suffix == ".xml" and root.tag != "resources":
                raise InputError(f"{path}: is <{root.tag}>, must be the <resources> of Android")
        self._store = _STORES[suffix]()
        with input_errors(f"{path}: cannot be read as a {suffix} file of messages: ", Exception):  # of several parsers
            self._store.parse(self._content)
            self._xml = XMLText(self._content, self._store.document, str(path)) if is_xml else None
            found = list(_messages(self._store, options))
        if tagged := getattr(self._store, "tagged", 0):
            logger.warning("%s: %d texts that have a tag, such as !include, stay", path, tagged)
        self._messages, self.blocks = with_blocks(found)

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        changed = {}
        for message, block in zip(self._messages, map(in_order, self.blocks, blocks), strict=True):
            text = write_marks(block, escaped if message.is_escaped else str)
            if text != message.current:
                changed[message.element] = message.write(text)
        if self._xml is None:
            path.write_bytes(_as_before(bytes(self._store), self._content) if changed else self._content)
            return
        for element, new in changed.items():
            self._xml.replace(element, self._written(new))
        path.write_bytes(self._xml.written())

    def _written(self, element: Any) -> str:
        """An element in the form that belongs to its format."""
        encoding, text = self._store.encoding, f"{serialized(element)}\n"  # without a line end, Qt's would not end
        form = self._store.serialize_hook(text.encode(encoding, "xmlcharrefreplace").decode(encoding))
        return form.decode(encoding).replace("\r\n", "\n").removesuffix("\n")


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
    elif isinstance(store, resx.RESXFile):
        for unit in store.units:
            value = unit.xmlelement.find("{*}value")
            of_form = unit.xmlelement.get("name", "").startswith(">>")
            is_object = unit.xmlelement.get("type") or unit.xmlelement.get("mimetype")  # a file or a picture
            if (text := _text(value)) and not (of_form or is_object):
                yield Message(text, text, partial(_set_text, value), element=value)
    else:
        units, store.units = store.units, []  # of those that have changed
        for unit in units:
            if unit.target and unit.istranslatable():
                yield Message(unit.target, unit.target, partial(_replace, store, unit))


def _replace(store: Any, unit: Any, text: str) -> None:
    unit.target = SingleQuotedScalarString(text) if _is_plain(unit.target) and _needs_quotes(text) else text
    store.units.append(unit)


def _is_plain(data: Any) -> TypeGuard[str]:
    """Whether a value of YAML has no quotes."""
    return type(data) in (str, PlainScalarString)


def _needs_quotes(text: str) -> bool:
    """Whether a text without quotes would be a number, a date or a truth value in YAML 1.1."""
    return RESOLVER.resolve(ScalarNode, text, (True, False)) != RESOLVER.DEFAULT_SCALAR_TAG


def _text(element: Any) -> str:
    """The text of an element without comments and processing instructions; `<byte>` of Qt stands for a character.

    It is empty if other elements are in it.
    """
    if element is None or any(child.tag not in (*COMMENTS, "byte") for child in element):
        return ""
    text = element.text or ""
    for child in element:
        text += f'<byte value="{child.get("value")}"/>' if child.tag == "byte" else ""
        text += child.tail or ""
    return text


def _set_text(element: Any, text: str) -> Any:
    del element[:]
    safely_set_text(element, text)
    return element


def _of_android(store: Any) -> Iterator[Message]:
    """Texts, forms of plurals and members of lists."""
    root = store.document.getroot()
    empty = type(store).parsestring(etree.tostring(etree.Element(root.tag, nsmap=root.nsmap)))
    for entry in root.iterchildren("string", "plurals", "string-array", "item"):
        if entry.get("translatable") == "false" or (entry.tag == "item" and entry.get("type") != "string"):
            continue
        unit = store.UnitClass(None, xmlelement=entry)
        unit._store = empty  # is copied for every text with elements, to know the namespaces
        has_modes = hasattr(unit, "_get_target_markup_mode")  # not translate-toolkit 3.17, the last for Python 3.10
        mode = unit._get_target_markup_mode() if has_modes else ""
        for element in [entry] if entry.tag in ("string", "item") else entry.iterchildren("item"):
            bare = deepcopy(element)
            etree.strip_tags(bare, *COMMENTS)
            text = unit.get_xml_text_value(bare)
            if not "".join(bare.itertext()).strip().startswith(("@", "?")):  # names of other messages
                is_plain = has_modes and mode == unit.TARGET_MARKUP_XML and not len(bare)  # is not parsed as XML
                write = partial(_replace_in_android, unit, unit.TARGET_MARKUP_PLAIN if is_plain else mode, element)
                yield Message(text, text, write, len(bare) > 0, element)


def _replace_in_android(unit: Any, markup: str, element: Any, text: str) -> Any:
    before, parent = element.getprevious(), element.getparent()
    etree.strip_tags(element, *COMMENTS)
    if markup:
        unit.set_xml_text_value(text, element, markup)  # may put another element in its place
    elif len(element) or "<![CDATA[" in text:
        unit.set_xml_text_value(text, element)
    else:
        unit.set_xml_text_plain(text, element)
    return parent[0] if before is None else before.getnext()


def _of_qt(store: Any, options: CatalogueOptions) -> Iterator[Message]:
    for unit in store.units:
        source, known = (unit.xmlelement.find(f"{{*}}{name}") for name in ("source", "translation"))
        if not unit.istranslatable():
            continue
        target = unit._gettargetnode()  # adds a missing one
        place = unit.xmlelement if known is None else target
        forms = [target]
        if unit.hasplural():
            forms = target.findall("{*}numerusform") or [etree.SubElement(target, "numerusform")]
        texts = ["".join(form.itertext()) for form in forms]
        if options.wants(not "".join(texts[:1]).strip(), unit.isreview()):
            for form, text in zip(forms, texts, strict=True):
                yield Message(_text(source), text, partial(_replace_form, unit, form, place), element=place)


def _replace_form(unit: Any, form: Any, place: Any, text: str) -> Any:
    first, *rest = BYTE.split(text)
    _set_text(form, first)
    for value, after in zip(rest[::2], rest[1::2], strict=True):
        etree.SubElement(form, "byte", value=value).tail = after
    unit.markfuzzy()  # until somebody has read it
    return place


def _as_before(written: bytes, original: bytes) -> bytes:
    """A file of YAML with the start, up to its first line, and the line ends of another one."""
    written = written.replace(b"\r\n", b"\n").rstrip(b"\n")
    if b"\r\n" in original:
        written = written.replace(b"\n", b"\r\n")
    written += original[len(original.rstrip(b"\r\n")) :]
    starts = (DOCUMENT.match(content) or BEFORE.match(content) for content in (original, written))
    start, own_start = (found.end() for found in starts)  # type: ignore[union-attr]  # the second matches anything
    return original[:start] + written[own_start:]
