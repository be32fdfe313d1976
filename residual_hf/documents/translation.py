"""Reading of documents by the ends of their names, and their translation, which can be interrupted and continued."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from residual_hf.base.errors import InputError
from residual_hf.data.language_names import code_given
from residual_hf.data.task import TRANSLATION, task_of
from residual_hf.generation.generation_settings import StreamSettings
from residual_hf.generation.markup import plain_text, translate_blocks
from residual_hf.generation.resumable_file import ResumableFile
from residual_hf.generation.translator import Translator
from residual_hf.model.options import refusal
from residual_hf.model.translation_inputs import languages_of

from . import BILINGUAL, EBOOKS, HTML, KEY_VALUES, MARKDOWN, MESSAGES, PO, SUBTITLES, XLIFF
from .archived import PARTS, ArchivedDocument
from .catalogues import DEFAULTS, CatalogueOptions, POFile, XLIFFFile
from .commonmark import MarkdownFile
from .document import DocumentFile
from .key_values import KeyValueFile
from .layout import numbered, restored
from .messages import MessageFile
from .plain import Subtitles, TextFile
from .web import EPUB, HTMLFile

logger = logging.getLogger(__name__)

READERS: dict[str, Callable[..., DocumentFile]] = {
    ".txt": TextFile,
    **dict.fromkeys(HTML, HTMLFile),
    **dict.fromkeys(MARKDOWN, MarkdownFile),
    **dict.fromkeys(SUBTITLES, Subtitles),
    **dict.fromkeys(PARTS, ArchivedDocument),
    **dict.fromkeys(EBOOKS, EPUB),
    **dict.fromkeys(PO, POFile),
    **dict.fromkeys(XLIFF, XLIFFFile),
    **dict.fromkeys(MESSAGES, MessageFile),
    **dict.fromkeys(KEY_VALUES, KeyValueFile),
}
SHARE = 20
"""Blocks are translated and noted together, as many as `StreamSettings.window` divided by this."""
MOST_ELEMENTS = 10_000
"""In a block; those of one block are placed together, which takes a second for so many."""
OF_LINES = {
    name: getattr(StreamSettings(), name)
    for name in ("num_return_sequences", "scores", "sample", "alignments", "word_scores", "flags", "review", "long")
}
"""Settings that have no place in a document, and their defaults."""


def read_document(path: Path, options: CatalogueOptions = DEFAULTS) -> DocumentFile:
    """Read a document in the format that its name ends in. Raises `InputError` for another name or content."""
    suffix = path.suffix.lower()
    if options != DEFAULTS and suffix not in BILINGUAL:
        raise InputError(f"--fill, --mark-fuzzy: given, but {path} is no catalogue: {', '.join(BILINGUAL)}")
    if suffix not in READERS:
        raise InputError(f"{path}: unknown format, must be one of {', '.join(READERS)}")
    return READERS[suffix](path, options) if suffix in BILINGUAL else READERS[suffix](path)


def translate_document(
    load: Callable[[], Translator],
    settings: StreamSettings,
    source: Path,
    output: Path | None,
    *,
    made_with: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    inputs: Iterable[Path | str] = (),
) -> None:
    """Translate the text of a document; layout, links and styles stay.

    Until it is complete, `OUTPUT.partial` has the translated blocks. The document is read before `load` is called;
    other arguments are those of `residual_hf.generation.stream.translate_file`.
    """
    for name, default in OF_LINES.items():
        if getattr(settings, name) != default:
            raise InputError(f"--{name.replace('_', '-')}: is for lines of text, not for the document {source}")
    if output is None or output.suffix.lower() != source.suffix.lower():
        raise InputError(refusal("--output", output, f"a file that ends in {source.suffix}, as the document does"))
    options = CatalogueOptions(settings.fill, settings.mark_fuzzy)
    asked = {"source_lang": settings.source_lang, "target_lang": settings.target_lang}
    made_with = {**(made_with or {}), "catalogue": [*options], **asked}
    file = ResumableFile(output, made_with, resume=resume, overwrite=overwrite, inputs=[source, *inputs])
    document = NumberedDocument(source, options)
    with file:
        done = len(document.blocks) - sum(1 for _ in file.remaining(map(json.dumps, document.blocks)))
        translator = load()
        if task_of(translator.model.config) is not TRANSLATION:
            raise InputError(f"{source}: only lines of text, not documents, for a model of one language (summaries)")
        translator.encode([""], *asked.values())  # refuses languages
        total = len(document.blocks)
        with tqdm(desc="translating", unit=" paragraphs", initial=done, total=total, disable=None) as bar:
            for start in range(done, total, share := max(1, settings.window // SHARE)):
                window = document.blocks[start : start + share]
                found = translate_blocks(translator, window, **asked)
                file.append([*map(json.dumps, window)], "".join(f"{json.dumps(block)}\n" for block in found))
                bar.update(len(window))
        known = languages_of(translator.model.config, translator.tokenizer)
        pairs = zip(asked.values(), known, strict=True)
        languages = [code_given(chosen) if chosen else named for chosen, named in pairs]
        file.finish(lambda lines, path: document.write(path, map(json.loads, lines), *languages))


class NumberedDocument:
    """A document whose blocks have numbers as the contents of their elements, as JSON can write them.

    Blocks of more than `MOST_ELEMENTS` elements are not translated.
    """

    def __init__(self, path: Path, options: CatalogueOptions = DEFAULTS):
        self._document = read_document(path, options)
        self._contents: list[list[Any]] = [[] for _ in self._document.blocks]
        self.blocks = list(map(numbered, self._document.blocks, self._contents))
        self._kept = {i for i, contents in enumerate(self._contents) if len(contents) > MOST_ELEMENTS}
        for number in self._kept:
            self.blocks[number] = []
        if self._kept:
            logger.warning("%s: %d paragraphs of more than %d elements stay", path, len(self._kept), MOST_ELEMENTS)

    @property
    def text(self) -> str:
        return "\n".join(map(plain_text, self.blocks))

    def write(self, path: Path, blocks: Iterable[list[Any]], source_lang: str | None, target_lang: str | None) -> None:
        """Write the document with translations of `blocks`, whose elements may be lists. Languages may be unknown."""
        found = [restored(block, contents) for block, contents in zip(blocks, self._contents, strict=True)]
        for number in self._kept:
            found[number] = list(self._document.blocks[number])
        self._document.source_lang, self._document.target_lang = source_lang, target_lang
        self._document.write(path, found)
