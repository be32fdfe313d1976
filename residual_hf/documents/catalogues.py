"""PO and XLIFF: what has no translation yet is translated, everything else stays as it is, byte for byte."""

import logging
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from residual_hf.base.errors import InputError, requires
from residual_hf.base.xml_reader import XML_SPACE, XMLText, etree, read_xml, serialized
from residual_hf.data.language_names import bcp47
from residual_hf.data.pair_formats import PO_CHARSET, forms_of_one_and_many, read_po
from residual_hf.data.xml_pairs import SHOWN, UNTRANSLATED, is_break, segment_text, segments_of, variable_of
from residual_hf.generation.generation_settings import FILL
from residual_hf.generation.markup import Block, Inline
from residual_hf.model.placeholders import Edit, EditedText
from residual_hf.model.translation_inputs import has_letters

from .document import DocumentFile, has_text, read_bytes
from .literal_text import END, START, Mark, in_order, marked, marked_block, read_marks, write_marks
from .mixed_content import Dialect, Span, read_mixed, write_mixed

with requires("documents"):
    from translate.lang.data import languages as with_plurals

logger = logging.getLogger(__name__)

BY_MACHINE = "residual_hf:mt"
"""The sub-state of XLIFF 2 that says what `needs-review-translation` says in version 1."""
LINE = r'"(?:[^"\\\r\n]|\\.)*"[ \t]*'
LINES = rf"{LINE}(?:\r?\n[ \t]*{LINE})*"
FIELD = re.compile(rf"^(?:(#,)|#(~)|(?:msgctxt|msgid)\b|(msgstr(?:\[\d+\])?[ \t]*)({LINES})(?=\r?$))", re.MULTILINE)
"""Flags, an obsolete line, the start of a message, or its translation."""
HEADER = re.compile(r'^msgid[ \t]*""[ \t]*\r?\n\Z', re.MULTILINE)
"""Start of the message of a header: an empty name in one line."""
WITHOUT_NUMBERS = ("python-format", "lua-format", "go-format", "object-pascal-format")
"""Flags of messages in which `%1$s` is no placeholder."""
UNNAMED_CHARSET = re.compile(rb"(Content-Type:[^\n]{1,100}? charset=)CHARSET\b")
"""As xgettext writes it, and msgfmt does not read it."""
UNNAMED_LANGUAGE = re.compile(r'(?<=["n]Language:) ?(?=\\n)')
UNNAMED_PLURALS = "nplurals=INTEGER; plural=EXPRESSION;"
ESCAPES = str.maketrans(
    {character: f"\\{name}" for name, character in zip('\\"ntrvfb', '\\"\n\t\r\v\f\b', strict=True)}
)
LOCKED = ("true", "locked")
"""Values of the attribute `locked` of Trados, Phrase and memoQ."""
OF_PHRASE = re.compile(r"(\{[\w^]+>|<[\w^]+\})")
"""Around text in files of Phrase: `{1>` and `<1}`, `{b>` and `<b}`."""
XLIFF_TEXT = Dialect(
    ("g", "mrk", "pc"),
    shown=SHOWN,
    spans={"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"},  # of version 1.2, then of 2
)


class CatalogueOptions(NamedTuple):
    """Which messages are translated, a choice of `FILL`, and whether messages of PO become fuzzy."""

    fill: str = FILL[0]
    mark_fuzzy: bool = False

    def wants(self, is_empty: bool, is_unreviewed: bool) -> bool:
        return is_empty or self.fill == "all" or (is_unreviewed and self.fill == "unreviewed")


DEFAULTS = CatalogueOptions()


class POFile(DocumentFile):
    """A message catalogue of gettext. Of plural forms, that of one thing is translated from the singular.

    polib reads it, but what changes is written into its text, because translate-toolkit wraps lines anew.
    """

    def __init__(self, path: Path, options: CatalogueOptions):
        self._path = path
        catalogue = read_po(path)
        self._encoding = catalogue.encoding
        self._text = read_bytes(path).decode(self._encoding)
        self._header = catalogue.metadata
        self._forms = {len(entry.msgstr_plural) for entry in catalogue if entry.msgid_plural and not entry.obsolete}
        # source, whether it is wanted, whether it becomes fuzzy, number of a message that cannot have numbers
        found: list[tuple[str, bool, bool, int | None]] = []
        for message, entry in enumerate(catalogue):
            if entry.obsolete:
                continue
            forms = sorted(entry.msgstr_plural.items()) if entry.msgid_plural else [(0, entry.msgstr)]
            one = forms_of_one_and_many(catalogue, len(forms))[0] if entry.msgid_plural else 0
            several = entry.msgid_plural and len(forms) == 1
            without_numbers = message if any(flag in WITHOUT_NUMBERS for flag in entry.flags) else None
            for number, text in forms:
                source = entry.msgid_plural if number != one or several else entry.msgid
                wanted = options.wants(not text, entry.fuzzy)
                found.append((source, wanted, options.mark_fuzzy and not entry.fuzzy, without_numbers))
        places = list(self._translations())
        if len(found) != len(places):
            raise InputError(f"{path}: {len(found)} messages, but {len(places)} translations of such")
        self._places = [
            (place, flags if fuzzy else None, without_numbers)
            for (_, wanted, fuzzy, without_numbers), (place, flags) in zip(found, places, strict=True)
            if wanted
        ]
        self.blocks = [read_marks(marked(source)) for source, wanted, *_ in found if wanted]

    def _translations(self) -> Iterator[tuple[re.Match[str], re.Match[str]]]:
        """The translations but that of the header, and for each its flags, or the start of its message."""
        flags, is_new = None, True
        for found in FIELD.finditer(self._text):
            if found[2] is None and found[3] is None:
                flags = found if is_new else flags
                is_new = False
                continue
            is_new = True
            if found[2]:
                continue
            header = HEADER.search(self._text, max(0, found.start() - 50), found.start())
            if header is None and flags is not None:
                yield found, flags

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        line_end = "\r\n" if "\r\n" in self._text else "\n"
        edits, marked_at = [], -1
        ordered = list(map(in_order, self.blocks, blocks))
        moved = (block is not found for block, found in zip(ordered, blocks, strict=True))
        left = {message for (*_, message), has in zip(self._places, moved, strict=True) if has} - {None}
        for (place, flags, message), block in zip(self._places, ordered, strict=True):
            if message in left:  # with all its plural forms
                continue
            if flags is not None and flags.start() > marked_at:
                marked_at = flags.start()
                where, flag = (flags.end(), " fuzzy,") if flags[1] else (flags.start(), f"#, fuzzy{line_end}")
                edits.append(Edit(where, where, flag))
            edits.append(Edit(*place.span(), f'{place[3]}"{write_marks(block).translate(ESCAPES)}"'))
        if left:
            why = "whose placeholders would move and have no numbers"
            logger.warning("%s: %d messages stay, %s", self._path, len(left), why)
        written = self._with_language(EditedText(self._text, edits).text)
        try:
            path.write_bytes(UNNAMED_CHARSET.sub(rb"\1UTF-8", written.encode(self._encoding), count=1))
        except UnicodeEncodeError:  # the other language has other letters
            path.write_bytes(PO_CHARSET.sub(rb"\1UTF-8", written.encode(), count=1))

    def _with_language(self, text: str) -> str:
        """A catalogue with the target language and its plural forms in the places that xgettext leaves for them."""
        code = bcp47(self.target_lang or "").replace("-", "_")
        if code and self._header.get("Language") == "":
            text = UNNAMED_LANGUAGE.sub(f" {code}", text, count=1)
        if self._header.get("Plural-Forms") == UNNAMED_PLURALS:
            names = [code, code.partition("_")[0], f"{code.partition('_')[0]}_CN", "nb" if code == "no" else ""]
            _, count, rule = next((with_plurals[name] for name in names if name in with_plurals), ("", 0, ""))
            if count and self._forms <= {count}:
                return text.replace(UNNAMED_PLURALS, f"nplurals={count}; plural={rule};", 1)
            why = f"the plural forms of {code or 'the target language'} are unknown"
            if count:
                why = f"{code} has {count} plural forms, the messages have {', '.join(map(str, sorted(self._forms)))}"
            logger.warning("%s: Plural-Forms stays a template, which gettext refuses: %s", self._path, why)
        return text


class XLIFFFile(DocumentFile):
    """An XLIFF file, of version 1.2 or 2.x. Elements in the source come into the target.

    Each segment is a block. A target that is a copy of the source, with a state that says so, is translated too.
    translate-toolkit knows neither segments nor which text elements such as `<g>` surround.
    """

    def __init__(self, path: Path, options: CatalogueOptions):
        self._options = options
        content = read_bytes(path)
        self._tree = read_xml(content, str(path))
        self._text = XMLText(content, self._tree, str(path))
        self._units: list[tuple[Any, list[tuple[Any, Any]]]] = []
        split = [_split_of_phrase] * (path.suffix.lower() == ".mxliff")
        self.blocks: list[Block] = []
        left = 0
        for unit in self._tree.iter("{*}trans-unit", "{*}segment"):
            stays = _inherited(unit, "translate") == "no" or _is_locked(unit)
            if stays or unit.find("{*}source") is None:
                continue
            chosen = []
            for source, own in self._wanted(unit):
                block = read_mixed(source, XLIFF_TEXT, keeps_space=_inherited(source, XML_SPACE) == "preserve")
                block = marked_block(_with_variables(block), *split)
                left += sum(has_letters("".join(sub.itertext())) for sub in source.iter("{*}sub"))
                if has_text(block):
                    chosen.append((source, own))
                    self.blocks.append(block)
            if chosen:
                self._units.append((unit, chosen))
        if left:
            logger.warning("%s: %d texts in codes (<sub>) stay", path, left)

    def _wanted(self, unit: Any) -> Iterator[tuple[Any, Any]]:
        """The segments of a unit to translate, see `segments_of`."""
        target = unit.find("{*}target")
        state = "" if target is None else target.get("state") or unit.get("state") or ""
        is_empty = target is None or not segment_text(target, variables=False).strip()
        locked = [each.get("id") for each in unit.iterfind("{*}seg-defs/{*}seg") if _is_locked(each)]  # of Trados
        for source, own in segments_of(unit):
            if (own is None and not is_empty) or source.get("mid") in locked:
                continue
            text = "" if own is None else segment_text(own).strip()
            is_copy = state in UNTRANSLATED and text == segment_text(source).strip()
            by_machine = unit.get("subState") == BY_MACHINE and state == "translated"
            named = state in UNTRANSLATED or state.startswith("needs-")
            unreviewed = by_machine or named or unit.get("approved") == "no"
            has_words = own is not None and segment_text(own, variables=False).strip() != ""
            if self._options.wants(not has_words or is_copy, unreviewed):
                yield source, own

    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        root, target_lang = self._tree.getroot(), bcp47(self.target_lang or "")
        for name, own in (("srcLang", "trgLang"), ("source-language", "target-language")):
            for each in (root, *root.iter("{*}file")) if target_lang and self._units else ():
                if each.get(name) and not each.get(own):  # without it, targets are not allowed in XLIFF 2
                    self._text.add_attribute(each, own, target_lang)
        following = map(in_order, self.blocks, blocks)
        for unit, segments in self._units:
            target = unit.find("{*}target")
            if target is None:
                before = next(unit.iterchildren("{*}seg-source", "{*}source", reversed=True))
                target = etree.Element(unit.find("{*}source").tag.removesuffix("source") + "target")
                target.tail = before.tail
                before.addnext(target)
            keeps_space = _inherited(segments[0][0], XML_SPACE) == "preserve"
            if keeps_space and _inherited(target, XML_SPACE) != "preserve":
                target.set(XML_SPACE, "preserve")
            if any(own is None for _, own in segments):
                segmented = unit.find("{*}seg-source")
                target[:] = () if segmented is None else map(deepcopy, segmented)
                target.text = "" if segmented is None else segmented.text
            places = {id(source): own for source, own in segments_of(unit)}
            for source, _ in segments:
                write_mixed(places[id(source)], next(following), XLIFF_TEXT, copied=True, keeps_space=keeps_space)
            if unit.tag.endswith("segment"):
                unit.set("state", "translated")
                unit.set("subState", BY_MACHINE)
            else:
                target.set("state", "needs-review-translation")
                target.set("state-qualifier", "mt-suggestion")
            self._text.replace(unit, serialized(unit))
        path.write_bytes(self._text.written())


def _split_of_phrase(text: str) -> Iterator[str | Mark]:
    for number, part in enumerate(OF_PHRASE.split(text)):
        yield Mark(part, START if part[0] == "{" else END, part.strip("{<>}")) if number % 2 else part


def _is_locked(element: Any) -> bool:
    """Whether a tool of translators protects a text."""
    return any(key.rpartition("}")[2] == "locked" and value in LOCKED for key, value in element.attrib.items())


def _with_variables(block: Block) -> Block:
    """A block whose placeholders are read with the sentence, and whose codes for line breaks end a line."""
    found: Block = []
    for piece in block:
        if isinstance(piece, Inline) and not isinstance(piece.content, Span) and is_break(piece.content):
            piece = Inline(piece.content, ["\n"], keep=True)
        elif isinstance(piece, Inline) and not piece.keep:
            text = "" if piece.pieces or isinstance(piece.content, Span) else variable_of(piece.content)
            piece = Inline(piece.content, [text] if text else _with_variables(piece.pieces), keep=text != "")
        found.append(piece)
    return found


def _inherited(element: Any, name: str) -> str:
    """The value of an attribute of an element, or of the innermost one around it."""
    values = (each.get(name) for each in (element, *element.iterancestors()))
    return next(filter(None, values), "")
