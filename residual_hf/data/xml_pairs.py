"""Sentence pairs in TMX and XLIFF files."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from residual_hf.base.errors import InputError
from residual_hf.base.xml_reader import XML_LANG, local_name, xml_elements
from residual_hf.model.placeholders import PLACEHOLDER

from .data_settings import CorpusSpec
from .pair_rows import Pair, find_language, is_forward
from .text_files import is_blank, open_binary

UNTRANSLATED = ("new", "needs-translation", "initial")
"""States of XLIFF targets that are not translations."""
PAIRED_CODES = ("bpt", "ept", "it", "bx", "ex", "sc", "ec", "cp")
CODES = ("ph", "x", "ut")
"""Elements for the code of another format, such as tags and placeholders; the content of others is text."""
TAG = "{http://sdl.com/FileTypes/SdlXliff/1.0}tag"
"""The element that defines a code of Trados, before the units."""
SHOWN = ("equiv-text", "equiv", "disp")
BREAK_TYPE = re.compile(r"(?:x-(?:html-)?|xlf:)?(?:lb|br|pb)")
"""Types of codes for breaks of lines and pages."""
BREAK = re.compile(r"\s*<br\b[^<>]*>\s*|(?:\\r)?\\n|\r?\n", re.IGNORECASE)
VARIABLE = re.compile(rf"(?!{{\\)(?:{PLACEHOLDER.pattern}|[$%#@\[{{]\w+[\]}}%#]?)")


def pairs_of_units(spec: CorpusSpec) -> Iterator[Pair]:
    yield from (_tmx if spec.file_format == ".tmx" else _xliff)(spec)


def languages_of_units(spec: CorpusSpec) -> list[str]:
    """The languages of the first unit."""
    if spec.file_format == ".tmx":
        return list(dict.fromkeys(language for language, _ in next(_variants(spec), ())))
    return [language or "" for _, languages in islice(_units(spec), 1) for language in languages]


def _tmx(spec: CorpusSpec) -> Iterator[Pair]:
    seen: set[str] = set()
    found = False
    for variants in _variants(spec):
        names = [language for language, _ in variants]
        sides = [find_language(names, language) for language in (spec.source_lang, spec.target_lang)]
        if sides[0] is not None and sides[1] is not None:
            found = True
            yield variants[sides[0]][1], variants[sides[1]][1]
        elif not found:
            seen.update(names)
    if not found and seen:
        wanted = f"{spec.source_lang} and {spec.target_lang}"
        raise InputError(f"{spec.file}: no unit has both {wanted}; the languages are {', '.join(sorted(seen))}")


def _variants(spec: CorpusSpec) -> Iterator[list[tuple[str, str]]]:
    """Language and text of the variants of each unit of a TMX file."""
    with open_binary(spec.files[0]) as file:
        for unit in xml_elements(file, str(spec.file), ("tu",)):
            yield [
                (variant.get(XML_LANG) or variant.get("lang", ""), segment_text(segment))
                for variant in unit.iterfind("{*}tuv")
                for segment in variant.iterfind("{*}seg")
            ]


def _xliff(spec: CorpusSpec) -> Iterator[Pair]:
    for unit, languages in _units(spec):
        forward = is_forward(spec, *languages)
        for part in unit.iter("{*}segment") if local_name(unit) == "unit" else [unit]:
            target = part.find("{*}target")
            if part.find("{*}source") is None or target is None:
                continue
            is_kept = "no" in (unit.get("translate"), part.get("translate"))
            if is_kept or (target.get("state") or part.get("state")) in UNTRANSLATED:
                continue
            for source, own in segments_of(part):
                pair = segment_text(source), "" if own is None else segment_text(own)
                if not is_blank(pair[1]):
                    yield pair if forward else pair[::-1]


def _units(spec: CorpusSpec) -> Iterator[tuple[Any, tuple[str | None, str | None]]]:
    """The units of an XLIFF file, with their languages.

    Codes get the placeholders that definitions of Trados give them, by their ids, as `equiv-text`.
    """
    defined: dict[str | None, str] = {}
    with open_binary(spec.files[0]) as file:
        for unit in xml_elements(file, str(spec.file), ("trans-unit", "unit", TAG)):
            if unit.tag == TAG:
                content = "".join(unit.itertext("{*}ph"))
                defined.pop(unit.get("id"), None)
                if VARIABLE.fullmatch(content.strip()):
                    defined[unit.get("id")] = content
                continue
            for code in unit.iter("{*}x") if defined else ():
                if (content := defined.get(code.get("id"), "")) and "equiv-text" not in code.attrib:
                    code.set("equiv-text", content)
            of_file, root = next(unit.iterancestors("{*}file"), unit), unit.getroottree().getroot()
            source = of_file.get("source-language") or root.get("srcLang")
            yield unit, (source, of_file.get("target-language") or root.get("trgLang"))


def segments_of(unit: Any) -> list[tuple[Any, Any]]:
    """The sources of a unit or segment of XLIFF and what has their translations, if it is there.

    A unit of version 1.2 may be marked as several segments.
    """
    target, segmented = unit.find("{*}target"), unit.find("{*}seg-source")
    marks = [] if segmented is None else segmented.findall('.//{*}mrk[@mtype="seg"]')
    if not marks:
        return [(unit.find("{*}source"), target)]
    filled = [] if target is None else target.findall('.//{*}mrk[@mtype="seg"]')
    if not filled and target is not None and segment_text(target, variables=False).strip():
        return [(unit.find("{*}source"), target)]
    by_number = {mark.get("mid"): mark for mark in filled}
    return [(mark, by_number.get(mark.get("mid"))) for mark in marks]


def segment_text(element: Any, *, variables: bool = True) -> str:
    """The text of a segment, in which line breaks are spaces; of codes only the `variables` that they stand for."""
    text = element.text or ""
    for child in element:
        name = local_name(child)
        if is_break(child):
            text += " "
        elif name in CODES:
            text += variable_of(child) if variables else ""
        elif name and name not in PAIRED_CODES:
            text += segment_text(child, variables=variables)
        text += child.tail or ""
    return text


def variable_of(code: Any) -> str:
    """The placeholder that a code stands for."""
    return next((text for text in _shown(code) if VARIABLE.fullmatch(text.strip())), "")


def is_break(element: Any) -> bool:
    """Whether an element inside text is a code that stands for a line break."""
    if local_name(element) not in (*CODES, *PAIRED_CODES):
        return local_name(element) == "br"
    types = (element.get(name, "") for name in ("ctype", "type", "subType"))
    return any(map(BREAK_TYPE.fullmatch, types)) or any(map(BREAK.fullmatch, _shown(element)))


def _shown(code: Any) -> Iterator[str]:
    """The texts that may tell what a code stands for."""
    unit = next(code.iterancestors("{*}unit"), None)
    data = () if unit is None else unit.iterfind("{*}originalData/{*}data")
    shown = [*map(code.get, SHOWN), "".join(code.itertext())]
    shown += [each.text for each in data if each.get("id") == code.get("dataRef")]
    return filter(None, shown)
