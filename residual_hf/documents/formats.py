"""The formats of documents by the ends of their names."""

from collections.abc import Callable
from pathlib import Path

from residual_hf.base.errors import InputError

from . import EBOOKS, HTML, KEY_VALUES, MARKDOWN, MESSAGES, PO, SUBTITLES, XLIFF
from .archived import PARTS, ArchivedDocument
from .catalogues import DEFAULTS, CatalogueOptions, POFile, XLIFFFile
from .commonmark import MarkdownFile
from .document import DocumentFile
from .key_values import KeyValueFile
from .messages import MessageFile
from .plain import Subtitles, TextFile
from .web import EPUB, HTMLFile

CATALOGUES: dict[str, Callable[[Path, CatalogueOptions], DocumentFile]] = {
    **dict.fromkeys(PO, POFile),
    **dict.fromkeys(XLIFF, XLIFFFile),
    **dict.fromkeys(MESSAGES, MessageFile),
    **dict.fromkeys(KEY_VALUES, KeyValueFile),
}
READERS: dict[str, Callable[..., DocumentFile]] = {
    ".txt": TextFile,
    **dict.fromkeys(HTML, HTMLFile),
    **dict.fromkeys(MARKDOWN, MarkdownFile),
    **dict.fromkeys(SUBTITLES, Subtitles),
    **dict.fromkeys(PARTS, ArchivedDocument),
    **dict.fromkeys(EBOOKS, EPUB),
    **CATALOGUES,
}


def read_document(path: Path, options: CatalogueOptions = DEFAULTS) -> DocumentFile:
    """Read a document in the format that its name ends in. Raises `InputError` for another name or content."""
    suffix = path.suffix.lower()
    if suffix in CATALOGUES:
        return CATALOGUES[suffix](path, options)
    if options != DEFAULTS:
        raise InputError(f"--fill, --mark-fuzzy: given, but {path} is no catalogue: {', '.join(CATALOGUES)}")
    if suffix not in READERS:
        raise InputError(f"{path}: unknown format, must be one of {', '.join(READERS)}")
    return READERS[suffix](path)
