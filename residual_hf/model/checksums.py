# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Checksums of the files of a checkpoint: `checksums.json`, written last, with the sha256 of every file."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

CHECKSUMS = "checksums.json"
EDITED = {".md", ".png"}  # the card and its picture
TEXT = {".jinja", ".json", ".py", ".txt"}


def file_hash(path: Path) -> str:
    """The sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_checksums(folder: Path, names: Iterable[str] | None = None, forget: Iterable[str] = ()) -> None:
    """Record all files of a folder, at any depth, or add `names` to its record, and take `forget` out.

    Cards are left out: people edit them.
    """
    files = files_of(folder)
    sums = {} if names is None else _recorded(folder) or {}
    sums |= {name: file_hash(files[name]) for name in (files if names is None else names)}
    sums = {name: sums[name] for name in sorted(sums.keys() - set(forget))}
    temporary = folder / f".{CHECKSUMS}"
    temporary.write_text(json.dumps(sums, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, folder / CHECKSUMS)


def is_recorded(path: Path) -> bool:
    """Whether a file is in the record of its folder and as it was then."""
    return file_hash(path) == (_recorded(path.parent) or {}).get(path.name)


def of_model(name: str) -> bool:
    """Whether a model is loaded from a file of a checkpoint."""
    return name == "config.json" or name.endswith(".safetensors")


def of_training(name: str) -> bool:
    """Whether only training goes on from a file of a checkpoint."""
    return name.endswith((".pt", ".pth", ".bin"))


def find_damage(folder: str | os.PathLike, wanted: Callable[[str], bool] | None = None) -> str | None:
    """Name a file of a folder that is not as it was recorded; None if there is none, or no record.

    Only the `wanted` names count, and of those that are missing the settings; without it all do.
    """
    folder = Path(folder)
    if not (folder / CHECKSUMS).is_file():
        return None
    if (sums := _recorded(folder)) is None:
        return f"{folder / CHECKSUMS} is damaged"
    files = files_of(folder)
    for name in sorted(sums.keys() - files.keys()):
        if wanted is None or (wanted(name) and name.endswith("config.json")):
            return f"{folder / name} is missing"
    for name in sums.keys() & files.keys():
        if (wanted is None or wanted(name)) and sums[name] not in _hashes(files[name]):
            return f"{files[name]} is damaged or was changed: it is not the file recorded in {CHECKSUMS}"
    return None


def refuse_damage(folder: str | os.PathLike, wanted: Callable[[str], bool]) -> None:
    """Raise `ValueError` for a folder with a `wanted` file that is not as it was recorded."""
    if damage := find_damage(folder, wanted):
        raise ValueError(f"{damage}; copy it again or, if the change is intended, delete {CHECKSUMS}")


def _hashes(path: Path) -> Iterator[str]:
    """The hash of a file, and of text that Git has written on Windows that of the file in the repository."""
    yield file_hash(path)
    if path.suffix in TEXT:
        yield hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _recorded(folder: Path) -> dict[str, Any] | None:
    """The record of a folder; None for one that is missing or damaged."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return sums if isinstance(sums, dict) and sums else None


def files_of(folder: Path) -> dict[str, Path]:
    """The files of a folder, at any depth, by name; without cards and the record."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix not in EDITED)
    return {path.relative_to(folder).as_posix(): path for path in paths if path.name.lstrip(".") != CHECKSUMS}
