"""Zip archives, such as office documents, whose content is limited before any of it is unpacked."""

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError, input_errors, refuse_if

LARGEST_PARTS = 64 * 2**20
"""Bytes of all files of an archive that are read into memory."""
MOST_MARKS = 2_000_000
"""Elements, their ends and attributes in these files, of which each takes up to 500 bytes; a long book has fewer."""
LARGEST_ARCHIVE = 2**30
"""Bytes of all files in an archive, unpacked."""
MOST_FILES = 10_000
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
"""Errors of archives that are damaged, encrypted or compressed by an unknown method."""
IN_UTF_8 = 0x800
"""Flag of a file whose name is in UTF-8. Info-ZIP and macOS write such names without it."""


class Archive(zipfile.ZipFile):
    """A zip archive to read, which accounts for what `read_part` has read of it."""

    bytes_read = 0
    marks_read = 0

    def __init__(self, path: Path):
        super().__init__(path)
        for entry in self.infolist():
            if not entry.flag_bits & IN_UTF_8:
                with suppress(UnicodeError):
                    entry.filename = entry.filename.encode("cp437").decode()
        self.NameToInfo = {entry.filename: entry for entry in self.infolist()}


@contextmanager
def open_archive(path: Path, largest: int = LARGEST_ARCHIVE) -> Iterator[Archive]:
    """Context of a zip archive to read. zipfile reads no more of a file than the size that is checked here.

    Raises `InputError` for one that is damaged or encrypted, and for one of more than `MOST_FILES` files or
    `largest` bytes.
    """
    try:
        with input_errors(f"{path}: cannot be read as a zip archive: ", *DAMAGED), Archive(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > largest or len(archive.infolist()) > MOST_FILES:
                raise InputError(
                    f"{path}: has {len(archive.infolist()):,} files of {size / 2**20:,.0f} MiB unpacked, must have at "
                    f"most {MOST_FILES:,} of {largest / 2**20:,.0f}"
                )
            yield archive
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None


def read_part(archive: Archive, name: str, mark: int = 1) -> bytes:
    """An XML or HTML file of an archive, where each `<` and `=` counts as `mark` marks.

    Raises `InputError` if all files read so far have more than `LARGEST_PARTS` bytes or `MOST_MARKS`.
    """
    archive.bytes_read += archive.getinfo(name).file_size
    if archive.bytes_read > LARGEST_PARTS:
        raise InputError(
            f"{archive.filename}: with {name}, its text has {archive.bytes_read / 2**20:,.0f} MiB unpacked, must have "
            f"at most {LARGEST_PARTS / 2**20:,.0f}"
        )
    content = archive.read(name)
    archive.marks_read += mark * (content.count(b"<") + content.count(b"="))
    is_utf7 = re.search(rb"utf-?7", content[:200], re.IGNORECASE)  # where marks have other bytes
    problems = {
        f"{name} is in UTF-7, must be in UTF-8 or UTF-16": is_utf7,
        f"with {name}, its text has more than {MOST_MARKS // mark:,} elements and attributes; divide it into several "
        "documents": archive.marks_read > MOST_MARKS,
    }
    refuse_if({f"{archive.filename}: {problem}": so for problem, so in problems.items()})
    return content
