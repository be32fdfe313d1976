# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Excel workbooks: the text of cells, comments, drawings and charts; formulas, numbers and formats stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from residual_hf.base.xml_reader import XML_SPACE, etree
from residual_hf.data.workbooks import text_of
from residual_hf.generation.markup import Block, Inline, plain_text

from .office_open import paragraphs_of

LITERAL = re.compile('"((?:[^"]|"")*)"')


class Cell:
    """The text of a cell or a comment, whose parts may have formats."""

    def __init__(self, element: Any):
        self.element = element
        runs = element.findall("{*}r")
        texts = [(run, run.findtext("{*}t") or "") for run in runs]
        self.block: Block = [text if run.find("{*}rPr") is None else Inline(run, [text]) for run, text in texts]
        if not runs:
            self.block = [element.findtext("{*}t") or ""]

    def write(self, block: Block) -> None:
        element, name = self.element, etree.QName(self.element)
        for child in list(element):  # also how to pronounce it
            element.remove(child)
        for piece in block:
            text = etree.Element(f"{{{name.namespace}}}t")
            if isinstance(piece, str):
                text.text, formats = piece, []
            else:
                text.text, formats = plain_text(piece.pieces), piece.content.findall("{*}rPr")
            run = etree.SubElement(element, f"{{{name.namespace}}}r") if formats or len(block) > 1 else element
            run.extend([*map(deepcopy, formats), text])
            if text.text != " ".join(text.text.split()):
                text.set(XML_SPACE, "preserve")


def paragraphs_of_workbook(tree: Any) -> Iterator[Any]:
    """Cells, comments, and the paragraphs of drawings and charts."""
    yield from (Cell(element) for element in tree.iter("{*}si", "{*}is", "{*}text") if text_of(element))
    yield from paragraphs_of(tree)


def named_texts(tree: Any) -> Iterator[str]:
    """The texts that formulas, lists of choices or columns of tables name, which must equal those of cells."""
    for formula in tree.iter("{*}f", "{*}formula", "{*}formula1", "{*}formula2"):
        for text in LITERAL.findall(formula.text or ""):
            yield from (text, *text.split(","))
    for column in tree.iter("{*}tableColumn"):
        yield column.get("name", "").replace("_x000a_", "\n")
