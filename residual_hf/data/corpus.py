# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Parallel corpora in: two text files, TSV, JSONL or a `datasets` data set become one sequence of sentence pairs.

Text is taken as it is: strict UTF-8, only "\\n" ends a line ("\\r\\n" and a byte order mark are tolerated), nothing is
stripped or normalised.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from residual_hf.data.records import iter_pairs, load_rows
from residual_hf.data.text_files import file_hash, iter_lines
from residual_hf.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CorpusSpec:
    """Where a parallel corpus lies; checked when it is made (`InputError` names the field). Give exactly one of:

    - `source` and `target`: two text files of one sentence per line, plain or gzip;
    - `tsv`: one tab-separated file, plain or gzip. Its two columns are source and target; of more than two,
      `source_column` and `target_column` (counted from 1) choose;
    - `jsonl`: one JSON object per line, plain or gzip: `{"translation": {"en": ..., "de": ...}}`, read with
      `source_lang` and `target_lang`, or flat objects, read with the keys `source_column` and `target_column`;
    - `dataset`: a name on the Hub or a local folder for the `datasets` library, with `dataset_config` and `split`;
      its columns are found as in `jsonl`.

    `skip_empty` drops pairs with an empty (or white) side, an error otherwise; `limit` keeps the first pairs. `weight`
    is the share of this corpus among several to train on; `raw_target` names a text file with the targets as they were
    before they were tokenised, one for each, to score against.
    """

    source: str | Path | None = None
    target: str | Path | None = None
    tsv: str | Path | None = None
    jsonl: str | Path | None = None
    dataset: str | Path | None = None
    dataset_config: str | None = None
    split: str = "train"
    source_lang: str | None = None
    target_lang: str | None = None
    source_column: str | int | None = None
    target_column: str | int | None = None
    skip_empty: bool = False
    limit: int | None = None
    name: str | None = None
    weight: float | None = None
    raw_target: str | Path | None = None

    def __post_init__(self) -> None:
        given = [key for key in ("source", "target", "tsv", "jsonl", "dataset") if getattr(self, key) is not None]
        if given not in (["source", "target"], ["tsv"], ["jsonl"], ["dataset"]):
            raise InputError(
                f"corpus: {' and '.join(given) or 'nothing'} given; allowed is one of: source and target; tsv; "
                "jsonl; dataset"
            )
        for key in given:
            if not isinstance(getattr(self, key), (str, Path)) or not str(getattr(self, key)):
                raise InputError(f"corpus.{key}: {getattr(self, key)!r}; allowed is a path")
        for key in ("split", "dataset_config", "source_lang", "target_lang", "name"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise InputError(f"corpus.{key}: {value!r}; allowed is a text")
        if self.split is None:
            raise InputError("corpus.split: null; allowed is the name of a split, such as train")
        if self.dataset_config is not None and self.dataset is None:
            raise InputError(f"corpus.dataset_config: {self.dataset_config!r} given, which only a dataset has")
        if not isinstance(self.skip_empty, bool):
            raise InputError(f"corpus.skip_empty: {self.skip_empty!r}; allowed are true and false")
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise InputError(f"corpus.limit: {self.limit!r}; allowed is a whole number from 1 on")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise InputError(f"corpus.weight: {self.weight!r}; allowed is a number above 0")
        if self.raw_target is not None and self.skip_empty:
            raise InputError(f"corpus.raw_target: {self.raw_target} given beside skip_empty, which breaks its order")
        self._check_columns()

    def _check_columns(self) -> None:
        columns = {"source_column": self.source_column, "target_column": self.target_column}
        given = [key for key, value in columns.items() if value is not None]
        if len(given) == 1:
            raise InputError(f"corpus.{given[0]}: {columns[given[0]]!r} given alone; give both columns or none")
        if given and self.source is not None:
            raise InputError(f"corpus.source_column: {self.source_column!r} given, but two text files have no columns")
        if given and self.source_column == self.target_column:
            raise InputError(f"corpus.target_column: {self.target_column!r} is the source column too")
        for key in given:
            value = columns[key]
            if self.tsv is not None and (type(value) is not int or value < 1):
                raise InputError(f"corpus.{key}: {value!r}; allowed is the number of a TSV column, from 1 on")
            if self.tsv is None and (not isinstance(value, str) or not value):
                raise InputError(f"corpus.{key}: {value!r}; allowed is the name of a key or column")
        by_language = not given and (self.jsonl is not None or self.dataset is not None)
        if by_language and self.source_lang is not None and self.source_lang == self.target_lang:
            raise InputError(f"corpus.target_lang: {self.target_lang!r} is the source language too")

    def check_keys(self) -> None:
        """Raise `InputError` unless the sides of a record can be told from each other."""
        if self.source_column is None and self.tsv is None:
            for key in ("source_lang", "target_lang"):
                if getattr(self, key) is None:
                    raise InputError(
                        f"corpus.{key}: missing; the key `translation` is read by language, as "
                        '{"translation": {"en": ..., "de": ...}}; or give source_column and target_column'
                    )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that reading will open; empty for a data set."""
        return tuple(Path(p).expanduser() for p in (self.source, self.target, self.tsv, self.jsonl) if p is not None)

    @property
    def title(self) -> str:
        """`name`, or else what the corpus is read from."""
        if self.name is not None:
            return self.name
        return f"{self.dataset}[{self.split}]" if self.dataset is not None else "|".join(f.name for f in self.files)


@dataclass(frozen=True)
class ParallelCorpus(Sequence):
    """A sequence of (source, target) pairs, held as two lists of equal length.

    `sha256`: for each file read, the hash of its bytes as they lie on disk; for a data set, the hash of its lines
    "source<TAB>target". `skipped_empty`: how many pairs `skip_empty` dropped. `raw_targets`: the targets before they
    were tokenised, for a corpus that is.
    """

    sources: list[str]
    targets: list[str]
    name: str
    source_lang: str | None = None
    target_lang: str | None = None
    sha256: dict[str, str] = field(default_factory=dict)
    skipped_empty: int = 0
    raw_targets: list[str] | None = None

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise InputError(f"{self.name}: {len(self.sources)} sources, but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int | slice) -> Any:
        """One pair, or for a slice a `ParallelCorpus`."""
        if isinstance(index, slice):
            raw = None if self.raw_targets is None else self.raw_targets[index]
            return replace(self, sources=self.sources[index], targets=self.targets[index], raw_targets=raw)
        return self.sources[index], self.targets[index]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(zip(self.sources, self.targets, strict=True))


def check_files(specs: Iterable[CorpusSpec]) -> None:
    """Fail at once, naming every file of all `specs` that is missing, before any is read."""
    missing = [str(path) for spec in specs for path in spec.files if not path.is_file()]
    if missing:
        raise InputError(f"no such file: {', '.join(dict.fromkeys(missing))}")


def read_parallel(spec: CorpusSpec) -> ParallelCorpus:
    """Read the corpus that `spec` describes. `InputError` names the file and line of whatever cannot be used."""
    check_files([spec])
    if spec.source is not None:
        pairs, where = _read_two_files(*spec.files)
    else:
        pairs, where = _read_records(spec), (spec.files[0] if spec.files else spec.dataset,) * 2
    if not pairs[0]:
        raise InputError(f"{where[0]}: empty, no sentence pair in it")

    if spec.files:
        sha256 = {str(path): file_hash(path) for path in spec.files}
    else:
        digest = hashlib.sha256()
        for source, target in zip(*pairs, strict=True):
            digest.update(f"{source}\t{target}\n".encode())
        sha256 = {spec.title: digest.hexdigest()}

    (sources, targets), skipped = _without_empty(pairs, where, spec.skip_empty)
    if skipped:
        logger.warning("%s: %d pairs with an empty side skipped", spec.title, skipped)
    return ParallelCorpus(
        sources=sources[: spec.limit],
        targets=targets[: spec.limit],
        name=spec.title,
        source_lang=spec.source_lang,
        target_lang=spec.target_lang,
        sha256=sha256,
        skipped_empty=skipped,
    )


_Pairs = tuple[list[str], list[str]]


def _read_two_files(source: Path, target: Path) -> tuple[_Pairs, tuple[Path, Path]]:
    sources, targets = list(iter_lines(source)), list(iter_lines(target))
    for path, lines in ((source, sources), (target, targets)):
        if not lines:
            raise InputError(f"{path}: empty, no line in it")
    if len(sources) != len(targets):
        raise InputError(f"{source} has {len(sources)} lines, but {target} has {len(targets)}; they must be equal")
    return (sources, targets), (source, target)


def _read_records(spec: CorpusSpec) -> _Pairs:
    sources, targets = [], []
    for source, target in iter_pairs(spec, iter_lines(spec.files[0]) if spec.files else load_rows(spec)):
        sources.append(source)
        targets.append(target)
    return sources, targets


def _without_empty(pairs: _Pairs, where: Sequence[Any], skip: bool) -> tuple[_Pairs, int]:
    kept = []
    for texts, path in zip(pairs, where, strict=True):
        empty = [number for number, text in enumerate(texts, start=1) if not text.strip()]
        if empty and not skip:
            raise InputError(
                f"{path}: {len(empty)} empty {'line' if len(empty) == 1 else 'lines'}, the first is line {empty[0]}; "
                "skip_empty: true drops such pairs"
            )
        kept.append(empty)
    dropped = {number - 1 for empty in kept for number in empty}
    if not dropped:
        return pairs, 0
    sources, targets = ([text for i, text in enumerate(texts) if i not in dropped] for texts in pairs)
    if not sources:
        raise InputError(f"{where[0]}: every pair has an empty side")
    return (sources, targets), len(dropped)
