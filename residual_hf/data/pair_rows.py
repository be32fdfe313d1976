"""Reads a sentence pair from a row (of TSV, JSONL, a table or a data set), and finds languages among names."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from residual_hf.base.errors import InputError, input_errors
from residual_hf.model.options import shortened

from .data_settings import CorpusSpec
from .language_names import names_of
from .text_files import one_line

Pair = tuple[str, str]
HEADERS = ({"source", "src"}, {"target", "tgt"})
"""Names of columns and keys besides the languages."""
SEPARATOR = re.compile("sep=(.)", re.IGNORECASE)
"""The first line in which Excel writes, and reads, the delimiter of a CSV file."""
QUOTED_CELL = re.compile('"[^"]*(?:""[^"]*)*"')


def check_unquoted(lines: Iterable[str], where: str, advice: str) -> None:
    """Raise `InputError`, with advice, for tab-separated lines that are quoted as in CSV: the quotes would be text.

    In the first 20 lines, quotes in a cell are doubled, or all cells are quoted, and not all of them whole sentences,
    and no other cell begins with a quote.
    """
    cells = [cell for line in islice(lines, 20) if "\t" in line for cell in line.split("\t") if cell]
    quoted = [cell for cell in cells if cell[0] == '"']
    doubled = [cell for cell in quoted if '""' in cell[1:-1]]
    is_table = quoted == cells and any(cell[-2] not in ".!?…。！？" for cell in quoted)
    if (doubled or is_table) and all(map(QUOTED_CELL.fullmatch, quoted)):
        raise InputError(f"{where}: {shortened((doubled or quoted)[0])} is quoted as in CSV; {advice}")


def tsv_pair(line: str, spec: CorpusSpec, where: str) -> Pair:
    first, second = int(spec.source_column or 1) - 1, int(spec.target_column or 2) - 1
    fields = line.split("\t")
    if len(fields) <= max(first, second) or (spec.source_column is None and len(fields) != 2):
        wanted = f"columns {first + 1} and {second + 1}"
        wanted = wanted if spec.source_column else "2; to choose 2 of more, set source_column and target_column"
        raise InputError(f"{where} has {len(fields)} tab-separated fields, must have {wanted}")
    return fields[first], fields[second]


def names_columns(pair: Pair, spec: CorpusSpec) -> bool:
    """Whether a row has the names of both languages, or of source and target, instead of a sentence pair."""
    found = {find_language(pair, language) for language in (spec.source_lang, spec.target_lang)}
    return found == {0, 1} or all({cell.casefold() for cell in pair} & names for names in HEADERS)


def json_pair(line: str, spec: CorpusSpec, where: str) -> Pair:
    return record_pair(read_record(line, where), spec, where) if line.strip() else ("", "")


def read_record(line: str, where: str) -> Any:
    with input_errors(f"{where} is not JSON: ", ValueError, RecursionError):  # or nested too deeply
        return json.loads(line)


def record_pair(record: Any, spec: CorpusSpec, where: str) -> Pair:
    """The texts of a JSON object or a row of a data set."""
    if spec.text_column is not None:
        line = one_line(_text(record, spec.text_column, spec, where))
        return line, line
    keys: tuple[object, object] = (spec.source_column, spec.target_column)
    if spec.source_column is None:
        keys = (spec.source_lang, spec.target_lang)
        given = record.keys() if isinstance(record, dict) else set()
        if not {*keys} <= given:  # one of them may be no language: `id`
            others = [sorted(names & given) for names in HEADERS]
            if all(len(found) == 1 for found in others):
                keys = others[0][0], others[1][0]
            elif "translation" in given or not given & {*keys}:
                record, where = _value(record, "translation", where), f"{where}, `translation`"
    return _text(record, keys[0], spec, where), _text(record, keys[1], spec, where)


def _text(record: Any, key: object, spec: CorpusSpec, where: str) -> str:
    text = _value(record, key, where)
    if text is None and spec.skip_empty:
        return ""
    if not isinstance(text, str):
        raise InputError(f"{where}: `{key}` is {shortened(repr(text))}, must be a string")
    with input_errors(f"{where}: `{key}` has an unpaired surrogate: ", UnicodeEncodeError):
        text.encode()
    if "\0" in text:
        raise InputError(f"{where}: `{key}` has a NUL character")
    return text


def _value(record: Any, key: object, where: str) -> Any:
    if not isinstance(record, dict) or key not in record:
        keys = ", ".join(map(repr, record)) or "none" if isinstance(record, dict) else ""
        found = f"; the keys are {shortened(keys)}" if keys else f" in {shortened(repr(record))}"
        raise InputError(f"{where}: no key `{key}`{found}")
    return record[key]


@lru_cache
def same_language(one: str, other: str) -> bool:
    """Whether two codes name one language: `en` and `en-US`, but not `en-GB` and `en-US`."""
    one, other = (f"{code.replace('_', '-').lower()}-" for code in (one, other))
    return one.startswith(other) or other.startswith(one)


def find_language(names: Sequence[str], wanted: str | None) -> int | None:
    """The position of a language among others: of its name, as a column `No` or `ID` may have numbers, or its code."""
    if wanted is None:
        return None
    called = names_of(wanted)
    named = [i for i, name in enumerate(names) if name.casefold() in called]
    coded = [i for i, name in enumerate(names) if same_language(name, wanted)]
    exact = [i for i in coded if len(names[i]) == len(wanted)]
    return next(iter([*named, *exact, *coded]), None)


def is_forward(spec: CorpusSpec, source: str | None, target: str | None) -> bool:
    """Whether a file from `source` to `target`, if known, has the direction of `spec`, and not its reverse.

    Raises `InputError` for other languages.
    """
    wanted = [spec.source_lang, spec.target_lang]
    for languages in (wanted, wanted[::-1]):
        pairs = zip((source, target), languages, strict=True)
        if all(one is None or other is None or same_language(one, other) for one, other in pairs):
            return languages is wanted
    raise InputError(f"{spec.file}: is from {source} to {target}, must be of {wanted[0]} and {wanted[1]}")
