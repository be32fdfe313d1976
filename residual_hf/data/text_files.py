# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Text files of one sentence per line: strict UTF-8, plain or gzip, only "\\n" ends a line."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from residual_hf.errors import InputError


def iter_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzip, without their ends ("\\n" or "\\r\\n"; nothing else splits)."""
    path = Path(path).expanduser()
    number = 0
    try:
        with open(path, "rb") as raw:
            packed = path.suffix == ".gz" or raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            for number, line in enumerate(gzip.GzipFile(fileobj=raw) if packed else raw, start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError as error:
                    utf16 = number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff")
                    raise InputError(
                        f"{path}: line {number}, byte {error.start + 1} (0x{line[error.start]:02X}) is not UTF-8"
                        + ("; the file begins like UTF-16" if utf16 else "")
                    ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: not a whole gzip file, broken after line {number}: {error}") from error
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def file_hash(path: Path) -> str:
    """The sha256 of a file's bytes as they lie on disk, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
