"""Documents that are zip archives of XML: docx, pptx, xlsx, odt, odp, ods. What has no text is copied as it is."""

import logging
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy, deepcopy
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

from residual_hf.base.archives import open_archive, read_part
from residual_hf.base.errors import InputError
from residual_hf.base.xml_reader import XML_SPACE, etree, local_name, read_xml
from residual_hf.data.workbooks import escaped, text_of, unescaped
from residual_hf.generation.markup import Block, Inline, plain_text
from residual_hf.model.options import shortened

from .document import DocumentFile, has_text
from .mixed_content import Dialect, read_mixed, write_mixed
from .office_open import Label, paragraphs_of

logger = logging.getLogger(__name__)

TEXT_NAMESPACE = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
TABLE_NAMESPACE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
OFFICE_NAMESPACE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
LITERAL = re.compile('"((?:[^"]|"")*)"')
"""A text in a formula."""
WITHIN = re.compile(r'\b(SEARCH|FIND|contains-text|begins-with|ends-with)B?\(\s*"((?:[^"]|"")*)"', re.IGNORECASE)
"""A text that formulas and conditions look for within others."""
PARTS_OF_TEXTS = {"begins-with": "{}*", "beginsWith": "{}*", "ends-with": "*{}", "endsWith": "*{}"}
"""Where it is, by functions of OpenDocument and rules of Excel; elsewhere it may be anywhere."""
BEFORE_CALCULATION = ("sheets", "functionGroups", "externalReferences", "definedNames")
"""In the properties of a workbook, elements before those of its calculation."""
FILTERS = ("{*}filter", "{*}customFilter", f"{TABLE_NAMESPACE}filter-condition", f"{TABLE_NAMESPACE}filter-set-item")
"""Elements with a value of a filter, which rows must have to be shown."""
WILDCARD, LEAST_LETTERS = re.compile("[*?]"), 3
"""Of a text with a wildcard, with less of which it would be in most texts."""
OF_OPEN_DOCUMENT = ("}formula", "}condition", "}value")
"""Attributes of OpenDocument with a formula."""
RANGES = ("bookmark", "reference-mark", "toc-mark", "alphabetical-index-mark", "user-index-mark", "change")
OPEN_DOCUMENT_TEXT = Dialect(
    ("span", "a", "meta", "meta-field", "ruby", "ruby-base", "text-input", "placeholder"),
    spaces=("s",),
    breaks=("tab", "line-break"),
    without_text=("ruby-text", "script", "hidden-text"),
    spans={**{f"{name}-start": f"{name}-end" for name in RANGES}, "annotation": "annotation-end"},
)


class OpenDocumentParagraph:
    """A paragraph or heading. Footnotes, frames and comments in it have paragraphs of their own."""

    def __init__(self, element: Any):
        self.element, self.block = element, read_mixed(element, OPEN_DOCUMENT_TEXT)

    def write(self, block: Block) -> None:
        write_mixed(self.element, block, OPEN_DOCUMENT_TEXT)
        self.element.getparent().attrib.pop(f"{OFFICE_NAMESPACE}string-value", None)  # shown instead in a cell


def open_document_paragraphs(tree: Any) -> Iterator[OpenDocumentParagraph]:
    """Without those that show the number, date or truth value of a cell, which are made from its attributes."""
    for element in tree.getroot().iterdescendants(f"{TEXT_NAMESPACE}p", f"{TEXT_NAMESPACE}h"):
        if element.getparent().get(f"{OFFICE_NAMESPACE}value-type", "string") == "string":
            yield OpenDocumentParagraph(element)


class Cell:
    """The text of a cell or a comment, whose parts may have formats."""

    def __init__(self, element: Any):
        self.element = element
        runs = [(run, unescaped(run.findtext("{*}t") or "")) for run in element.findall("{*}r") or [element]]
        self.block: Block = [text if run.find("{*}rPr") is None else Inline(run, [text]) for run, text in runs]

    def write(self, block: Block) -> None:
        element, name = self.element, etree.QName(self.element)
        del element[:]  # also how to pronounce it
        pieces = [piece for piece in block if plain_text([piece])] or [""]  # Excel refuses empty ones beside others
        for piece in pieces:
            text = etree.Element(f"{{{name.namespace}}}t")
            text.text = escaped(plain_text([piece]))
            formats = [] if isinstance(piece, str) else piece.content.findall("{*}rPr")
            run = etree.SubElement(element, f"{{{name.namespace}}}r") if formats or len(pieces) > 1 else element
            run.extend([*map(deepcopy, formats), text])
            if text.text != " ".join(text.text.split()):
                text.set(XML_SPACE, "preserve")


def paragraphs_of_workbook(tree: Any) -> Iterator[Any]:
    """Cells, comments, and the paragraphs of drawings and charts."""
    yield from (Cell(element) for element in tree.iter("{*}si", "{*}is", "{*}text") if text_of(element))
    yield from (Label(element) for element in tree.iterfind("{*}threadedComment/{*}text"))
    yield from paragraphs_of(tree)


def named_texts(tree: Any) -> Iterator[str]:
    """What formulas, conditions, filters, lists or columns of tables name, as `compared`; cells must match it."""
    formulas = [each.text or "" for each in tree.iter("{*}f", "{*}formula", "{*}formula1", "{*}formula2")]
    for element in tree.iter(f"{TABLE_NAMESPACE}*", "{*}condition", "{*}map"):
        formulas += [value for key, value in element.attrib.items() if key.endswith(OF_OPEN_DOCUMENT)]
    for text in chain.from_iterable(map(LITERAL.findall, formulas)):
        yield from (compared(part.lstrip("<>=")) for part in (text, *text.split(",")))
    rules = ((rule.get("type", ""), rule.get("text")) for rule in tree.iterfind(".//{*}cfRule[@text]"))
    for kind, text in chain(rules, chain.from_iterable(map(WITHIN.findall, formulas))):
        yield PARTS_OF_TEXTS.get(kind, "*{}*").format(compared(text))
    for element, key in filters_of(tree):
        text, operator = compared(unescaped(element.get(key))), element.get(f"{TABLE_NAMESPACE}operator", "=")
        if operator.strip("!=<>"):  # of OpenDocument
            yield PARTS_OF_TEXTS.get(operator, "*{}*").format(text)
        elif WILDCARD.search(text):
            yield text
    for column in tree.iter("{*}tableColumn", "{*}cacheField"):
        yield compared(unescaped(column.get("name", "")))
    for field in tree.iter(f"{TABLE_NAMESPACE}data-pilot-field"):
        yield compared(field.get(f"{TABLE_NAMESPACE}source-field-name", ""))


def filters_of(tree: Any) -> Iterator[tuple[Any, str]]:
    """The elements with a value of a filter, and its attribute."""
    for element in tree.iter(*FILTERS):
        yield from ((element, key) for key in ("val", f"{TABLE_NAMESPACE}value") if element.get(key))


def compared(text: str) -> str:
    """A text as formulas compare it."""
    return text.strip().casefold()


class NamedTexts:
    """The texts that `named_texts` finds."""

    def __init__(self, texts: Iterable[str]):
        found = set(texts)
        self.exact = {text.replace("~", "") for text in found}  # before a wildcard that is a character
        patterns = (text for text in found if WILDCARD.search(text) and "~" not in text)
        self.patterns = [text.replace("[", "[[]") for text in patterns if sum(map(str.isalpha, text)) >= LEAST_LETTERS]

    def __contains__(self, paragraph: Any) -> bool:
        """Whether a paragraph has one of the texts, which in cells may have the wildcards `*` and `?`."""
        text = compared(plain_text(paragraph.block))
        return text in self.exact or (is_cell(paragraph) and any(fnmatchcase(text, each) for each in self.patterns))


def is_cell(paragraph: Any) -> bool:
    """Whether a paragraph of a spreadsheet is in a cell; those of OpenDocument are not told apart."""
    return isinstance(paragraph, OpenDocumentParagraph) or local_name(paragraph.element) in ("si", "is")


WORD = (
    r"word/(?:document|header|footer|footnotes|endnotes|comments"
    r"|charts/chart(?:Ex)?|diagrams/(?:data|drawing))\d*\.xml"
)
SLIDES = r"ppt/(slides|slideLayouts|(slide|notes|handout)Masters|notesSlides|charts|diagrams)/[^/]+\.xml"
WORKBOOK = (
    r"xl/(sharedStrings|(worksheets|charts|drawings|tables|threadedComments)/[^/]+|comments[^.]*"
    r"|pivotCache/pivotCacheDefinition[^/]+)\.xml"
)
PROPERTIES_OF_WORKBOOK = r"xl/workbook\d*\.xml"
OPEN_DOCUMENT = r"(.+/)?(content|styles)\.xml"
PARTS: dict[str, tuple[str, Callable[[Any], Iterable[Any]]]] = {
    ".docx": (WORD, paragraphs_of),
    ".pptx": (SLIDES, paragraphs_of),
    ".xlsx": (WORKBOOK, paragraphs_of_workbook),
    **dict.fromkeys((".odt", ".odp", ".ods"), (OPEN_DOCUMENT, open_document_paragraphs)),
}
"""The files of an archive with text, and their paragraphs, which have a `block` and can `write` one; by suffix."""


class ArchivedDocument(DocumentFile):
    def __init__(self, path: Path):
        self._path = path
        pattern, paragraphs = PARTS[path.suffix.lower()]
        self._trees: dict[str, Any] = {}
        with open_archive(path) as archive:
            for name in archive.namelist():
                if re.fullmatch(pattern, name):
                    self._trees[name] = read_xml(read_part(archive, name), f"{path}: {name}", comments=False)
        if not self._trees:
            raise InputError(f"{path}: no text found, must be a {path.suffix.lower()} document")
        sheets = {**self._trees} if path.suffix.lower() in (".xlsx", ".ods") else {}
        named = NamedTexts(chain.from_iterable(map(named_texts, sheets.values())))
        self._has_formulas = any(tree.find(".//{*}c/{*}f") is not None for tree in sheets.values())  # of Excel
        self._filtered = {name: tree for name, tree in sheets.items() if any(filters_of(tree))}
        self._paragraphs: list[Any] = []
        stay = 0
        for name, tree in [*self._trees.items()]:
            found = [paragraph for paragraph in paragraphs(tree) if has_text(paragraph.block)]
            wanted = [paragraph for paragraph in found if paragraph not in named]
            stay += len(found) - len(wanted)
            self._paragraphs += wanted
            if not wanted:
                del self._trees[name]
        if stay:
            parts = ", ".join(pattern.strip("*") for pattern in named.patterns if pattern.strip("*"))
            often = f"; those with {shortened(parts)} too" * bool(parts)
            what = "formulas, filters, lists of choices or tables"
            logger.warning("%s: %d texts stay, which %s name%s", path, stay, what, often)
        self.blocks = [paragraph.block for paragraph in self._paragraphs]

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        trees, cells = {**self._trees}, {}
        for paragraph, block in zip(self._paragraphs, blocks, strict=True):
            if is_cell(paragraph) and (text := plain_text(block)) != plain_text(paragraph.block):
                cells[compared(plain_text(paragraph.block))] = text
            paragraph.write(block)
        if cells and self._has_formulas:
            trees |= self._calculated()
        for name, tree in self._filtered.items():
            for element, key in filters_of(tree):
                if text := cells.get(compared(unescaped(element.get(key))), ""):
                    element.set(key, escaped(text))
                    trees[name] = tree
        changed = {
            name: etree.tostring(tree, xml_declaration=True, encoding="UTF-8", standalone=tree.docinfo.standalone)
            for name, tree in trees.items()
        }
        rewrite_archive(self._path, path, changed)

    def _calculated(self) -> dict[str, Any]:
        """The properties of a workbook of Excel, which let it calculate formulas when it is opened."""
        found = {}
        with open_archive(self._path) as archive:
            for name in archive.namelist():
                if re.fullmatch(PROPERTIES_OF_WORKBOOK, name):
                    found[name] = tree = read_xml(read_part(archive, name), f"{self._path}: {name}")
                    calculate_when_opened(tree.getroot())
        return found


def calculate_when_opened(workbook: Any) -> None:
    properties = workbook.find("{*}calcPr")
    if properties is None:
        properties = etree.Element(workbook.tag.removesuffix("workbook") + "calcPr")
        before = [place for place, child in enumerate(workbook, start=1) if local_name(child) in BEFORE_CALCULATION]
        workbook.insert(max(before, default=0), properties)
    properties.set("fullCalcOnLoad", "1")


def rewrite_archive(source: Path, target: Path, changed: dict[str, bytes]) -> None:
    """Copy a zip archive with other content for some of its files; order, dates and compression stay."""
    with open_archive(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            if entry.filename in changed:
                new.writestr(copy(entry), changed[entry.filename])
            else:
                with old.open(entry) as original, new.open(copy(entry), "w") as copied:
                    shutil.copyfileobj(original, copied)
