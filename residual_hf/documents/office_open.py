# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The text of Office Open XML: paragraphs of runs in Word documents, and in the slides and charts of PowerPoint."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from residual_hf.base.xml_reader import etree, local_name
from residual_hf.generation.markup import Block, Inline

TRANSITIONAL, STRICT = "http://schemas.openxmlformats.org/", "http://purl.oclc.org/ooxml/"
NAMESPACES = (
    *(f"{TRANSITIONAL}wordprocessingml/2006/main", f"{STRICT}wordprocessingml/main"),
    *(f"{TRANSITIONAL}drawingml/2006/main", f"{STRICT}drawingml/main"),
)
PARAGRAPHS = [f"{{{namespace}}}{name}" for namespace in NAMESPACES for name in ("p", "sdtContent")]
PROPERTIES = ("pPr", "endParaRPr")
WRAPPERS = ("hyperlink", "ins", "moveTo", "smartTag", "customXml", "dir", "bdo")
"""Elements around runs, whose text belongs to the paragraph."""
DROPPED = ("rPr", "proofErr", "lastRenderedPageBreak", "softHyphen")
BREAKS = ("tab", "br", "cr", "ptab")
TEXT, START, END, BREAK, EMPTY, CODE = "text", "<", ">", "break", "empty", "instrText"
WITHOUT_LOOK = ("lang", "noProof", "bCs", "iCs", "szCs", "webHidden", "altLang", "dirty", "err")
"""Properties of runs that do not change how their text looks: elements of Word, attributes of PowerPoint."""
XML_SPACE = "{http://www.w3.org/XML/1998/namespace}space"


@dataclass
class Atom:
    """A part of a paragraph.

    Attributes:
        kind: TEXT, START or END of an element of `WRAPPERS`, BREAK, EMPTY for what has no text, or a part of a field:
            "begin", CODE, "separate", "end".
        element: a child of a run, or of the paragraph.
        run: without content, for a child of a run.
        look: the key of the format of the run.
    """

    kind: str
    element: Any
    run: Any = None
    look: bytes = b""

    def append_to(self, parent: Any) -> None:
        element = self.element
        if self.run is not None:
            self.run.append(element)
            element = self.run
        element.tail = None
        parent.append(element)


class Format(NamedTuple):
    """Content of `Inline`: text inside has these properties of a run."""

    properties: Any


class Wrapper(NamedTuple):
    """Content of `Inline`: text inside is in an element such as this one."""

    element: Any


class Kept(NamedTuple):
    """Content of `Inline`: atoms before and after the text inside."""

    before: Sequence[Atom]
    after: Sequence[Atom] = ()


def paragraphs_of(tree: Any) -> Iterator[Paragraph]:
    """The paragraphs of a part that have runs, also those in text boxes, tables and charts."""
    for element in tree.iter(*PARAGRAPHS):
        if any(local_name(child) in ("r", *WRAPPERS) for child in element):
            yield Paragraph(element)


class Paragraph:
    """A paragraph as a block, whose elements are formats, links, and what is not text.

    Word splits text of one format into runs at will; they are joined. The format of most letters has no element. The
    text of fields is kept, except for that of links. Bookmarks and comments comprise the whole paragraph.
    """

    def __init__(self, element: Any):
        self.element = element
        self._formats: dict[bytes, Any] = {}
        atoms = list(self._atoms(element))
        self._first = [atom for atom in atoms if local_name(atom.element).endswith("Start")]
        self._last = [atom for atom in atoms if local_name(atom.element).endswith("End")]
        atoms = [atom for atom in atoms if not local_name(atom.element).endswith(("Start", "End"))]
        letters: Counter[bytes] = Counter()
        for atom in atoms:
            letters[atom.look] += len(atom.element.text or "") if atom.kind == TEXT else 0
        self._base = letters.most_common(1)[0][0] if letters else b""
        self.block = self._read(atoms)

    def _atoms(self, parent: Any) -> Iterator[Atom]:
        for child in parent:
            name = local_name(child)
            if name == "r":
                yield from self._run(child)
            elif name in WRAPPERS:
                yield Atom(START, child)
                yield from self._atoms(child)
                yield Atom(END, child)
            elif name not in (*PROPERTIES, *DROPPED):
                yield Atom(BREAK if name in BREAKS else EMPTY, child)

    def _run(self, run: Any) -> Iterator[Atom]:
        properties = next((child for child in run if local_name(child) == "rPr"), None)
        look = self._look(properties)
        for child in run:
            name = local_name(child)
            if name in DROPPED:
                continue
            kind = {"t": TEXT, CODE: CODE, **dict.fromkeys(BREAKS, BREAK)}.get(name, EMPTY)
            if name == "noBreakHyphen":
                kind, child = TEXT, etree.Element(child.tag)
                child.text = "\u2011"
            if name == "fldChar":
                kind = next((value for key, value in child.attrib.items() if key.endswith("fldCharType")), EMPTY)
            shell = etree.Element(run.tag, run.attrib, run.nsmap)
            if properties is not None:
                shell.append(copy.deepcopy(properties))
            yield Atom(kind, child, shell, look)

    def _look(self, properties: Any) -> bytes:
        """A key for the format of a run."""
        key = b""
        if properties is not None:
            bare = copy.deepcopy(properties)
            for child in list(bare):
                if local_name(child) in WITHOUT_LOOK:
                    bare.remove(child)
            for name in WITHOUT_LOOK:
                bare.attrib.pop(name, None)
            key = etree.tostring(bare, method="c14n") if len(bare) or bare.attrib else b""
        self._formats.setdefault(key, properties)
        return key

    def _read(self, atoms: Sequence[Atom]) -> Block:
        block: Block = []
        position = 0
        while position < len(atoms):
            atom, end = atoms[position], _partner(atoms, position)
            if end is not None and atom.kind == START:
                block.append(Inline(Wrapper(atom.element), self._read(atoms[position + 1 : end])))
            elif end is not None:
                block.append(self._field(atoms[position : end + 1]))
            elif atom.kind == TEXT:
                self._add_text(block, (atom.element.text or "").replace("\n", " "), atom.look)
            else:
                is_empty = atom.kind == EMPTY
                block.append(Inline(Kept([atom]), [] if is_empty else ["\n"], keep=not is_empty))
            position = 1 + (position if end is None else end)
        return block

    def _add_text(self, block: Block, text: str, look: bytes) -> None:
        if look == self._base:
            block.append(text)
            return
        content, last = Format(self._formats[look]), block[-1] if block else ""
        if isinstance(last, Inline) and last.content == content:
            last.pieces.append(text)
        else:
            block.append(Inline(content, [text]))

    def _field(self, atoms: Sequence[Atom]) -> Inline:
        places = [place for place, atom in enumerate(atoms) if atom.kind == "separate"]
        separate = places[0] if places else len(atoms) - 1
        before, text = atoms[: separate + 1], atoms[separate + 1 : -1]
        code = "".join(atom.element.text or "" for atom in before if atom.kind == CODE)
        if code.split()[:1] == ["HYPERLINK"] and text and not any(atom.kind == START for atom in before):
            return Inline(Kept(before, atoms[-1:]), self._read(text))
        shown = "".join(atom.element.text or "" for atom in text if atom.kind == TEXT)
        return Inline(Kept(list(_outermost(atoms))), [shown] if shown else [], keep=True)

    def write(self, block: Block) -> None:
        """Replace the runs by a translation."""
        element = self.element
        for child in list(element):
            if local_name(child) not in PROPERTIES:
                element.remove(child)
        for atom in self._first:
            atom.append_to(element)
        self._write(block, element, self._formats.get(self._base))
        for atom in self._last:
            atom.append_to(element)
        for child in [child for child in element if local_name(child) == "endParaRPr"]:
            element.append(child)

    def _write(self, block: Block, parent: Any, properties: Any) -> None:
        for piece in block:
            if isinstance(piece, str):
                if text := piece.replace("\n", ""):  # which stood for a break
                    parent.append(self._text_run(text, properties))
                continue
            content = piece.content
            if isinstance(content, Format):
                self._write(piece.pieces, parent, content.properties)
            elif isinstance(content, Wrapper):
                inside = etree.SubElement(parent, content.element.tag, content.element.attrib)
                self._write(piece.pieces, inside, properties)
            else:
                for atom in content.before:
                    atom.append_to(parent)
                self._write([] if piece.keep else piece.pieces, parent, properties)
                for atom in content.after:
                    atom.append_to(parent)

    def _text_run(self, text: str, properties: Any) -> Any:
        namespace = etree.QName(self.element).namespace
        run = etree.Element(f"{{{namespace}}}r")
        if properties is not None:
            run.append(copy.deepcopy(properties))
        etree.SubElement(run, f"{{{namespace}}}t").text = text
        if "wordprocessingml" in namespace:
            run[-1].set(XML_SPACE, "preserve")
        return run


def _partner(atoms: Sequence[Atom], position: int) -> int | None:
    """Where the wrapper or the field ends that begins with an atom; None for a field that ends outside of it."""
    ends = {START: END, "begin": "end"}
    first = atoms[position].kind
    depths = dict.fromkeys(ends, 0)
    for place in range(position, len(atoms) if first in ends else 0):
        for start, end in ends.items():
            depths[start] += (atoms[place].kind == start) - (atoms[place].kind == end)
        if depths[first] == 0:
            return place if first == START or depths[START] == 0 else None
        if depths[START] < 0:
            return None
    return None


def _outermost(atoms: Sequence[Atom]) -> Iterator[Atom]:
    """The atoms that are not in a wrapper, and the wrappers with all that is in them."""
    depth = 0
    for atom in atoms:
        if depth == 0:
            yield atom
        depth += (atom.kind == START) - (atom.kind == END)
