# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Records of a run: `run.json`, which says what was run on which data by which code, and the log file."""

from __future__ import annotations

import logging
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.files import read_json, write_json

from .recipe import from_mapping

RECORD = "run.json"


@dataclass
class CorpusRecord:
    """A corpus as it was read; `sha256` maps the path of each file to the hash of its bytes."""

    name: str
    pairs: int
    source_lang: str | None = None
    target_lang: str | None = None
    sha256: dict[str, str] = field(default_factory=dict)


@dataclass
class DataRecord:
    """The corpora of each split."""

    train: list[CorpusRecord] = field(default_factory=list)
    valid: list[CorpusRecord] = field(default_factory=list)
    test: list[CorpusRecord] = field(default_factory=list)


@dataclass
class Emissions:
    """What codecarbon measured during training; `country` is where it located the machine."""

    grams: float
    kilowatt_hours: float
    country: str | None = None
    codecarbon: str | None = None


@dataclass
class RunRecord:
    """The content of `run.json`. Fields that are None are not known, or not known yet.

    `commit` ends in `+` if the source files had uncommitted changes. `resumed` lists the later starts of a run.
    `max_tokens_found` is the batch size that the search found; `max_tokens` the one that was used. `seconds`,
    `tokens_per_second` and `emissions` cover the last start.
    """

    command: list[str] = field(default_factory=list)
    started: str | None = None
    resumed: list[str] = field(default_factory=list)
    finished: str | None = None
    commit: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    device: str | None = None
    processes: int = 1
    data: DataRecord = field(default_factory=DataRecord)
    parameters: int | None = None
    max_tokens: int | None = None
    max_tokens_found: int | None = None
    tokens_per_update: int | None = None
    updates: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    emissions: Emissions | None = None

    @classmethod
    def begin(
        cls, folder: Path, seed: int, processes: int, splits: Mapping[str, Sequence[ParallelCorpus]]
    ) -> RunRecord:
        """Write what is known before the first update; the record of a resumed run keeps what it has."""
        earlier = cls.read(folder) if (folder / RECORD).exists() else None
        record = replace(
            earlier or cls(started=now()),
            command=sys.argv,
            commit=commit(),
            versions=versions(),
            seed=seed,
            device=device_name(),
            processes=processes,
            data=DataRecord(**{split: describe_corpora(corpora) for split, corpora in splits.items()}),
        )
        if earlier is not None:
            record.resumed = [*earlier.resumed, now()]
        record.write(folder)
        return record

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read the record of a run folder. Raises `InputError` naming the file and the field that is wrong."""
        return from_mapping(cls, read_json(folder / RECORD), str(folder / RECORD))

    @classmethod
    def update(cls, folder: Path, **fields: Any) -> None:
        """Set fields of the record of a run folder."""
        replace(cls.read(folder), **fields).write(folder)

    def write(self, folder: Path) -> None:
        write_json(folder / RECORD, asdict(self))


def describe_corpora(corpora: Iterable[ParallelCorpus]) -> list[CorpusRecord]:
    return [CorpusRecord(c.name, len(c), c.source_lang, c.target_lang, c.sha256) for c in corpora]


def measured_emissions(callbacks: Iterable[Any]) -> Emissions | None:
    """The result of Transformers' `CodeCarbonCallback` after training; None without it (`report_to: [codecarbon]`)."""
    trackers = (getattr(callback, "tracker", None) for callback in callbacks)
    data = next((t.final_emissions_data for t in trackers if hasattr(t, "final_emissions_data")), None)
    if data is None:
        return None
    return Emissions(1000 * data.emissions, data.energy_consumed, data.country_name or None, data.codecarbon_version)


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the package's source folder, with `+` if files in it were changed; None outside of git."""
    source = Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return None
    try:
        head, changed = (
            subprocess.run(["git", "-C", str(source), *command], capture_output=True, text=True, check=True).stdout
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.strip() + ("+" if changed.strip() else "")


def versions() -> dict[str, str]:
    import accelerate
    import tokenizers
    import transformers

    from residual_hf import __version__

    return {
        "residual_hf": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "accelerate": accelerate.__version__,
        "tokenizers": tokenizers.__version__,
        "python": platform.python_version(),
    }


def device_name() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"


class TerminalHandler(logging.Handler):
    """Writes to standard error without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class log_file:
    """Context in which the messages of this package go to a file and to the terminal."""

    def __init__(self, path: Path):
        self.handlers: Sequence[logging.Handler] = (logging.FileHandler(path, encoding="utf-8"), TerminalHandler())

    def __enter__(self) -> None:
        package = logging.getLogger("residual_hf")
        package.setLevel(logging.INFO)
        for handler in self.handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
            package.addHandler(handler)

    def __exit__(self, *exception: Any) -> None:
        for handler in self.handlers:
            logging.getLogger("residual_hf").removeHandler(handler)
            handler.close()
