"""The base class of documents of all formats."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import readable
from residual_hf.data.language_names import bcp47
from residual_hf.generation.inline import Block, texts_of
from residual_hf.model.translation_inputs import has_letters

LARGEST_TEXT = 64 * 2**20
"""Bytes of a file of text, which is read into memory."""
SETTING = re.compile(
    r"true|false|null|#(?:[0-9A-Fa-f]{3,4}){1,2}|0x[0-9A-Fa-f]+|-?\d[\d.]*(?:px|em|rem|pt|dp|sp|ms|s)?"
    r"|(?=.*%)(?:%[-_0^#]?[A-Za-z%]|[^\w%]|[\d_])+"  # as of `strftime`
)
"""Truth values, colors, numbers and forms of dates, in files whose format has texts only."""


class DocumentFile(ABC):
    """A document that is read; `blocks` are to be translated. The languages are written into it if they are known."""

    blocks: Sequence[Block]
    source_lang: str | None = None
    target_lang: str | None = None

    @abstractmethod
    def write(self, path: Path, blocks: Sequence[Block]) -> None:
        """Write the document once, with translations in the places of `blocks`."""

    def language(self, label: str) -> str:
        """The tag of the target language for one of the source language; others stay."""
        source, target, own = (bcp47(code or "") for code in (self.source_lang, self.target_lang, label))
        return target if source and target and own.split("-")[0] == source.split("-")[0] else label


def has_text(block: Block) -> bool:
    """Whether a block has letters to translate."""
    return any(map(has_letters, texts_of(block)))


def with_blocks(found: Iterable[Any]) -> tuple[list[Any], list[Block]]:
    """Those with something to translate of what has a `text` and its `block`, and their blocks."""
    read = [(each, each.block) for each in found if not SETTING.fullmatch(each.text.strip())]
    wanted = [(each, block) for each, block in read if has_text(block)]
    return [each for each, _ in wanted], [block for _, block in wanted]


def read_bytes(path: Path) -> bytes:
    """A file of text. Raises `InputError` for one that is missing, cannot be read or is larger than `LARGEST_TEXT`."""
    with readable(path), path.open("rb") as file:
        content = file.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise InputError(f"{path}: has more than {LARGEST_TEXT / 2**20:.0f} MiB")
    return content


def read_text(path: Path) -> str:
    """A file of text, whose lines have line feeds. Raises `InputError` like `decoded` and `read_bytes`."""
    text, _ = decoded(read_bytes(path), str(path))
    return text if "\n" in text else text.replace("\r", "\n")


def decoded(content: bytes, where: str, named: str = "utf-8") -> tuple[str, str]:
    """A text and its encoding: UTF-8, UTF-16 with a byte order mark, or the one that it names.

    Raises `InputError` for other bytes and for NUL characters.
    """
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        encoding = named if encoding == "utf-8" else encoding
        with input_errors(f"{where}: not {encoding.upper()}: ", LookupError, UnicodeError):
            text = content.decode(encoding)
    if "\0" in text:
        raise InputError(f"{where}: has NUL characters, must be text")
    return text, encoding
