# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The pairs of a parallel corpus that need not fit in memory, round after round, from any place on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from residual_hf.data.corpus import check_files
from residual_hf.data.records import Pair, iter_pairs, load_rows
from residual_hf.data.settings import CorpusSpec
from residual_hf.data.text_files import LineReader
from residual_hf.errors import InputError


@dataclass(frozen=True)
class Cursor:
    """How far a corpus has been read; nothing of it by default.

    `passes`: whole ones. Of the present one, `rows`: lines or rows; `kept`: pairs that were not skipped; `offsets`:
    bytes of each file, unpacked.
    """

    passes: int = 0
    rows: int = 0
    kept: int = 0
    offsets: Sequence[int] = ()


class PairReader:
    """Reads the corpus of `spec` pair by pair and begins again at its end, with `skip_empty` and `limit` obeyed.

    `place` says where it stands; a reader made with it goes on from there. A file is sought by byte, a gzip file has
    to be unpacked up to there and a data set skips its rows. `skipped_empty` counts since the reader was made.

    Raises:
        InputError: a file that is missing, when made; whatever cannot be used, by file and line, when it is reached.
            Two text files of unequal length are noticed at the end of the shorter.
    """

    def __init__(self, spec: CorpusSpec, place: Cursor | None = None):
        check_files([spec])
        self.spec = spec
        self.skipped_empty = 0
        self._begin(place or Cursor())
        self._data: Any = None
        self._pairs = self._endless()

    @property
    def place(self) -> Cursor:
        return Cursor(self._passes, self._rows, self._kept, [reader.offset for reader in self._files])

    def take(self, count: int) -> list[Pair]:
        """The next `count` pairs."""
        return list(islice(self._pairs, count))

    def _begin(self, place: Cursor) -> None:
        self._passes, self._rows, self._kept = place.passes, place.rows, place.kept
        offsets = place.offsets or (0,) * len(self.spec.files)
        self._files = [
            LineReader(path, place.rows, offset) for path, offset in zip(self.spec.files, offsets, strict=True)
        ]

    def _endless(self) -> Iterator[Pair]:
        while True:
            yield from self._rest_of_pass()
            if self._kept == 0:
                name = self.spec.files[0] if self.spec.files else self.spec.title
                why = "every pair has an empty side" if self._rows else "empty, no sentence pair in it"
                raise InputError(f"{name}: {why}")
            self._begin(Cursor(self._passes + 1))

    def _rest_of_pass(self) -> Iterator[Pair]:
        if self._kept == self.spec.limit:
            return
        for pair in self._rest_of_pairs():
            self._rows += 1
            if self._is_empty(pair):
                self.skipped_empty += 1
                continue
            self._kept += 1
            yield pair
            if self._kept == self.spec.limit:
                return

    def _rest_of_pairs(self) -> Iterator[Pair]:
        if self.spec.source is not None:
            return self._two_files(*self._files)
        records = self._files[0] if self._files else self._rest_of_rows()
        return iter_pairs(self.spec, records, first=self._rows + 1)

    def _two_files(self, sources: LineReader, targets: LineReader) -> Iterator[Pair]:
        for source, target in zip_longest(sources, targets):
            if source is None or target is None:
                shorter, longer = (sources, targets) if source is None else (targets, sources)
                raise InputError(
                    f"{shorter.path} has {shorter.number} lines, but {longer.path} has more; they must be equal"
                )
            yield source, target

    def _rest_of_rows(self) -> Any:
        if self._data is None:
            self._data = load_rows(self.spec, streaming=True)
        if isinstance(self._data, Sized) and self._rows >= len(self._data):
            return ()  # where `skip` of a data set on disk fails
        return self._data.skip(self._rows) if self._rows else self._data

    def _is_empty(self, pair: Pair) -> bool:
        """Whether a side is empty or white, where that is allowed."""
        if pair[0].strip() and pair[1].strip():
            return False
        if not self.spec.skip_empty:
            where = f"{self._files[0].path}: line" if self._files else f"{self.spec.title}: row"
            if self.spec.source is not None and pair[0].strip():
                where = f"{self._files[1].path}: line"
            raise InputError(f"{where} {self._rows} has an empty side; skip_empty: true drops such pairs")
        return True
