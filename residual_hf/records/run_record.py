# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""`run.json`: the command, environment, data and result of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from residual_hf.base.environment import command, commit, device_name, now, versions
from residual_hf.base.errors import InputSettings
from residual_hf.base.files import RECORD, expanded, read_json, write_json
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import DataSettings
from residual_hf.data.text_files import sample_hash
from residual_hf.model.checksums import file_hash
from residual_hf.model.options import from_mapping
from residual_hf.native import instruction_set

THEN = ", then "
"""Between the values of a run and those after it was resumed."""


@dataclass(frozen=True)
class CorpusRecord(InputSettings):
    """A corpus as it was read; `sha256` maps the path of each file to the hash of its bytes.

    The `pairs` of a streamed corpus are not counted; `bytes` maps its files to their sizes, `sampled_sha256` to the
    hashes of parts of them, see `sample_hash`.
    """

    name: str
    pairs: int | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    sha256: dict = field(default_factory=dict)
    bytes: dict = field(default_factory=dict)
    sampled_sha256: dict = field(default_factory=dict)


@dataclass(frozen=True)
class DataRecord(InputSettings):
    """The corpora of each split, and the hash of the glossary."""

    train: tuple[CorpusRecord, ...] = ()
    valid: tuple[CorpusRecord, ...] = ()
    test: tuple[CorpusRecord, ...] = ()
    glossary: str | None = None


@dataclass(frozen=True)
class Emissions(InputSettings):
    """Measurements of codecarbon during training; `country` is where it located the machine."""

    grams: float
    kilowatt_hours: float
    country: str | None = None
    codecarbon: str | None = None


@dataclass(frozen=True)
class RunRecord(InputSettings):
    """The content of `run.json`. Fields that are None are not known, or not known yet.

    `resumed` lists the later starts of a run. `out_of_time`: stopped by `max_minutes`. `commit`, `device`, `kernels`
    and `precision` are those of all starts: "fp32, then bf16". `kernels` are the instruction sets of the native
    kernels and of PyTorch on a CPU. A commit ends in `+` if the source files had uncommitted changes; the precision is
    the one that was used: if the recipe has bf16, a CPU without products in bf16 trains in fp32. `tokenizer` maps the
    files of the tokenizer to their hashes. `max_tokens_found` is the batch size that the search found, `max_tokens`
    the one that was used. `tokens_per_second` is the median over all starts, and `seconds` their sum: of a killed one,
    until its last checkpoint; `emissions` cover the last. `card` is the hash of the card that the run wrote.
    """

    command: str | None = None
    started: str | None = None
    resumed: tuple[str, ...] = ()
    finished: str | None = None
    diverged: str | None = None
    out_of_time: bool = False
    commit: str | None = None
    versions: dict = field(default_factory=dict)
    seed: int | None = None
    device: str | None = None
    kernels: str | None = None
    processes: int = 1
    data: DataRecord = field(default_factory=DataRecord)
    tokenizer: dict = field(default_factory=dict)
    precision: str | None = None
    parameters: int | None = None
    max_tokens: int | None = None
    max_tokens_found: int | None = None
    tokens_per_update: int | None = None
    updates: int | None = None
    averaged: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    emissions: Emissions | None = None
    card: str | None = None

    @classmethod
    def begin(cls, folder: Path, seed: int, processes: int, data: DataRecord) -> None:
        """Write what is known before the first update; the record of a resumed run keeps its other fields."""
        earlier = cls.read(folder) if (folder / RECORD).exists() else None
        record = replace(
            earlier or cls(started=now()),
            resumed=(*earlier.resumed, now()) if earlier else (),
            command=command(),
            commit=_of_all_starts(earlier.commit if earlier else None, commit()),
            versions=versions(),
            seed=seed,
            device=_of_all_starts(earlier.device if earlier else None, device_name()),
            kernels=_of_all_starts(earlier.kernels if earlier else None, kernels()),
            processes=processes,
            data=data,
            finished=None,
            diverged=None,
            out_of_time=False,
            updates=None,
            tokens_per_second=None,
            emissions=None,
        )
        write_json(folder / RECORD, asdict(record))

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read the record of a run folder. Raises `InputError` naming the file and the field that is wrong."""
        return from_mapping(cls, read_json(folder / RECORD), f"{folder / RECORD}: ")

    @classmethod
    def update(cls, folder: Path, **fields: Any) -> None:
        """Set fields of the record of a run folder."""
        write_json(folder / RECORD, asdict(replace(cls.read(folder), **fields)))

    @classmethod
    def add_precision(cls, folder: Path, precision: str) -> None:
        """Set the precision of this start."""
        cls.update(folder, precision=_of_all_starts(cls.read(folder).precision, precision))

    @property
    def commits(self) -> list[str]:
        """The commits that a run was trained at, in order; none if it was trained outside of git."""
        return self.commit.split(THEN) if self.commit else []


def kernels() -> str | None:
    """The instruction sets of the kernels of this package and of PyTorch; None with a GPU."""
    if torch.cuda.is_available():
        return None
    return f"{instruction_set()}, PyTorch {torch.backends.cpu.get_cpu_capability()}"


def _of_all_starts(before: str | None, now: str | None) -> str | None:
    if before is None or now is None:
        return now or before
    return before if before.split(THEN)[-1] == now else before + THEN + now


def describe_data(data: DataSettings, texts: Mapping[str, Sequence[ParallelCorpus]]) -> DataRecord:
    """The corpora of a run. Those of a stream by sizes and samples of their files: hashing them would take long."""
    described = {
        split: tuple(CorpusRecord(c.name, len(c) or None, c.source_lang, c.target_lang, c.sha256) for c in corpora)
        for split, corpora in texts.items()
    }
    if data.stream:
        described["train"] = tuple(
            CorpusRecord(
                s.title,
                None,
                s.source_lang,
                s.target_lang,
                bytes={str(f): f.stat().st_size for f in s.files},
                sampled_sha256={str(f): sample_hash(f) for f in s.files},
            )
            for s in data.train
        )
    return DataRecord(**described, glossary=None if data.glossary is None else file_hash(expanded(data.glossary)))


def measured_emissions(callbacks: Iterable[Any]) -> Emissions | None:
    """The result of Transformers' `CodeCarbonCallback` after training; None without it (`report_to: [codecarbon]`)."""
    trackers = (getattr(callback, "tracker", None) for callback in callbacks)
    found = (getattr(tracker, "final_emissions_data", None) for tracker in trackers)
    data = next((emissions for emissions in found if emissions is not None), None)
    if data is None:
        return None
    return Emissions(1000 * data.emissions, data.energy_consumed, data.country_name or None, data.codecarbon_version)
