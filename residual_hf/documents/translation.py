# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Translation of a document, which can be interrupted and continued."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from residual_hf.base.errors import InputError
from residual_hf.generation.generation_settings import StreamSettings
from residual_hf.generation.markup import Block, Inline, plain_text, translate_blocks
from residual_hf.generation.resumable_file import ResumableFile
from residual_hf.generation.translator import Translator
from residual_hf.model.translation_inputs import languages_of

from .catalogues import DEFAULTS, CatalogueOptions
from .formats import read_document
from .literal_text import LINE

logger = logging.getLogger(__name__)

SHARE = 20
"""Blocks are translated and noted together, as many as `StreamSettings.window` divided by this."""
MOST_ELEMENTS = 10_000
"""In a block; those of one block are placed together, which takes a second for so many."""
OF_LINES = {
    name: getattr(StreamSettings(), name)
    for name in ("num_return_sequences", "scores", "sample", "alignments", "word_scores", "flags", "review")
}
"""Settings that have no place in a document, and their defaults."""


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

    Raises:
        InputError: the document cannot be read, the output exists or has another format, or cannot be continued.
    """
    for name, default in OF_LINES.items():
        if getattr(settings, name) != default:
            raise InputError(f"--{name.replace('_', '-')}: is for lines of text, not for the document {source}")
    if output is None:
        raise InputError(f"--output: missing, required to translate the document {source}")
    if output.suffix.lower() != source.suffix.lower():
        raise InputError(f"--output: {output} given, must end in {source.suffix}, as the input does")
    options = CatalogueOptions(settings.fill, settings.mark_fuzzy)
    made_with = {
        **(made_with or {}),
        "catalogue": [*options],
        "source_lang": settings.source_lang,
        "target_lang": settings.target_lang,
    }
    file = ResumableFile(output, made_with, resume=resume, overwrite=overwrite, inputs=[source, *inputs])
    document = NumberedDocument(source, options)
    with file:
        done = len(document.blocks) - sum(1 for _ in file.remaining(map(json.dumps, document.blocks)))
        translator = load()
        languages = [settings.source_lang, settings.target_lang]
        translator.encode([""], *languages)  # refuses languages
        total = len(document.blocks)
        with tqdm(desc="translating", unit=" paragraphs", initial=done, total=total, disable=None) as bar:
            for start in range(done, total, share := max(1, settings.window // SHARE)):
                window = document.blocks[start : start + share]
                found = translate_blocks(
                    translator, window, source_lang=settings.source_lang, target_lang=settings.target_lang
                )
                file.append([*map(json.dumps, window)], "".join(f"{json.dumps(block)}\n" for block in found))
                bar.update(len(window))
        known = languages_of(translator.model.config, translator.tokenizer)
        languages = [chosen or named for chosen, named in zip(languages, known, strict=True)]
        file.finish(lambda lines, path: document.write(path, map(json.loads, lines), *languages))


class NumberedDocument:
    """A document whose blocks have numbers as the contents of their elements, as JSON can write them.

    Blocks of more than `MOST_ELEMENTS` elements are not translated.
    """

    def __init__(self, path: Path, options: CatalogueOptions = DEFAULTS):
        self._document = read_document(path, options)
        self._contents: list[list[Content]] = [[] for _ in self._document.blocks]
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


LINES = ("\n", LINE)
"""Characters before the start of a line."""
AFTER_WORD = re.compile(r"(?:[^\W\d_][^\w\s]*|\d)\Z")
NOTE = re.compile(r"[\d*†‡§,–-]{1,5}")
"""What an element has that the model does not read: a number directly after a word."""


class Content(NamedTuple):
    """The content of an element, and whether it is without text: between two spaces, or after a word, as notes are.

    Of a note with text, `value` is the element.
    """

    value: Any
    is_word: bool = False
    follows_word: bool = False


def numbered(block: Block, contents: list[Content], *, at_start: bool = True) -> Block:
    """A block whose elements have numbers as content, which are the places of their contents in a list.

    The model reads one space where an element without text is between two, and none where one is before the first
    word of a paragraph (`at_start`).
    """
    found: Block = []
    for previous, piece, following in zip(["", *block], block, [*block[1:], ""], strict=False):
        last = found[-1] if found else ""
        if isinstance(piece, str):
            is_word = isinstance(last, Inline) and contents[last.content].is_word
            found.append(piece[1:] if is_word else piece)
            continue
        before, after = plain_text([previous])[-1:], plain_text([following])[:1]
        if NOTE.fullmatch(plain_text([piece])) and AFTER_WORD.search(plain_text([previous])) and not after.isalnum():
            piece = Inline(piece)
        empty = plain_text([piece]) == ""
        if (at_start and not found) or before in LINES:
            before = " "
        follows_word = empty and before.strip() != "" and not after.isalnum()
        number = len(contents)
        contents.append(Content(piece.content, empty and before == after == " ", follows_word))
        found.append(Inline(number, numbered(piece.pieces, contents, at_start=False), piece.keep))
    return found


def restored(block: list[Any], contents: list[Content]) -> Block:
    """A block with the contents of its elements, after `numbered` and JSON, which makes lists of them."""
    found: Block = []
    space = ""
    for piece, following in zip(block, [*block[1:], None], strict=False):
        if isinstance(piece, str):
            found.append(space + piece)
            space = ""
            continue
        if space:
            found.append(space)
            space = ""
        number, pieces, keep = piece
        content, last = contents[number], found[-1] if found else ""
        if isinstance(last, str) and last[-1:] in ("", " ", *LINES):
            moves = content.follows_word and bool(found)
            space = " " * ((content.is_word or moves) and following is not None)
            if moves:
                found[-1] = last[:-1]
        elif content.is_word:
            found.append(" ")
        is_note = isinstance(content.value, Inline)
        found.append(content.value if is_note else Inline(content.value, restored(pieces, contents), keep))
    return found
