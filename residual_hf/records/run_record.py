"""`run.json`: the command, environment, data and result of a run."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputSettings
from residual_hf.base.files import RECORD, read_json, write_json
from residual_hf.model.options import from_mapping

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
    files of the tokenizer to their hashes, `modes` the modes of the user to those of their files. `pairs` is the hash
    of the training pairs, as tokens, unless they are streamed. `max_tokens_found` is the batch size that the search
    found, `max_tokens` the one that was used. `tokens_per_second` is the median over all starts, and `seconds` their
    sum: of a killed one, until its last checkpoint; `emissions` cover the last. `card` is the hash of the card that
    the run wrote.
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
    modes: dict = field(default_factory=dict)
    tokenizer: dict = field(default_factory=dict)
    pairs: str | None = None
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
    def read(cls, folder: Path) -> "RunRecord":
        """Read the record of a run folder. Raises `InputError` naming the file and the field that is wrong."""
        return from_mapping(cls, read_json(folder / RECORD), f"{folder / RECORD}: ")

    @classmethod
    def update(cls, folder: Path, **fields: Any) -> None:
        write_json(folder / RECORD, asdict(replace(cls.read(folder), **fields)))

    @property
    def goes_on(self) -> bool:
        """Whether the run was resumed and has not finished again: its scores are of the model before."""
        return bool(self.resumed) and not self.finished

    @property
    def commits(self) -> list[str]:
        """The commits that a run was trained at, in order; none if it was trained outside of git."""
        return self.commit.split(THEN) if self.commit else []


def of_all_starts(before: str | None, now: str | None) -> str | None:
    """The value of a field for all starts of a run, from that before this start and that of this one."""
    if before is None or now is None:
        return now or before
    return before if before.split(THEN)[-1] == now else before + THEN + now
