"""Texts and documents of clients as sentences, and their translations as texts and documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from residual_hf.base.archives import open_archive
from residual_hf.base.errors import InputError, requires
from residual_hf.documents import ARCHIVES
from residual_hf.generation.html_text import HTMLText
from residual_hf.generation.markup import Block, SplitBlocks, plain_text
from residual_hf.generation.translator import Hypothesis, mean_score
from residual_hf.model.alignment import Alignment

SAMPLE = 10_000  # characters whose language is detected
UNPACKED = 10  # times the allowed size that archives may have unpacked; files of text have this fraction of it


class Found(NamedTuple):
    """Translations of a sentence, best first, and suspicions about the best."""

    hypotheses: list[Hypothesis]
    flags: set[str]


@dataclass(frozen=True)
class Translation:
    """Translations of one text.

    Attributes:
        texts: the best translation, and alternatives that differ from it.
        scores: for each of `texts` the mean over sentences of the scores of the search; empty without alternatives.
        flags: what `checks.suspicions` says of the best translations of its sentences; "repetition" and "copy" also if
            a second search replaced a translation because of them.
        alignments: for each of `texts` the links of words, in Pharaoh format; empty unless they are asked for.
        word_scores: for each of `texts` the probability of each word.
    """

    texts: list[str]
    scores: list[float]
    flags: list[str]
    alignments: list[str] = field(default_factory=list)
    word_scores: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Texts:
    """Texts to translate, HTML with `markup`."""

    texts: Sequence[str]
    source: str
    markup: bool = False
    alternatives: int = 0
    alignments: bool = False


class TextLayout:
    """The sentences of texts, each with whether it needs its alignment; `fits` is that of `SplitBlocks`."""

    def __init__(self, given: Texts, fits: Callable[[str], bool]):
        self._given = given
        self._documents: list[tuple[SplitBlocks, Callable[[list[Block]], str]]] = []
        self.sentences: list[tuple[str, bool]] = []
        for text in given.texts:
            layout = HTMLText(text) if given.markup else None
            document = SplitBlocks([[text]] if layout is None else layout.blocks, given.source, fits)
            render = (lambda blocks: plain_text(blocks[0])) if layout is None else layout.render
            self._documents.append((document, render))
            aligned = (needed or given.alignments for needed in document.aligned)
            self.sentences += zip(document.sentences, aligned, strict=True)

    def joined(self, found: Sequence[Found]) -> list[Translation]:
        """The translation of each text, from those of `sentences`."""
        following = iter(found)
        return [
            self._joined(document, render, [next(following) for _ in document.sentences])
            for document, render in self._documents
        ]

    def _joined(
        self, document: SplitBlocks, render: Callable[[list[Block]], str], found: Sequence[Found]
    ) -> Translation:
        """The k-th translation of a text has the k-th hypothesis of each sentence, or its last one."""
        mean_scores: dict[str, float] = {}
        aligned: list[Alignment] = []
        for rank in range(1 + self._given.alternatives):
            chosen = [hypotheses[min(rank, len(hypotheses) - 1)] for hypotheses, _ in found]
            text = render(document.join(chosen))
            if text not in mean_scores:
                mean_scores[text] = mean_score(chosen) or 0.0
                aligned += document.aligned_texts(chosen) if self._given.alignments else []
        return Translation(
            list(mean_scores),
            list(mean_scores.values()) if self._given.alternatives else [],
            sorted({flag for _, flags in found for flag in flags}),
            [str(alignment) for alignment in aligned],
            [alignment.word_scores for alignment in aligned],
        )


@dataclass(frozen=True)
class File:
    """A document to translate to `output`, if it has at most so many bytes and characters."""

    path: Path
    output: Path
    most_bytes: int
    most_characters: int
    source: str = ""
    target: str = ""


class FileLayout:
    """The sentences of a document, as those of `TextLayout`. Raises `InputError` as `read` does."""

    def __init__(self, given: File, fits: Callable[[str], bool]):
        self._given, self._file = given, read(given)
        self._document = SplitBlocks(self._file.blocks, given.source, fits)
        self.sentences = list(zip(self._document.sentences, self._document.aligned, strict=True))

    def joined(self, found: Sequence[Found]) -> None:
        """Write the document with the translations of `sentences`."""
        blocks = self._document.join([hypotheses[0] for hypotheses, _ in found])
        self._file.write(self._given.output, blocks, self._given.source, self._given.target)


class FileSample:
    """The beginning of the text of a document as one sentence, which is not translated."""

    def __init__(self, given: File, fits: Callable[[str], bool]):
        self.sentences = [(read(given).text[:SAMPLE], False)]


def read(given: File) -> Any:
    """A document of the allowed size. Raises `InputError` for another one."""
    with requires("documents"):
        from residual_hf.documents.translation import NumberedDocument
    path = given.path
    try:
        if path.suffix.lower() in ARCHIVES:
            with open_archive(path, UNPACKED * given.most_bytes):
                pass
        elif (size := path.stat().st_size) > (most := given.most_bytes // UNPACKED):
            raise InputError(f"{path}: has {size} bytes, must have at most {most}")
        document = NumberedDocument(path)
        if (length := len(document.text)) > given.most_characters:
            raise InputError(f"{length} characters given, must be at most {given.most_characters}")
    except InputError as error:
        raise InputError(f"file: {str(error).replace(str(path), path.name)}") from error
    return document
