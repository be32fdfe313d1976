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
from residual_hf.data.settings import CorpusSpec
from residual_hf.data.text_files import file_hash, iter_lines
from residual_hf.errors import InputError

logger = logging.getLogger(__name__)


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
