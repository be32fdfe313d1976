# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The records of a run: `run.json`, the log file, and reading the folder of a finished run."""

from __future__ import annotations

import logging
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tqdm.auto import tqdm

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.settings import DataSettings
from residual_hf.data.text_files import iter_lines, sample_hash
from residual_hf.errors import InputError
from residual_hf.evaluation.metrics import detokenize
from residual_hf.files import RECORD, read_json, read_json_lines, write_json
from residual_hf.model.connections import STACKS
from residual_hf.model.options import Settings, from_mapping
from residual_hf.yaml_reader import read_yaml

if TYPE_CHECKING:
    from typing_extensions import Self


class Record(Settings):
    """A part of `run.json`, checked when it is read."""

    error = InputError


@dataclass(frozen=True)
class CorpusRecord(Record):
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
class DataRecord(Record):
    """The corpora of each split."""

    train: tuple[CorpusRecord, ...] = ()
    valid: tuple[CorpusRecord, ...] = ()
    test: tuple[CorpusRecord, ...] = ()


@dataclass(frozen=True)
class Emissions(Record):
    """What codecarbon measured during training; `country` is where it located the machine."""

    grams: float
    kilowatt_hours: float
    country: str | None = None
    codecarbon: str | None = None


@dataclass(frozen=True)
class RunRecord(Record):
    """The content of `run.json`. Fields that are None are not known, or not known yet.

    `commit` ends in `+` if the source files had uncommitted changes. `resumed` lists the later starts of a run.
    `tokenizer` maps the files of the tokenizer to their hashes.
    `max_tokens_found` is the batch size that the search found, `max_tokens` the one that was used. `seconds`,
    `tokens_per_second` and `emissions` cover the last start.
    """

    command: str | None = None
    started: str | None = None
    resumed: tuple[str, ...] = ()
    finished: str | None = None
    commit: str | None = None
    versions: dict = field(default_factory=dict)
    seed: int | None = None
    device: str | None = None
    processes: int = 1
    data: DataRecord = field(default_factory=DataRecord)
    tokenizer: dict = field(default_factory=dict)
    parameters: int | None = None
    max_tokens: int | None = None
    max_tokens_found: int | None = None
    tokens_per_update: int | None = None
    updates: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    emissions: Emissions | None = None

    @classmethod
    def begin(cls, folder: Path, seed: int, processes: int, data: DataRecord) -> None:
        """Write what is known before the first update; the record of a resumed run keeps its other fields."""
        earlier = cls.read(folder) if (folder / RECORD).exists() else None
        record = replace(
            earlier or cls(started=now()),
            resumed=(*earlier.resumed, now()) if earlier else (),
            command=command(),
            commit=commit(),
            versions=versions(),
            seed=seed,
            device=device_name(),
            processes=processes,
            data=data,
            finished=None,
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


@dataclass(frozen=True)
class Run:
    """The output folder of a run; `record` is its `run.json`, `curve` its `metrics.jsonl`.

    `recipe`, `config` and `metrics` are plain values, so that runs with a mode that is not imported can be read;
    the last two are empty if the run has not finished. `cleaning` maps the names of training corpora to their cleaning
    reports.
    """

    FILES: ClassVar[tuple[str, ...]] = ("recipe.yaml", RECORD)
    KIND: ClassVar = "run"

    folder: Path
    recipe: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, Any]
    curve: list[dict[str, Any]]
    record: RunRecord
    cleaning: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read a run folder. Raises `InputError` naming the file that is missing or damaged."""
        folder = Path(folder)
        if not folder.is_dir():
            raise InputError(f"run folder: {folder}: no such folder")
        for name in cls.FILES:
            if not (folder / name).is_file():
                raise InputError(f"run folder: {folder} has no {name}, must be the folder of a {cls.KIND}")
        record = RunRecord.read(folder)
        config, metrics, cleaning = (
            read_json(folder / name) if (folder / name).is_file() else {}
            for name in ("model/config.json", "metrics.json", "cleaning.json")
        )
        if "kept" in cleaning:
            cleaning = {record.data.train[0].name: cleaning}
        return cls(
            folder=folder,
            recipe=read_recipe(folder),
            config=config,
            metrics=metrics,
            curve=read_json_lines(folder / "metrics.jsonl") if (folder / "metrics.jsonl").is_file() else [],
            record=record,
            cleaning=cleaning,
        )

    @property
    def split(self) -> str:
        """The split to evaluate the model on: `"test"`, or `"valid"` in a run without a test set."""
        return "test" if "test" in self.metrics else "valid"

    @property
    def task(self) -> str:
        """The task of the model by its name on the Hub."""
        task = self.recipe.get("task") or "translation"
        return "text-generation" if task == "language_modeling" else task

    @property
    def starts_from(self) -> str | None:
        """The model that the run started from, a folder or a name on the Hub; None for random weights."""
        return (self.recipe.get("model") or {}).get("from")

    @property
    def ln_modes(self) -> list[str]:
        """The modes of the stacks; one if they are equal."""
        stacks = ("decoder",) if self.config.get("is_decoder_only") else STACKS
        names = (self.config.get(f"{stack}_ln_mode") or self.config["ln_mode"] for stack in stacks)
        return list(dict.fromkeys(names))

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Pairs (source, target) of languages that the model was trained on."""
        pairs = [(corpus.source_lang, corpus.target_lang) for corpus in self.record.data.train]
        if (self.recipe.get("data") or {}).get("bidirectional"):
            pairs = [direction for pair in pairs for direction in (pair, pair[::-1])]
        return list(dict.fromkeys((source, target) for source, target in pairs if source and target))

    def scored_text(self, split: str) -> tuple[list[str], list[str]]:
        """Translations and references of a split, as scored. Raises `InputError` without them."""
        translations, references = (
            list(iter_lines(self.folder / f"{split}.{name}.txt")) for name in ("hypotheses", "references")
        )
        data, start = self.recipe.get("data") or {}, 0
        for corpus in getattr(self.record.data, split) if data.get("pretokenized") else ():
            for language in (corpus.target_lang, corpus.source_lang)[: 1 + bool(data.get("bidirectional"))]:
                rows = slice(start, start := start + (corpus.pairs or 0))
                translations[rows] = detokenize(translations[rows], language)
        return translations, references

    def samples(self, split: str, count: int | None = None) -> list[tuple[str, str, str]]:
        """The first `count` sources, translations and references of a split; empty without its text files."""
        file = self.folder / f"{split}.sources.txt"
        if not file.is_file():
            return []
        texts = (iter_lines(file), *self.scored_text(split))
        return list(islice(zip(*texts, strict=False), count))


class FinishedRun(Run):
    """A run with a final model and its scores."""

    FILES = (*Run.FILES, "metrics.json", "model/config.json")
    KIND = "finished run"


def read_recipe(folder: Path) -> dict[str, Any]:
    """The recipe in a run folder as plain values. Raises `InputError` for a file that is not a mapping."""
    recipe = read_yaml(folder / "recipe.yaml")
    if not isinstance(recipe, dict):
        raise InputError(f"{folder / 'recipe.yaml'}: must be a mapping of sections, not {type(recipe).__name__}")
    return recipe


def describe_corpora(corpora: Iterable[ParallelCorpus]) -> tuple[CorpusRecord, ...]:
    return tuple(CorpusRecord(c.name, len(c) or None, c.source_lang, c.target_lang, c.sha256) for c in corpora)


def describe_data(data: DataSettings, texts: Mapping[str, Sequence[ParallelCorpus]]) -> DataRecord:
    """The corpora of a run. Those of a stream by sizes and samples of their files: hashing them would take long."""
    described = {split: describe_corpora(corpora) for split, corpora in texts.items()}
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
    return DataRecord(**described)


def measured_emissions(callbacks: Iterable[Any]) -> Emissions | None:
    """The result of Transformers' `CodeCarbonCallback` after training; None without it (`report_to: [codecarbon]`)."""
    trackers = (getattr(callback, "tracker", None) for callback in callbacks)
    found = (getattr(tracker, "final_emissions_data", None) for tracker in trackers)
    data = next((emissions for emissions in found if emissions is not None), None)
    if data is None:
        return None
    return Emissions(1000 * data.emissions, data.energy_consumed, data.country_name or None, data.codecarbon_version)


def command() -> str:
    """The command line of this process, as a user types it."""
    program = Path(sys.argv[0])
    name = "residual-hf" if program.parts[-2:] == ("residual_hf", "cli.py") else program.name
    return shlex.join([name, *sys.argv[1:]])


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
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except OSError:  # the terminal was closed
            self.handleError(record)


@contextmanager
def log_to(handler: logging.Handler) -> Iterator[None]:
    """Context in which the messages of this package also go to `handler`, with their time."""
    package = logging.getLogger("residual_hf")
    package.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)
        handler.close()
