"""Rows of Excel workbooks. openpyxl would pad all rows and cells that the number of a row or cell claims."""

import posixpath
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from residual_hf.base.archives import open_archive
from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.xml_reader import xml_elements

MOST_COLUMNS = 1000
UNLIKE = (KeyError, IndexError, ValueError, AttributeError, StopIteration)
"""Errors of files that are no workbooks."""
ESCAPE = re.compile(r"_x(?![Dd][89A-Fa-f])([0-9A-Fa-f]{4})_")
"""A character, but no surrogate."""
CONTROL = re.compile(r"[^\t\n\x20-\ufffd\U00010000-\U0010ffff]")
BOOK, STRINGS, RELATIONS = "xl/workbook.xml", "xl/sharedStrings.xml", "xl/_rels/workbook.xml.rels"


def rows_of(path: Path, largest: int) -> Iterator[list[str]]:
    """The rows of the first sheet, as wide as the first one, without those that have no cells.

    Raises `InputError` for a file that is no workbook, or of more than `largest` bytes, unpacked.
    """
    unreadable = input_errors(f"{path}: cannot be read as an Excel workbook: ", *UNLIKE)
    with open_archive(path, largest) as archive, unreadable:
        related = _elements(archive, path, RELATIONS, "Relationship")
        parts = {each.get("Id"): each.get("Target") for each in related if each.get("Type").endswith("/worksheet")}
        numbers = (value for sheet in _elements(archive, path, BOOK, "sheet") for value in sheet.attrib.values())
        name = next(posixpath.join("/xl", parts[number])[1:] for number in numbers if number in parts)
        texts = []
        if STRINGS in archive.namelist():
            texts = [text_of(each) for each in _elements(archive, path, STRINGS, "si")]
        width = 0
        for row in _elements(archive, path, name, "row"):
            if cells := {_column(cell, path): _value(cell, texts) for cell in row.iterchildren("{*}c")}:
                width = width or max(cells) + 1
                yield [cells.get(column, "") for column in range(max(width, max(cells) + 1))]


def text_of(element: Any) -> str:
    """The text of a cell, without how to pronounce it."""
    runs = element.iter("{*}t")
    return unescaped("".join(run.text or "" for run in runs if not run.getparent().tag.endswith("}rPh")))


def unescaped(text: str) -> str:
    """A text with the characters that Excel writes as `_x000D_`, for example."""
    return ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def escaped(text: str) -> str:
    """A text as Excel writes it."""
    text = ESCAPE.sub(r"_x005F\g<0>", text)
    return CONTROL.sub(lambda found: f"_x{ord(found[0]):04X}_", text)


def _elements(archive: zipfile.ZipFile, path: Path, part: str, name: str) -> Iterator[Any]:
    with archive.open(part) as file:
        yield from xml_elements(file, f"{path}: {part}", (name,))


def _column(cell: Any, path: Path) -> int:
    """The position of the column of a cell such as `B7`; that of cells without a name is their place in the row."""
    if (name := cell.get("r")) is None:
        return sum(1 for _ in cell.itersiblings("{*}c", preceding=True))
    column = 0
    for letter in name.rstrip("0123456789"):
        column = 26 * column + ord(letter) - ord("A") + 1
        if column > MOST_COLUMNS:
            raise InputError(f"{path}: has a cell {name[:20]}, must have at most {MOST_COLUMNS:,} columns")
    return column - 1


def _value(cell: Any, texts: list[str]) -> str:
    kind, value = cell.get("t"), cell.findtext("{*}v") or ""
    if kind == "s":
        return texts[int(value)]
    return text_of(cell) if kind == "inlineStr" else unescaped(value)
