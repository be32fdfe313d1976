# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The formats of documents by the ends of their names."""

from __future__ import annotations

from pathlib import Path

from residual_hf.base.errors import InputError

from .archived import PARTS, ArchivedDocument
from .catalogues import POFile, XLIFFFile
from .commonmark import MarkdownFile
from .document import Document
from .plain import Subtitles, TextFile
from .web import EPUB, HTMLFile

READERS: dict[str, type[Document]] = {
    ".txt": TextFile,
    **dict.fromkeys((".html", ".htm", ".xhtml"), HTMLFile),
    **dict.fromkeys((".md", ".markdown", ".mdx"), MarkdownFile),
    **dict.fromkeys((".srt", ".vtt"), Subtitles),
    **dict.fromkeys(PARTS, ArchivedDocument),
    ".epub": EPUB,
    **dict.fromkeys((".po", ".pot"), POFile),
    **dict.fromkeys((".xlf", ".xliff"), XLIFFFile),
}


def read_document(path: Path) -> Document:
    """Read a document in the format that its name ends in. Raises `InputError` for another name or content."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: unknown format, must be one of {', '.join(READERS)}")
    return reader(path)
