"""Records of a process for `run.json`: its command, versions, device, data and emissions."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from residual_hf.base.environment import command, commit, device_name, now, versions
from residual_hf.base.files import RECORD, expanded, write_json
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import DataSettings
from residual_hf.data.text_files import sample_hash
from residual_hf.model import connections
from residual_hf.model.checksums import file_hash
from residual_hf.model.connections import get_ln_mode
from residual_hf.native import instruction_set

from .run_record import CorpusRecord, DataRecord, Emissions, RunRecord, of_all_starts

PACKAGE = Path(connections.__file__).parent


def begin_record(folder: Path, seed: int, processes: int, data: DataRecord, modes: dict[str, str]) -> None:
    """Write what is known before the first update; the record of a resumed run keeps its other fields."""
    known = RunRecord.read(folder) if (is_resumed := (folder / RECORD).exists()) else RunRecord(started=now())
    record = replace(
        known,
        resumed=(*known.resumed, *([now()] if is_resumed else [])),
        command=command(),
        commit=of_all_starts(known.commit, commit()),
        versions=versions(),
        seed=seed,
        device=of_all_starts(known.device, device_name()),
        kernels=of_all_starts(known.kernels, kernels()),
        processes=processes,
        data=data,
        modes=modes,
        finished=None,
        diverged=None,
        out_of_time=False,
        updates=None,
        tokens_per_second=None,
        emissions=None,
    )
    write_json(folder / RECORD, asdict(record))


def kernels() -> str | None:
    """The instruction sets of the kernels of this package and of PyTorch; None with a GPU or another accelerator."""
    if torch.accelerator.is_available():
        return None
    return f"{instruction_set()}, PyTorch {torch.backends.cpu.get_cpu_capability()}"


def modes_of_user(model: Mapping[str, Any]) -> dict[str, str]:
    """The hash of the file of each mode in the fields of a model that is not of this package."""
    fields = [model.get(f"{stack}ln_mode") for stack in ("", "encoder_", "decoder_")]
    modules = {name: sys.modules.get(get_ln_mode(name).__module__) for name in fields if name is not None}
    files = {name: Path(getattr(module, "__file__", None) or "") for name, module in modules.items()}
    return {name: file_hash(file) for name, file in files.items() if file.is_file() and file.parent != PACKAGE}


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
