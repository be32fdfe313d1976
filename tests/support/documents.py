"""Documents that are translated without a model."""

import difflib
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from residual_hf.documents import translation
from residual_hf.generation.markup import SplitBlocks
from residual_hf.generation.translator import Hypothesis
from residual_hf.model.configuration_residual import ResidualConfig


class UpperCase:
    """What `translate_document` needs of a translator."""

    model = SimpleNamespace(config=ResidualConfig(source_lang="eng_Latn", target_lang="deu_Latn"))
    tokenizer = None

    def encode(self, sentences: Any, *languages: Any) -> None:
        pass


def in_upper_case(translator: Any, blocks: Any, *, write: Any = str.upper, **languages: Any) -> list:
    """`translate_blocks` of a model that writes upper case; words keep their order."""
    document = SplitBlocks(blocks, "en", lambda sentence: True)
    return document.join([Hypothesis(write(sentence), None) for sentence in document.sentences])


unchanged = partial(in_upper_case, write=str)


def rewritten(monkeypatch: Any, source: Path) -> Path:
    """The path of a document whose sentences are written as they are."""
    return upper_cased(monkeypatch, source, translate=unchanged, overwrite=True)


def upper_cased(
    monkeypatch: Any, source: Path, settings: Any = None, translate: Any = in_upper_case, **options: Any
) -> Path:
    """The path of a document that is translated into upper case."""
    monkeypatch.setattr(translation, "translate_blocks", translate)
    target = source.with_name(f"upper-{source.name}")
    chosen = translation.StreamSettings(**settings or {})
    translation.translate_document(UpperCase, chosen, source, target, **options)
    return target


def upper_text(monkeypatch: Any, source: Path, content: str) -> str:
    """The content of a document that is written, and translated into upper case."""
    source.write_bytes(content.encode())
    return upper_cased(monkeypatch, source).read_bytes().decode()


def with_marks(text: str) -> tuple[str, str]:
    """A text without the marks « and », and with what is between them in upper case, as it is translated here."""
    return re.sub("[«»]", "", text), re.sub("«(.*?)»", lambda found: found[1].upper(), text)


def replaced(source: Path, content: str, write: Callable[[str], str]) -> str:
    """The content of a document that is written, when `write` has translated its texts one by one in their order."""

    def translated(block: list) -> list:
        return [
            write(piece)
            if isinstance(piece, str)
            else piece._replace(pieces=piece.pieces if piece.keep else translated(piece.pieces))
            for piece in block
        ]

    source.write_text(content)
    document = translation.read_document(source)
    document.write(source, [*map(translated, document.blocks)])
    return source.read_text()


def changed_by_identity(source: Path) -> list[str]:
    """The lines that change in a document whose translation is its text."""
    document = translation.NumberedDocument(source)
    target = source.with_name(f"same-{source.name}")
    blocks = json.loads(json.dumps(unchanged(None, document.blocks)))
    document.write(target, blocks, None, None)
    before, after = (
        path.read_bytes().decode("utf-8", "surrogateescape").splitlines(True) for path in (source, target)
    )
    return [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
