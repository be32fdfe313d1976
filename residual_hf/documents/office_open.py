"""The text of Office Open XML: paragraphs of runs in Word documents, and in the slides and charts of PowerPoint."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import not_
from typing import Any, NamedTuple

from residual_hf.base.xml_reader import XML_SPACE, attribute, etree, local_name
from residual_hf.generation.html_text import DEEPEST
from residual_hf.generation.markup import Block, Inline, plain_text

PROPERTIES = ("pPr", "endParaRPr")
WRAPPERS = ("hyperlink", "ins", "moveTo", "smartTag", "customXml", "dir", "bdo", "sdt", "ruby")
"""Elements around runs, whose text belongs to the paragraph."""
CONTENTS = {"sdt": "sdtContent", "ruby": "rubyBase"}
"""Children with the runs of those that have others."""
FIELDS = ("fldSimple", "fld", "oMath")
"""Elements whose text is read with the sentence and stays."""
LABELS = [f"{{*}}{name}" for name in ("strCache", "strLit", "multiLvlStrCache", "strDim", "txData")]
"""Elements of charts with the names of categories and series."""
DROPPED = ("rPr", "proofErr", "lastRenderedPageBreak", "softHyphen")
BREAKS = ("tab", "br", "cr", "ptab")
TEXT, START, END, BREAK, EMPTY, CODE = "text", "<", ">", "break", "empty", "instrText"
FROM, UNTIL = "from", "until"
WITHOUT_LOOK = ("lang", "noProof", "webHidden", "altLang", "dirty", "err")
"""Properties of runs that do not change how their text looks: elements of Word, attributes of PowerPoint."""
OF_COMPLEX_SCRIPTS = ("bCs", "iCs", "szCs")
"""Properties for Arabic, Hebrew and others, without which `rtl` or `cs` no text has their look."""
HINT = "{*}hint"  # of `rFonts`: which font Word takes for characters that several have
SEEN_ON_SPACES = ("rStyle", "u", "strike", "dstrike", "highlight", "shd", "bdr", "hlinkClick")
"""Properties of runs that also change how spaces look, or what a click on them does."""


@dataclass
class Atom:
    """A part of a paragraph. As content of `Inline`, that at the start of the element with the text inside.

    Attributes:
        kind: TEXT, START or END of an element of `WRAPPERS`, FROM or UNTIL of a range such as a bookmark, BREAK, EMPTY
            for what has no text, or a part of a field: "begin", CODE, "separate", "end".
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


class Kept(NamedTuple):
    """Content of `Inline`: atoms before and after the text inside."""

    before: Sequence[Atom]
    after: Sequence[Atom] = ()


def paragraphs_of(tree: Any) -> "Iterator[Paragraph | Label]":
    """The paragraphs of a part that have runs, also those in text boxes, tables and charts, and labels of charts.

    Placeholders of masters, whose text no slide shows, are left out.
    """
    is_master = local_name(tree.getroot()).endswith(("Master", "sldLayout"))
    for element in tree.iter("{*}p"):
        if not any(local_name(child) in ("r", "fldSimple", *WRAPPERS) for child in element):
            continue
        shape = next(element.iterancestors("{*}sp"), None) if is_master else None
        if shape is None or shape.find("{*}nvSpPr/{*}nvPr/{*}ph") is None:
            yield Paragraph(element)
    for labels in tree.iter(*LABELS):
        yield from (Label(element) for element in labels.iter("{*}v", "{*}pt") if len(element) == 0)


class Label:
    """The name of a category or a series."""

    def __init__(self, element: Any):
        self.element, self.block = element, [element.text or ""]

    def write(self, block: Block) -> None:
        self.element.text = plain_text(block)


class Paragraph:
    """A paragraph as a block, whose elements are formats, links, and what is not text.

    Word splits text of one format into runs at will; they are joined. The format of most letters has no element, if it
    does not show on spaces, which are between elements. The text of fields is kept, except for that of links.
    Bookmarks and comments that begin or end in another paragraph, or cross an element, comprise the whole of this one.
    """

    def __init__(self, element: Any):
        self.element = element
        self._formats: dict[bytes, Any] = {}
        atoms = list(self._atoms(element))
        paired = {*chain(*_partners(atoms).items())}
        whole = [atom.kind in (FROM, UNTIL) and place not in paired for place, atom in enumerate(atoms)]
        self._first = [atom for atom in compress(atoms, whole) if atom.kind == FROM]
        self._last = [atom for atom in compress(atoms, whole) if atom.kind == UNTIL]
        atoms = list(compress(atoms, map(not_, whole)))
        letters: Counter[bytes] = Counter()
        for atom in atoms:
            letters[atom.look] += len(atom.element.text or "") if atom.kind == TEXT else 0
        unseen = Counter({look: number for look, number in letters.items() if not self._seen_on_spaces(look)})
        self._base = next((look for look, number in [*unseen.most_common(1), *letters.most_common(1)] if number), b"")
        self.block = self._read(atoms, _partners(atoms), 0, len(atoms))

    def _atoms(self, parent: Any) -> Iterator[Atom]:
        for child in parent:
            name = local_name(child)
            if name == "r":
                yield from self._run(child)
            elif name in WRAPPERS or name == "fldSimple" and attribute(child, "instr").strip().startswith("HYPERLINK"):
                yield from self._wrapper(Atom(START, child))
            elif name not in (*PROPERTIES, *DROPPED):
                kind = BREAK if name in BREAKS else FROM if name.endswith("Start") else EMPTY
                yield Atom(UNTIL if name.endswith("End") else kind, child)

    def _wrapper(self, start: Atom) -> Iterator[Atom]:
        yield start
        yield from self._atoms(_inside(start.element))
        yield Atom(END, start.element)

    def _run(self, run: Any) -> Iterator[Atom]:
        properties = run.find("{*}rPr")
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
                kind = attribute(child, "fldCharType", EMPTY)
            shell = etree.Element(run.tag, run.attrib, run.nsmap)
            if properties is not None:
                shell.append(copy.deepcopy(properties))
            if name == "ruby":
                yield from self._wrapper(Atom(START, child, shell))
            else:
                yield Atom(kind, child, shell, look)

    def _look(self, properties: Any) -> bytes:
        """A key for the format of a run."""
        key = b""
        if properties is not None:
            bare = copy.deepcopy(properties)
            is_complex = not {"rtl", "cs"}.isdisjoint(map(local_name, bare))
            etree.strip_attributes(bare, HINT, *WITHOUT_LOOK)
            for child in list(bare):
                name = local_name(child)
                is_seen = child.attrib if name == "rFonts" else is_complex or name not in OF_COMPLEX_SCRIPTS
                if name in WITHOUT_LOOK or not is_seen:
                    bare.remove(child)
            key = etree.tostring(bare, method="c14n") if len(bare) or bare.attrib else b""
        self._formats.setdefault(key, properties)
        return key

    def _seen_on_spaces(self, look: bytes) -> bool:
        properties = self._formats.get(look)
        found = () if properties is None else {*map(local_name, properties), *properties.attrib}
        return any(name in found for name in SEEN_ON_SPACES)

    def _read(self, atoms: Sequence[Atom], ends: Mapping[int, int], position: int, last: int) -> Block:
        """The block of the atoms from a position to another one; `ends` is what `_partners` has found."""
        block: Block = []
        while position < last:
            atom, end = atoms[position], ends.get(position)
            if end is not None and atom.kind == START:
                is_link = local_name(atom.element) in ("hyperlink", "fldSimple")
                block.append(Inline(atom, self._read(atoms, ends, position + 1, end), link=is_link))
            elif end is not None and atom.kind == FROM:
                block.append(Inline(Kept([atom], [atoms[end]]), self._read(atoms, ends, position + 1, end)))
            elif end is not None:
                block.append(self._field(atoms, ends, position, end))
            elif atom.kind == TEXT:
                self._add_text(block, (atom.element.text or "").replace("\n", " "), atom.look)
            else:
                is_field = local_name(atom.element) in FIELDS
                text = "".join(element.text or "" for element in atom.element.iter("{*}t")) if is_field else ""
                shown = text if atom.kind == EMPTY else "\n"
                block.append(Inline(Kept([atom]), [shown] if shown else [], keep=shown != ""))
            position = 1 + (position if end is None else end)
        return block

    def _add_text(self, block: Block, text: str, look: bytes) -> None:
        if look == self._base:
            block.append(text)
            return
        properties = self._formats[look]
        content, last = Format(properties), block[-1] if block else ""
        if isinstance(last, Inline) and last.content == content:
            last.pieces.append(text)
        else:
            align = None if properties is None else properties.find("{*}vertAlign")
            is_raised = align is not None and "superscript" in align.attrib.values()
            is_link = properties is not None and properties.find("{*}hlinkClick") is not None  # of PowerPoint
            block.append(Inline(content, [text], link=is_link, raised=is_raised))

    def _field(self, atoms: Sequence[Atom], ends: Mapping[int, int], first: int, last: int) -> Inline:
        kinds = [atom.kind for atom in atoms[first:last]]
        text = first + kinds.index("separate") + 1 if "separate" in kinds else last
        before = atoms[first:text]
        code = "".join(atom.element.text or "" for atom in before if atom.kind == CODE)
        if code.split()[:1] == ["HYPERLINK"] and text < last and not any(atom.kind == START for atom in before):
            return Inline(Kept(before, [atoms[last]]), self._read(atoms, ends, text, last), link=True)
        shown = "".join(atom.element.text or "" for atom in atoms[text:last] if atom.kind == TEXT)
        return Inline(Kept(list(_outermost(atoms[first : last + 1]))), [shown] if shown else [], keep=True)

    def write(self, block: Block) -> None:
        """Replace the runs by a translation."""
        element = self.element
        for control in chain(element.iterancestors("{*}sdt"), element.iter("{*}sdt")):
            for binding in control.findall("{*}sdtPr/{*}dataBinding"):  # to a property, which Word would show instead
                binding.getparent().remove(binding)
        element[:] = [child for child in element if local_name(child) in PROPERTIES]
        for atom in self._first:
            atom.append_to(element)
        self._write(block, element, self._formats.get(self._base))
        for atom in self._last:
            atom.append_to(element)
        element.extend(element.findall("{*}endParaRPr"))

    def _write(self, block: Block, parent: Any, properties: Any) -> None:
        for piece in block:
            if isinstance(piece, str):
                if text := piece.replace("\n", ""):  # which stood for a break
                    parent.append(self._text_run(text, properties))
                continue
            content = piece.content
            if isinstance(content, Format):
                self._write(piece.pieces, parent, content.properties)
            elif isinstance(content, Atom):
                content.append_to(parent)
                inside = _inside(content.element)
                del inside[:]
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


def _inside(wrapper: Any) -> Any:
    """The element with the runs of a wrapper."""
    found = wrapper.find(f"{{*}}{CONTENTS.get(local_name(wrapper))}")
    return wrapper if found is None else found


def _partners(atoms: Sequence[Atom]) -> dict[int, int]:
    """Ends of wrappers, fields and ranges, by their starts.

    None for fields and ranges that cross others or are within more than `DEEPEST`.
    """
    found: dict[int, int] = {}
    opened: list[int] = []
    for place, atom in enumerate(atoms):
        if atom.kind in (START, "begin", FROM):
            opened.append(place)
            continue
        crossed = {END: ("begin", FROM), "end": (FROM,)}.get(atom.kind, ())
        while opened and atoms[opened[-1]].kind in crossed:
            opened.pop()
        last = atoms[opened[-1]] if opened else None
        if last is None or (last.kind, atom.kind) not in ((START, END), ("begin", "end"), (FROM, UNTIL)):
            continue
        if last.kind == FROM and _range(last.element) != _range(atom.element):
            continue
        start = opened.pop()
        if last.kind == START or len(opened) < DEEPEST:
            found[start] = place
    return found


def _range(element: Any) -> tuple[str, str]:
    """The key that the start and the end of a range, such as a bookmark, share."""
    return local_name(element).removesuffix("Start").removesuffix("End"), attribute(element, "id")


def _outermost(atoms: Sequence[Atom]) -> Iterator[Atom]:
    """The atoms that are not in a wrapper, and the wrappers with all that is in them."""
    depth = 0
    for atom in atoms:
        if depth == 0:
            yield atom
        depth += (atom.kind == START) - (atom.kind == END)
