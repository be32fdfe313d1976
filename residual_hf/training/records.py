# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The record of a run, `run.json`: what was run, on what, with which code, and how fast."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.text_files import write_atomically

RECORD = "run.json"


def begin_record(folder: Path, seed: int, processes: int, splits: Mapping[str, Sequence[ParallelCorpus]]) -> None:
    """Write what is known before the first update; the record of a run that is resumed lists every start."""
    earlier = read_record(folder)
    started = earlier.get("started", now())
    record = {
        "command": sys.argv,
        "started": started,
        "resumed": [*earlier.get("resumed", []), now()] if earlier else [],
        "commit": commit(),
        "versions": versions(),
        "seed": seed,
        "device": device_name(),
        "processes": processes,
        "data": {name: describe_corpora(corpora) for name, corpora in splits.items()},
    }
    write_record(folder, earlier | record)


def add_to_record(folder: Path, **facts: Any) -> None:
    """Put further facts into the record."""
    write_record(folder, read_record(folder) | facts)


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a run folder; empty where there is none yet."""
    path = folder / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    write_atomically(folder / RECORD, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def describe_corpora(corpora: Sequence[ParallelCorpus]) -> dict[str, Any]:
    """Pairs, hashes of the files and languages, for one corpus; a list of corpora under `corpora` for several."""
    described = [
        {
            "name": c.name,
            "pairs": len(c),
            "sha256": c.sha256,
            "source_lang": c.source_lang,
            "target_lang": c.target_lang,
        }
        for c in corpora
    ]
    if len(described) == 1:
        return described[0]
    return {"pairs": sum(map(len, corpora)), "corpora": described}


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the package's source folder, with `+` where files in it were changed; None outside of git."""
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
