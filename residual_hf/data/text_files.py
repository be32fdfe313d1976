"""Text files of one sentence per line: strict UTF-8, plain or compressed, only "\\n" ends a line."""

import bz2
import gzip
import hashlib
import io
import lzma
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputError
from residual_hf.base.files import expanded, readable
from residual_hf.model.checksums import file_hash

OTHER_ENCODING = "if it is Windows-1252, as of Excel, convert it by `iconv -f WINDOWS-1252 -t UTF-8`"
STDIN = Path("standard input")


def _zstandard(raw: BufferedReader) -> Any:
    import pyarrow  # a tenth of a second

    return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"))


class _XZ(io.RawIOBase):
    """The content of an .xz file, of which `lzma.LZMAFile` may keep 4 GiB."""

    def __init__(self, raw: BufferedReader):
        self._raw, self._decompressor = raw, lzma.LZMADecompressor(memlimit=LARGEST_WINDOW)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content:
            following = b""
            if self._decompressor.eof:  # another stream, or zeros between them
                following = self._decompressor.unused_data.lstrip(b"\0") or self._raw.read(1 << 16).lstrip(b"\0")
                if not following and not self._raw.peek(1):
                    return 0
                self._decompressor = lzma.LZMADecompressor(memlimit=LARGEST_WINDOW)
            elif self._decompressor.needs_input and not (following := self._raw.read(1 << 16)):
                raise EOFError("it has no end")
            content = self._decompressor.decompress(following, len(buffer))
        buffer[: len(content)] = content
        return len(content)


COMPRESSIONS: dict[str, tuple[bytes, Callable[[Any], Any]]] = {
    ".gz": (b"\x1f\x8b", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": (b"BZh[1-9]1AY&SY", bz2.BZ2File),
    ".xz": (b"\xfd7zXZ\0", lambda raw: io.BufferedReader(_XZ(raw))),
    ".zst": (b"[(]\xb5/\xfd", _zstandard),
}
"""Pattern of the first bytes, and the reader, of compressed files by the suffix of their names."""
LARGEST_WINDOW = 256 * 2**20
"""Bytes of memory to read an .xz file; `xz -9` needs a quarter."""
LONGEST_LINE = 1 << 23
"""Bytes of a line, without which a file of zeros fills the memory; a long novel has fewer."""
SHOWN = re.compile(
    r"[^\s\x00-\x1f\x7f\x81\x8d\x8f\x90\x9d\u2800\ufff9-\ufffc"  # controls, but those of Windows-1252
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""A character that tokenizers read: not white space, or default-ignorable (the last two lines; `re` has no class)."""
FILLERS = "\u115f\u1160\u3164\uffa0"
"""Letters of Hangul without a shape."""


def uncompressed_name(name: str) -> str:
    """The name of a file without the suffix of a compression."""
    stem, dot, suffix = name.rpartition(".")
    return stem if dot + suffix.lower() in COMPRESSIONS else name


@contextmanager
def open_binary(path: Path, place: Callable[[], str] = str) -> Iterator[Any]:
    """Context of a file, or of `STDIN`, decompressed if its name or its first bytes say how.

    Raises `InputError` for one that cannot be read; `place` says how far it can.
    """
    with readable(path):
        try:
            opened: Any = nullcontext(sys.stdin.buffer) if path is STDIN else path.open("rb")
            with opened as raw:
                start = raw.peek(10)
                kinds = COMPRESSIONS.items()
                readers = (read for suffix, (first, read) in kinds if path.suffix == suffix or re.match(first, start))
                yield next(readers, lambda raw: raw)(raw)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            names = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}
            kind = names.get(path.suffix, "compressed")
            raise InputError(f"{path}: damaged {kind} file{place()}: {error}") from error


class LineReader:
    """Iterates over the lines of a UTF-8 text file, plain or compressed, without their line ends ("\\n" or "\\r\\n").

    `path` is None for standard input. A byte order mark is dropped. `number` and `offset` are the lines and
    (uncompressed) bytes read so far; pass them to continue from that position.
    """

    def __init__(self, path: str | Path | None, number: int = 0, offset: int = 0):
        self.path = STDIN if path is None else expanded(path)
        self.number = number
        self.offset = offset

    def __iter__(self) -> Iterator[str]:
        with open_binary(self.path, lambda: f", cannot be read past line {self.number}") as file:
            left = self.offset
            if left and file.seekable():
                left -= file.seek(left)
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                left -= len(block)
            for line in iter(partial(file.readline, LONGEST_LINE + 1), b""):
                self.number += 1
                where = f"{self.path}: line {self.number}"
                if len(line) > LONGEST_LINE:
                    raise InputError(f"{where} has more than {LONGEST_LINE >> 20} MiB")
                self.offset += len(line)
                if self.number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    text, wrong = line.decode("utf-8"), line.find(b"\0")
                except UnicodeDecodeError as error:
                    wrong = error.start
                if wrong >= 0:
                    utf16 = b"\0" in line or (self.number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"))
                    advice = "the file looks like UTF-16" if utf16 else OTHER_ENCODING
                    raise InputError(f"{where}, byte {wrong + 1} (0x{line[wrong]:02X}) is not UTF-8 text; {advice}")
                yield text


def iter_lines(path: str | Path | None) -> Iterator[str]:
    """The lines of a text file, or of standard input for None, see `LineReader`."""
    return iter(LineReader(path))


def one_line(text: str) -> str:
    """A text without line breaks, which become spaces."""
    return " ".join(text.splitlines())


def single_spaced(text: str) -> str:
    """A text without line breaks, tabs and repeated spaces, as formats for translators mean it."""
    return re.sub("[ \\t\\r\\n]+", " ", text).strip(" ")


def is_blank(text: str) -> bool:
    """Whether a text has white space and invisible characters only, which tokenizers drop."""
    if text[:1].isalnum() and text[0] not in FILLERS:  # the search takes twice as long
        return False
    return SHOWN.search(text) is None


def in_batches(texts: Iterable[str], characters: int = 1 << 20) -> Iterator[list[str]]:
    """Texts in lists of at most so many characters, or of one text: a tokenizer takes 400 bytes for a character."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > characters:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def count_lines(path: Path, most: float = math.inf) -> int:
    """The number of lines of a text file, plain or compressed; stops reading soon after `most` of them."""
    lines, last = 0, b"\n"
    with open_binary(path) as file:
        while lines <= most and (block := file.read(1 << 20)):
            lines, last = lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def sample_hash(path: Path, blocks: int = 1024, size: int = 4096) -> str:
    """The sha256 of evenly spaced blocks of a file, in hex: for files too large for `file_hash`."""
    last = path.stat().st_size - size
    if last < blocks * size:
        return file_hash(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for number in range(blocks):
            file.seek(last * number // (blocks - 1))
            digest.update(file.read(size))
    return digest.hexdigest()
