"""Reads XML in bounded memory, without entities, external files and network access."""

import re
from collections.abc import Collection, Iterator
from typing import IO, Any
from xml.sax.saxutils import quoteattr

from residual_hf.model.placeholders import Edit, EditedText

from .errors import InputError, input_errors, requires

with requires("documents"):
    from lxml import etree

XML_LANG, XML_SPACE = (f"{{http://www.w3.org/XML/1998/namespace}}{name}" for name in ("lang", "space"))
SAFE = {"resolve_entities": False, "load_dtd": False, "no_network": True, "huge_tree": False}
"""Without `huge_tree`, libxml2 refuses text of more than 10 MB, and 256 levels of nesting."""
WITHOUT_COMMENTS = {"remove_comments": True, "remove_pis": True}
TAG = re.compile(
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<\?.*?(?:\?>|\Z)|(<(?!!)(?:[^\"'<>]|\"[^\"<]*\"|'[^'<]*')*>)",
    re.DOTALL,
)
"""Comments, text and instructions, or a tag."""
MOST_PARTS = 10_000
"""Elements in a unit of `xml_elements`."""
LARGEST_UNIT = 16 * 2**20
"""Bytes of a unit, or of what is between two units."""
LARGEST_FRAME = 2**20
"""Characters in the attributes of the elements around units."""


def read_xml(content: bytes, where: str, *, comments: bool = True) -> Any:
    """The tree of an XML document, with or without its comments and processing instructions.

    Raises `InputError`, which begins with `where`, if it cannot be read.
    """
    options = SAFE if comments else SAFE | WITHOUT_COMMENTS
    with input_errors(f"{where}: not XML that can be read: ", etree.LxmlError):
        tree = etree.fromstring(content, etree.XMLParser(strip_cdata=False, **options)).getroottree()
    _refuse_entities(tree.getroot(), where)
    return tree


class XMLText:
    """The text of an XML document that is read, in which elements can be replaced; all else stays, byte for byte.

    Made before the tree is changed. Raises `InputError`, which begins with `where`, for bytes that cannot be decoded.
    """

    def __init__(self, content: bytes, tree: Any, where: str):
        self._encoding = tree.docinfo.encoding or "utf-8"
        with input_errors(f"{where}: not {self._encoding}: ", LookupError, UnicodeError):
            self._text = content.decode(self._encoding)
        self._places = dict(zip(tree.getroot().iter("*"), _places(self._text), strict=True))
        self._edits: list[Edit] = []

    def replace(self, element: Any, new: str) -> None:
        start, _, end = self._places[element]
        self._edits.append(Edit(start, end, new.replace("\n", "\r\n") if "\r\n" in self._text else new))

    def add_attribute(self, element: Any, name: str, value: str) -> None:
        _, end, _ = self._places[element]
        end -= 2 if self._text[end - 2] == "/" else 1
        self._edits.append(Edit(end, end, f" {name}={quoteattr(value)}"))

    def written(self) -> bytes:
        return EditedText(self._text, sorted(self._edits)).text.encode(self._encoding, "xmlcharrefreplace")


def serialized(element: Any) -> str:
    """An element as XML, for the place where it is: without the namespaces that are declared around it."""
    text = etree.tostring(element, encoding="unicode", with_tail=False)
    for prefix, name in element.getparent().nsmap.items():
        text = text.replace(f' xmlns{f":{prefix}" if prefix else ""}="{name}"', "", 1)
    return text


def _places(text: str) -> list[tuple[int, int, int]]:
    """The places where each element begins, its start tag ends, and it ends, in the order in which they begin."""
    found: list[tuple[int, int, int]] = []
    opened: list[int] = []
    for tag in TAG.finditer(text):
        if tag[1] and tag[1].startswith("</"):
            number = opened.pop()
            found[number] = *found[number][:2], tag.end()
        elif tag[1]:
            opened += [len(found)] * (not tag[1].endswith("/>"))
            found.append((tag.start(), tag.end(), tag.end()))
    return found


class _BoundedFile:
    """A file of which at most `left` bytes can be read. Raises `InputError`, which begins with `where`, for more."""

    def __init__(self, file: IO[bytes], where: str):
        self._file, self._where, self.left = file, where, LARGEST_UNIT

    def read(self, size: int) -> bytes:
        if self.left < 0:
            raise InputError(f"{self._where}: an element of more than {LARGEST_UNIT:,} bytes")
        content = self._file.read(size)
        self.left -= len(content)
        return content


def xml_elements(file: IO[bytes], where: str, names: Collection[str]) -> Iterator[Any]:
    """The elements with these local names, or names with a namespace, in order.

    Each is only complete until the next is read; what is outside of them is dropped while reading. Raises
    `InputError`, which begins with `where`, for XML that cannot be read and for an element of more than `MOST_PARTS`
    or `LARGEST_UNIT`.
    """
    parts, frame = -1, 0  # elements in one with one of the names; characters around them
    bounded = _BoundedFile(file, where)
    with input_errors(f"{where}: not XML that can be read: ", etree.LxmlError):
        for event, element in etree.iterparse(bounded, events=("start", "end"), **SAFE | WITHOUT_COMMENTS):
            wanted = local_name(element) in names or element.tag in names
            if element.getparent() is None or (wanted and event == "end"):
                _refuse_entities(element, where)
            if event == "start":
                parts += 1 if wanted or parts >= 0 else 0
                if parts > MOST_PARTS:
                    raise InputError(f"{where}: <{'>, <'.join(names)}> of more than {MOST_PARTS:,} elements")
                frame += _attributes(element) if parts < 0 else 0
                if frame > LARGEST_FRAME:
                    raise InputError(f"{where}: attributes of more than {LARGEST_FRAME:,} characters")
                continue
            if wanted:
                yield element
                parts = -1
                bounded.left = LARGEST_UNIT
            elif parts < 0:
                frame -= _attributes(element)
            if parts < 0:
                element.clear()
                while element.getprevious() is not None:
                    del element.getparent()[0]


def _attributes(element: Any) -> int:
    return sum(map(len, element.attrib.values()))


def local_name(element: Any) -> str:
    """The name of an element without its namespace; empty for comments and processing instructions."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: Any, name: str, default: str = "") -> str:
    """The value of an attribute whose name without its namespace this is."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), default)


def _refuse_entities(element: Any, where: str) -> None:
    dtd = element.getroottree().docinfo.internalDTD
    defined = None if dtd is None else next(dtd.iterentities(), None)
    used: Any = next(element.iter(etree.Entity), None)
    if defined is not None or used is not None:
        fault = f"the entity {used.text} is not defined" if defined is None else "defines entities, must have none"
        raise InputError(f"{where}: {fault}")
