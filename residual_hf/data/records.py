# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""From records (lines of TSV or JSONL, rows of a `datasets` data set) to sentence pairs, one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residual_hf.errors import InputError

if TYPE_CHECKING:
    from residual_hf.data.settings import CorpusSpec

Pair = tuple[str, str]


def iter_pairs(spec: CorpusSpec, records: Iterable[Any], first: int = 1) -> Iterator[Pair]:
    """The pairs of the lines or rows of `spec`; `first` is the number of the first, for errors."""
    spec.check_keys()
    parse = _tsv_pair if spec.tsv is not None else _json_pair if spec.jsonl is not None else _sides
    place = f"{spec.files[0]}: line" if spec.files else f"{spec.title}: row"
    for number, record in enumerate(records, start=first):
        yield parse(record, spec, f"{place} {number}")


def load_rows(spec: CorpusSpec, *, streaming: bool = False) -> Any:
    """The data set of `spec`; with `streaming` it is neither downloaded nor converted as a whole before."""
    try:
        import datasets
    except ImportError as error:
        raise InputError(f"corpus.dataset: {spec.dataset} needs the library datasets: pip install datasets") from error
    place = str(spec.dataset)
    folder = Path(place).expanduser()
    try:
        if (folder / "state.json").is_file():
            return datasets.load_from_disk(str(folder))
        if (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(str(folder))[spec.split]
        place = str(folder) if folder.is_dir() else place
        return datasets.load_dataset(place, spec.dataset_config, split=spec.split, streaming=streaming)
    except KeyError as error:
        raise InputError(f"corpus.split: {place} has no split {error}") from error
    except (ValueError, OSError) as error:
        raise InputError(f"corpus.dataset: {spec.title} cannot be loaded: {error}") from error


def _tsv_pair(line: str, spec: CorpusSpec, where: str) -> Pair:
    first, second = (spec.source_column or 1) - 1, (spec.target_column or 2) - 1
    fields = line.split("\t")
    if spec.source_column is None and len(fields) != 2:
        raise InputError(
            f"{where} has {len(fields)} tab-separated fields, allowed are 2; "
            "of more, source_column and target_column choose"
        )
    if len(fields) <= max(first, second):
        raise InputError(
            f"{where} has {len(fields)} tab-separated fields; asked for were columns {first + 1} and {second + 1}"
        )
    return fields[first], fields[second]


def _json_pair(line: str, spec: CorpusSpec, where: str) -> Pair:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON: {error.msg} at character {error.pos + 1}") from error
    return _sides(record, spec, where)


def _sides(record: Any, spec: CorpusSpec, where: str) -> Pair:
    """The two texts of one JSON object or data set row."""
    keys = (spec.source_column, spec.target_column)
    if spec.source_column is None:
        record, keys = _member(record, "translation", where), (spec.source_lang, spec.target_lang)
        where = f"{where}, `translation`"
    texts = []
    for key in keys:
        text = _member(record, key, where)
        if not isinstance(text, str):
            raise InputError(f"{where}: `{key}` is {text!r}, allowed is a text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{where}: `{key}` holds half a surrogate pair, which no UTF-8 text can") from error
        texts.append(text)
    return texts[0], texts[1]


def _member(record: Any, key: str, where: str) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{where}: {record!r} is not an object with the key `{key}`")
    if key not in record:
        raise InputError(f"{where}: no key `{key}`; the keys found are {', '.join(map(repr, record)) or 'none'}")
    return record[key]
