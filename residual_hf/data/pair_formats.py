# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Sentence pairs in the files of translators and offices: TMX, XLIFF, PO, CSV, TSV, Excel, parquet."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from residual_hf.base.archives import open_archive
from residual_hf.base.errors import InputError, requires

from .audio_folder import AUDIO_FILES
from .data_settings import CorpusSpec
from .language_names import code_named, names_of
from .pair_rows import HEADERS, Pair, read_record, record_pair
from .text_files import LineReader, open_binary, single_spaced, uncompressed_name

LANGUAGE = re.compile(r"[a-z]{2,3}([_-]\w+)*", re.IGNORECASE)
REGION = re.compile(r"(?<!^zh)[_-](?:[A-Za-z]{2}|\d{3})$", re.IGNORECASE)
"""The country of a code; that of Chinese says the script."""
IN_NAME = re.compile(r"(?:^|[._-])([a-z]{2,3})[-_]([a-z]{2,3})$")
LARGEST_PO = 64 * 2**20  # bytes; polib reads a file as a whole
OPEN_TEXT = re.compile(r'^[ \t]*(?:msg[\w\[\]]+[ \t]*)?"(?:[^"\\\r\n]|\\.)*$', re.MULTILINE)
PO_CHARSET = re.compile(rb"(Content-Type:.+? charset=)([\w:.-]+)")
LARGEST_WORKBOOK = 256 * 2**20  # bytes, unpacked; openpyxl reads the texts of all cells
UNTRANSLATED = ("new", "needs-translation", "initial")
"""States of XLIFF targets that are not translations."""
TMX_INLINE = ("hi",)
XLIFF_INLINE = ("g", "mrk", "pc")
"""Elements whose content is text; that of others is the code of another format."""
PARQUET_ROWS = 1000
QUOTED = re.compile('"[^"]*"?')
"""A text in a line of CSV, whose delimiters are text."""


def pairs_of_file(spec: CorpusSpec) -> Iterator[Pair]:
    """The pairs of `spec.file`, in order, from the source to the target language of `spec`.

    Untranslated and fuzzy units, and those without one of the languages, are left out.

    Raises:
        InputError: a file that cannot be read or is not of these languages, or a library is missing.
    """
    read = {".tmx": _tmx, ".xlf": _xliff, ".xliff": _xliff, ".po": _po, ".parquet": _parquet}
    for number, (source, target) in enumerate(read.get(spec.file_format, _table)(spec), start=1):
        if "\0" in source or "\0" in target:
            raise InputError(f"{spec.file}: pair {number} has a NUL character")
        is_name = source.lower().endswith(AUDIO_FILES)
        yield source if is_name else single_spaced(source), single_spaced(target)


def languages_in(path: Path) -> Sequence[str]:
    """Source and target language that a file of pairs names in itself or in its name; all that it names if more."""
    spec = CorpusSpec(file=path)
    in_records = spec.is_jsonl or spec.file_format == ".parquet"
    if in_records:
        found = _keys(spec)
    elif spec.file_format == ".tmx":
        found = list(dict.fromkeys(language for language, _ in next(_variants(path), ())))
    elif spec.file_format in (".xlf", ".xliff"):
        found = [language or "" for _, languages in islice(_units(path), 1) for language in languages]
    elif spec.file_format == ".po":
        found = []
    else:
        found = next(_rows(spec), [])
        named = [code_named(name) for name in found]
        found = [code or name for code, name in zip(named, found, strict=True) if code or len(found) == 2]
    other_names = set().union(*HEADERS)
    known = [name for name in found if LANGUAGE.fullmatch(name) and name.lower() not in other_names]
    if len(known) == len(found) == 2:  # keys are found only as they are
        return found if in_records else [*map(with_lower_language, found)]
    stem = uncompressed_name(path.name.lower())
    in_name = IN_NAME.search(stem.removesuffix(spec.file_format))
    return in_name.groups() if in_name else known if len(known) > 2 else ()


def with_lower_language(code: str) -> str:
    """`en-US` for `EN-US`."""
    return f"{code[:3].lower()}{code[3:]}"


def without_regions(languages: Sequence[str]) -> Sequence[str]:
    """`en` and `de` for `en-GB` and `de-DE`; but `en-GB` and `en-US` differ by their regions."""
    found = [REGION.sub("", code) for code in languages]
    return found if len({*found}) == len(found) else languages


@lru_cache
def same_language(one: str, other: str) -> bool:
    """Whether two codes name one language: `en` and `en-US`, but not `en-GB` and `en-US`."""
    one, other = (f"{code.replace('_', '-').lower()}-" for code in (one, other))
    return one.startswith(other) or other.startswith(one)


def _find(names: Sequence[str], wanted: str | None) -> int | None:
    """The position of a language among others, by code or name, preferably of its exact code."""
    if wanted is None:
        return None
    called = names_of(wanted)
    same = [i for i, name in enumerate(names) if same_language(name, wanted) or name.casefold() in called]
    return next((i for i in same if len(names[i]) == len(wanted)), same[0] if same else None)


def _is_forward(spec: CorpusSpec, source: str | None, target: str | None) -> bool:
    """Whether a file from `source` to `target`, if known, has the direction of `spec`, and not its reverse.

    Raises `InputError` for other languages.
    """
    wanted = [spec.source_lang, spec.target_lang]
    for languages in (wanted, wanted[::-1]):
        pairs = zip((source, target), languages, strict=True)
        if all(one is None or other is None or same_language(one, other) for one, other in pairs):
            return languages is wanted
    raise InputError(f"{spec.file}: is from {source} to {target}, must be of {wanted[0]} and {wanted[1]}")


def _tmx(spec: CorpusSpec) -> Iterator[Pair]:
    seen: set[str] = set()
    found = False
    for variants in _variants(spec.files[0]):
        names = [language for language, _ in variants]
        sides = [_find(names, language) for language in (spec.source_lang, spec.target_lang)]
        if sides[0] is not None and sides[1] is not None:
            found = True
            yield variants[sides[0]][1], variants[sides[1]][1]
        elif not found:
            seen.update(names)
    if not found and seen:
        wanted = f"{spec.source_lang} and {spec.target_lang}"
        raise InputError(f"{spec.file}: no unit has both {wanted}; the languages are {', '.join(sorted(seen))}")


def _variants(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Language and text of the variants of each unit of a TMX file."""
    with requires("documents"):
        from residual_hf.base.xml_reader import XML_LANG, text_of, xml_elements

    with open_binary(path) as file:
        for unit in xml_elements(file, str(path), ("tu",)):
            yield [
                (variant.get(XML_LANG) or variant.get("lang", ""), text_of(segment, TMX_INLINE, str(path)))
                for variant in unit.iterfind("{*}tuv")
                for segment in variant.iterfind("{*}seg")
            ]


def _xliff(spec: CorpusSpec) -> Iterator[Pair]:
    from residual_hf.base.xml_reader import text_of

    where = str(spec.file)
    for unit, languages in _units(spec.files[0]):
        forward = _is_forward(spec, *languages)
        source, target = unit.find("{*}source"), unit.find("{*}target")
        if source is None or target is None or unit.get("translate") == "no":
            continue
        if (target.get("state") or unit.get("state")) in UNTRANSLATED:
            continue
        pair = text_of(source, XLIFF_INLINE, where), text_of(target, XLIFF_INLINE, where)
        if pair[1].strip():
            yield pair if forward else pair[::-1]


def _units(path: Path) -> Iterator[tuple[Any, tuple[str | None, str | None]]]:
    """The elements of an XLIFF file that have a source and a target, with their languages."""
    with requires("documents"):
        from residual_hf.base.xml_reader import xml_elements

    with open_binary(path) as file:
        for unit in xml_elements(file, str(path), ("trans-unit", "segment")):
            of_file, root = next(unit.iterancestors("{*}file"), unit), unit.getroottree().getroot()
            source = of_file.get("source-language") or root.get("srcLang")
            yield unit, (source, of_file.get("target-language") or root.get("trgLang"))


def _po(spec: CorpusSpec) -> Iterator[Pair]:
    catalogue = read_po(spec.files[0])
    forward = _is_forward(spec, None, catalogue.metadata.get("Language") or None)
    for entry in catalogue.translated_entries():
        pairs = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural:  # the last form is that of large numbers
            forms = [entry.msgstr_plural[number] for number in sorted(entry.msgstr_plural)]
            pairs = [(entry.msgid, forms[0]), (entry.msgid_plural, forms[-1])][: len(forms)]
        yield from (pair if forward else pair[::-1] for pair in pairs)


def read_po(path: Path) -> Any:
    """A PO file as a `polib.POFile`. Raises `InputError` for one that cannot be read."""
    with requires("documents"):
        import polib

    if (size := path.stat().st_size) > LARGEST_PO:
        raise InputError(f"{path}: has {size:,} bytes, must have at most {LARGEST_PO:,}")
    try:
        catalogue = polib.pofile(str(path))
        if open_text := OPEN_TEXT.search(path.read_text(catalogue.encoding)):  # whose last letter polib takes off
            raise ValueError(f"a text without its end: {open_text[0][:80]}")
        return catalogue
    except (OSError, ValueError, LookupError) as error:  # its own errors, UTF-8, an unknown encoding
        content = path.read_bytes() if isinstance(error, UnicodeError) else b""
        named = PO_CHARSET.search(content)
        charset = f"; its charset is {named[2].decode()}" if named else ""
        charset = "; it looks like UTF-16, which gettext does not read" if b"\0" in content else charset
        raise InputError(f"{path}: cannot be read as a PO file: {error}{charset}") from error


def _table(spec: CorpusSpec) -> Iterator[Pair]:
    rows = _rows(spec)
    first = next(rows, None)
    if first is None:
        return
    source, target, has_header = _columns(first, spec)
    for number, row in enumerate(rows if has_header else chain([first], rows), 1 + has_header):
        if len(row) <= max(source, target) and any(row):
            raise InputError(
                f"{spec.file}: row {number} has {len(row)} columns, but columns {source + 1} and {target + 1} are to "
                "be read"
            )
        if spec.file_format == ".csv" and any(row[len(first) :]):
            raise InputError(
                f"{spec.file}: row {number} has {len(row)} columns, but the first row has {len(first)}; text with a "
                "delimiter must be in double quotes"
            )
        if any(row):
            yield row[source], row[target]


def _columns(first: list[str], spec: CorpusSpec) -> tuple[int, int, bool]:
    """The positions of both sides in the rows of a table, and whether its first row has names."""
    names, chosen = [name.strip() for name in first], (spec.source_column, spec.target_column)
    named = [_named(names, *side) for side in zip((spec.source_lang, spec.target_lang), HEADERS, strict=True)]
    if chosen == (None, None):
        if None not in named and named[0] != named[1]:
            return *named, True  # type: ignore[return-value]
        if len(names) == 2:
            return 0, 1, False
        if len(names) == 1:
            separator = "a tab" if spec.file_format == ".tsv" else "a comma, semicolon, tab or |"
            raise InputError(f"{spec.file}: its first row {first[0][:80]!r} has no second column after {separator}")
        raise InputError(
            f"{spec.file}: has {len(names)} columns, whose names are not those of the languages; set source_column "
            "and target_column to their numbers or names"
        )
    for column in chosen:
        if isinstance(column, str) and column not in names:
            raise InputError(f"{spec.file}: no column {column!r}; the first row has {', '.join(map(repr, names))}")
    source, target = (names.index(c) if isinstance(c, str) else int(c or 0) - 1 for c in chosen)
    has_header = {source, target} == set(named) or any(isinstance(column, str) for column in chosen)
    return source, target, has_header


def _named(names: Sequence[str], language: str | None, others: set[str]) -> int | None:
    """The position of the column of a language."""
    found = _find(names, language)
    return next((i for i, name in enumerate(names) if name.lower() in others), None) if found is None else found


def _rows(spec: CorpusSpec) -> Iterator[list[str]]:
    """The rows of a table, also that of its names."""
    (path,) = spec.files
    if spec.file_format == ".xlsx":
        yield from _excel(path)
        return
    following = iter(LineReader(path))
    start = list(islice(following, 2))
    if not start:
        return
    if len(start) == 1 and "\r" in start[0]:
        raise InputError(f"{path}: its lines end with carriage returns, must end with line feeds")
    lines = chain(start, following)
    if spec.file_format == ".tsv":
        yield from (line.split("\t") for line in lines)
        return
    delimiter = max(",;\t|", key=QUOTED.sub("", start[0]).count)
    try:
        yield from csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    except csv.Error as error:
        raise InputError(f"{path}: not CSV: {error}") from error


def _excel(path: Path) -> Iterator[list[str]]:
    """The rows of the first sheet of a workbook."""
    with requires("documents"):
        import openpyxl
    with open_archive(path, largest=LARGEST_WORKBOOK), path.open("rb") as file:
        try:
            sheet = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets[0]
            for row in sheet.iter_rows(values_only=True):
                yield ["" if value is None else str(value) for value in row]
        except (KeyError, IndexError, ValueError, TypeError, SyntaxError) as error:
            raise InputError(f"{path}: cannot be read as an Excel workbook: {error}") from error


def _parquet(spec: CorpusSpec) -> Iterator[Pair]:
    rows = _parquet_rows(spec.files[0])
    for number, row in enumerate(rows, start=1):
        yield record_pair(row, spec, f"{spec.file}: row {number}")


def _parquet_rows(path: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(PARQUET_ROWS):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a parquet file: {error}") from error


def _keys(spec: CorpusSpec) -> list[str]:
    """The languages among the keys of the first record of a file."""
    path = spec.files[0]
    rows = (
        (read_record(line, f"{path}: line 1") for line in LineReader(path)) if spec.is_jsonl else _parquet_rows(path)
    )
    record = next(iter(rows), None)
    record = record.get("translation", record) if isinstance(record, dict) else {}
    texts = record.items() if isinstance(record, dict) else ()
    return [key for key, value in texts if isinstance(value, str) and LANGUAGE.fullmatch(key)]
