"""Sentence pairs in the files of translators and offices: TMX, XLIFF, PO, CSV, TSV, Excel, parquet."""

import csv
import gettext
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputError, input_errors, requires

from .data_settings import AUDIO_FILES, XLIFF, CorpusSpec
from .language_names import code_named
from .pair_rows import HEADERS, SEPARATOR, Pair, check_unquoted, find_language, is_forward, read_record, record_pair
from .text_files import LONGEST_LINE, LineReader, single_spaced, uncompressed_name

LANGUAGE = re.compile(r"[a-z]{2,3}([_-][^\W_]+)*", re.IGNORECASE)
REGION = re.compile(r"(?<!^zh)[_-](?:[A-Za-z]{2}|\d{3})$", re.IGNORECASE)
"""The country of a code; that of Chinese says the script."""
IN_NAME = re.compile(r"(?:^|[._-])([a-z]{2,3})[-_]([a-z]{2,3})$")
LARGEST_PO = 64 * 2**20  # bytes; polib reads a file as a whole
OPEN_TEXT = re.compile(r'^[ \t]*(?:msg[\w\[\]]+[ \t]*)?"(?:[^"\\\r\n]|\\.)*$', re.MULTILINE)
PO_CHARSET = re.compile(rb"(Content-Type:[^\n]{1,100}? charset=)([\w:.-]+)")
LARGEST_WORKBOOK = 256 * 2**20  # bytes, unpacked; the texts of all cells are read
PARQUET_PAGES, PARQUET_RATIO = 64 * 2**20, 100
"""Bytes of a column in a row group, and times of its compressed size, that may be read into memory."""
QUOTED = re.compile('"[^"]*"?')
"""A text in a line of CSV, whose delimiters are text."""


def pairs_of_file(spec: CorpusSpec) -> Iterator[Pair]:
    """The pairs of `spec.file`, in order, from the source to the target language of `spec`.

    Untranslated and fuzzy units, and those without one of the languages, are left out.

    Raises `InputError` for a file that cannot be read or is not of these languages, or a library that is missing.
    """
    read = {".po": _po, ".parquet": _parquet, **dict.fromkeys((".tmx", *XLIFF), _units)}
    spaced = str if spec.file_format == ".parquet" else single_spaced  # like JSONL: a language model may read code
    for number, (source, target) in enumerate(read.get(spec.file_format, _table)(spec), start=1):
        if "\0" in source or "\0" in target:
            raise InputError(f"{spec.file}: pair {number} has a NUL character")
        is_name = source.lower().endswith(AUDIO_FILES)
        yield source if is_name else spaced(source), spaced(target)


def languages_in(path: Path) -> Sequence[str]:
    """Source and target language that a file of pairs names in itself or in its name; all that it names if more."""
    spec = CorpusSpec(file=path)
    in_records = spec.is_jsonl or spec.file_format == ".parquet"
    if in_records:
        found = _keys(spec)
    elif spec.file_format in (".tmx", *XLIFF):
        from .xml_pairs import languages_of_units

        found = languages_of_units(spec)
    elif spec.file_format == ".po":
        found = []
    else:
        found = next(filter(any, _rows(spec)), [])
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


def _units(spec: CorpusSpec) -> Iterator[Pair]:
    from .xml_pairs import pairs_of_units  # needs lxml

    yield from pairs_of_units(spec)


def _po(spec: CorpusSpec) -> Iterator[Pair]:
    catalogue = read_po(spec.files[0])
    forward = is_forward(spec, None, catalogue.metadata.get("Language") or None)
    for entry in catalogue.translated_entries():
        pairs = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural:  # whose translation is that of a hundred things
            forms = [entry.msgstr_plural[number] for number in sorted(entry.msgstr_plural)]
            one, many = forms_of_one_and_many(catalogue, len(forms))
            pairs = [(entry.msgid, forms[one]), (entry.msgid_plural, forms[many])][: len(forms)]
        yield from (pair if forward else pair[::-1] for pair in pairs)


def read_po(path: Path) -> Any:
    """A PO file as a `polib.POFile`. Raises `InputError` for one that cannot be read."""
    with requires("documents"):
        import polib

    try:
        if (size := path.stat().st_size) > LARGEST_PO:
            raise ValueError(f"has {size:,} bytes, must have at most {LARGEST_PO:,}")
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


def forms_of_one_and_many(catalogue: Any, forms: int) -> tuple[int, int]:
    """Which of the plural forms of a PO file are those of one thing and of a hundred things, by its rule."""
    rule = catalogue.metadata.get("Plural-Forms", "").partition("plural=")[2].partition(";")[0]
    with suppress(ValueError, ArithmeticError):  # for a missing or wrong rule
        of = gettext.c2py(rule)
        one, many = of(1), of(100)
        if max(one, many) < forms:
            return one, many
    return 0, forms - 1


def _table(spec: CorpusSpec) -> Iterator[Pair]:
    rows = (row for row in enumerate(_rows(spec), start=1) if any(row[1]))
    start, first = next(rows, (0, None))
    if first is None:
        return
    source, target, has_header = _columns(first, spec)
    for number, row in rows if has_header else chain([(start, first)], rows):
        fault = ""
        if len(row) <= max(source, target):
            fault = f"columns {source + 1} and {target + 1} are to be read"
        elif spec.file_format != ".xlsx" and any(row[len(first) :]):
            fault = f"the first row has {len(first)}"
            fault += "; text with a delimiter must be in double quotes" * (spec.file_format == ".csv")
        if fault:
            raise InputError(f"{spec.file}: row {number} has {len(row)} columns, but {fault}")
        yield row[source], row[target]


def _columns(first: list[str], spec: CorpusSpec) -> tuple[int, int, bool]:
    """The positions of both sides in the rows of a table, and whether its first row has names."""
    names, chosen = [name.strip() for name in first], (spec.source_column, spec.target_column)
    languages = [find_language(names, code) for code in (spec.source_lang, spec.target_lang)]
    others = [next((i for i, name in enumerate(names) if name.lower() in known), None) for known in HEADERS]
    if None in languages and None not in others:
        languages = others  # a column `id` beside `source` and `target` has no text
    named = [other if own is None else own for own, other in zip(languages, others, strict=True)]
    if chosen == (None, None):
        codes = [i for i in languages if i is not None and LANGUAGE.fullmatch(names[i])]
        is_unclear = len(names) > 2 and len(codes) == 1 and None not in languages  # `ID` beside `English`
        if None not in named and named[0] != named[1] and not is_unclear:
            return *named, True  # type: ignore[return-value]
        if len(names) == 2 and named == [None, None]:
            return 0, 1, False
        separator = "a tab" if spec.file_format == ".tsv" else "a comma, semicolon, tab or |"
        fault = f"its first row {first[0][:80]!r} has no second column after {separator}"
        if len(names) > 1:
            fault = f"has {len(names)} columns, whose names are not those of both languages; set source_column and "
            fault += "target_column to their numbers or names"
        raise InputError(f"{spec.file}: {fault}")
    for column in chosen:
        if isinstance(column, str) and column not in names:
            raise InputError(f"{spec.file}: no column {column!r}; the first row has {', '.join(map(repr, names))}")
    source, target = (names.index(c) if isinstance(c, str) else int(c or 0) - 1 for c in chosen)
    has_header = {source, target} == set(named) or any(isinstance(column, str) for column in chosen)
    return source, target, has_header


def _rows(spec: CorpusSpec) -> Iterator[list[str]]:
    """The rows of a table, also that of its names."""
    (path,) = spec.files
    if spec.file_format == ".xlsx":
        from .workbooks import rows_of

        yield from rows_of(path, LARGEST_WORKBOOK)
        return
    reader = LineReader(path)
    following = iter(reader)
    start = list(islice(following, 20))
    named = SEPARATOR.fullmatch(start[0]) if start and spec.file_format == ".csv" else None
    start = start[1:] if named else start
    if not start:
        return
    if len(start) == 1 and "\r" in start[0]:
        raise InputError(f"{path}: its lines end with carriage returns, must end with line feeds")
    lines = chain(start, following)
    if spec.file_format == ".tsv":
        check_unquoted(start, str(path), "give it a name that ends in .csv")
        yield from (line.split("\t") for line in lines)
        return
    first_row = next((line for line in start if any(map(str.isalnum, line))), "")
    marks = QUOTED.sub("", first_row)  # of which a comma is the likeliest in a text, and a tab in none
    likeliest = "\t" if "\t" in marks else max(",;|", key=lambda m: (marks.count(m), m != "," and m in marks))
    delimiter = named[1] if named else likeliest
    size = first = 0  # of the row, whose texts may have any number of lines, and the lines before it

    def lines_of_rows() -> Iterator[str]:
        nonlocal size
        for line in lines:
            size += len(line)
            if size > LONGEST_LINE:
                raise csv.Error(f"a row of more than {LONGEST_LINE:,} characters")
            yield f"{line}\n"

    rows = csv.reader(lines_of_rows(), delimiter=delimiter, strict=True)
    try:
        for row in rows:
            size, first = 0, rows.line_num
            yield row
    except csv.Error as error:
        line = first + 1 + (named is not None)
        raise InputError(f"{path}: the row that begins in line {line} is not CSV: {error}") from None


def _parquet(spec: CorpusSpec) -> Iterator[Pair]:
    for number, row in enumerate(_parquet_rows(spec.files[0]), start=1):
        yield record_pair(row, spec, f"{spec.file}: row {number}")


def _parquet_rows(path: Path) -> Iterator[Any]:
    """Rows of numbers and texts in columns and nested columns; lists and bytes are left out.

    Texts are read as dictionaries: one that is repeated a thousand times takes no more of the file than itself.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    with input_errors(f"{path}: cannot be read as a parquet file: ", pyarrow.ArrowException, OSError, ValueError):
        with ParquetFile(path) as file:
            flat = [column for column in file.schema if not column.max_repetition_level]
            texts = [column.path for column in flat if column.logical_type.type == "STRING"]
            columns = texts + [column.path for column in flat if not column.physical_type.endswith("BYTE_ARRAY")]
            _check_sizes(file, columns)
        with ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(1000, columns=columns):
                longest = max(map(_longest, batch.columns), default=0)
                if longest > LONGEST_LINE:
                    raise ValueError(f"a text of {longest:,} bytes, must have at most {LONGEST_LINE:,}")
                rows = 1 + LONGEST_LINE // (1 + longest)
                for start in range(0, len(batch), rows):
                    yield from batch.slice(start, rows).to_pylist()


def _check_sizes(file: Any, columns: Sequence[str]) -> None:
    """Raise `ValueError` for a column whose pages take much more memory than their size in the file."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for chunk in map(group.column, range(group.num_columns)):
            size = chunk.total_uncompressed_size
            if chunk.path_in_schema in columns and size > PARQUET_PAGES + PARQUET_RATIO * chunk.total_compressed_size:
                raise ValueError(
                    f"row group {number} of {chunk.path_in_schema} has {size:,} bytes, more than {PARQUET_RATIO} "
                    "times as many as it has compressed"
                )


def _longest(column: Any) -> int:
    """Bytes of the longest text of a column."""
    import pyarrow.compute as compute
    from pyarrow.types import is_dictionary, is_struct

    if is_struct(column.type):
        return max(map(_longest, column.flatten()), default=0)
    return compute.max(compute.binary_length(column.dictionary)).as_py() or 0 if is_dictionary(column.type) else 0


def _keys(spec: CorpusSpec) -> list[str]:
    """The languages among the keys of the first record of a file."""
    path = spec.files[0]
    lines = (read_record(line, f"{path}: line 1") for line in LineReader(path))
    record = next(lines if spec.is_jsonl else _parquet_rows(path), None)
    record = record.get("translation", record) if isinstance(record, dict) else {}
    texts = record.items() if isinstance(record, dict) else ()
    return [key for key, value in texts if isinstance(value, str) and LANGUAGE.fullmatch(key)]
