# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Zip archives, such as office documents, whose content is limited before any of it is unpacked."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError

LARGEST_PART = 64 * 2**20
"""Bytes of a file in an archive that is read into memory."""
LARGEST_ARCHIVE = 2**30
"""Bytes of all files in an archive, unpacked."""
MOST_FILES = 10_000
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
"""Errors of archives that are damaged, encrypted or compressed by an unknown method."""


@contextmanager
def open_archive(path: Path, largest: int = LARGEST_ARCHIVE) -> Iterator[zipfile.ZipFile]:
    """Context of a zip archive to read. zipfile reads no more of a file than the size that is checked here.

    Raises `InputError` for one that is damaged or encrypted, and for one of more than `MOST_FILES` files or
    `largest` bytes.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > largest or len(archive.infolist()) > MOST_FILES:
                raise InputError(
                    f"{path}: has {len(archive.infolist()):,} files of {size / 2**20:,.0f} MiB unpacked, must have at "
                    f"most {MOST_FILES:,} of {largest / 2**20:,.0f}"
                )
            yield archive
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except DAMAGED as error:
        raise InputError(f"{path}: cannot be read as a zip archive: {error}") from error


def read_part(archive: zipfile.ZipFile, name: str) -> bytes:
    """A file of an archive. Raises `InputError` for one of more than `LARGEST_PART` bytes."""
    if (size := archive.getinfo(name).file_size) > LARGEST_PART:
        raise InputError(
            f"{archive.filename}: {name} has {size / 2**20:,.0f} MiB unpacked, must have at most "
            f"{LARGEST_PART / 2**20:,.0f}"
        )
    return archive.read(name)
