"""Translation of text with markup inside its sentences, in any format.

A reader of a format makes a list of blocks: a paragraph, a heading or a cell of a table each, which is a list of text
and `Inline` elements. `translate_blocks` gives blocks of the same form, in which each element is around the
translation of its text, and a writer puts them back:

    blocks = [["Wie heißt ", Inline("<b>", ["du"]), "?"], ["Siehe ", Inline("<code>", ["ls -l"], keep=True), "."]]
    translate_blocks(translator, blocks)  # [["What is ", Inline("<b>", ["your"]), " name?"], ...]

`content` is whatever the writer needs: a tag, the properties of a run. An element without pieces is an image, a note
or a comment. With `keep` the text is read with its sentence, but comes back as it was. So do placeholders in text.

Each element occurs once in the result, within the same element as before; so the output is nested properly whatever
the model writes. An element whose text has no counterpart is empty there. Text is split into sentences at line breaks
too: readers of formats in which they mean nothing replace them. `SplitBlocks` has the two steps of `translate_blocks`,
for those who translate sentences of several documents together.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from residual_hf.data.language_names import detected_as
from residual_hf.data.scripts import DIRECTION
from residual_hf.model.alignment import Alignment, rewritten
from residual_hf.model.placeholders import RUN
from residual_hf.model.translation_inputs import languages_of

from .aligned_pair import SentencePair
from .generation_settings import SearchRequest
from .inline import Block, Content, plain_text, read_block, restored
from .inline import Inline as Inline
from .long_text import space_between
from .projection import KeptText, Node, project
from .sentences import split_sentences
from .translator import Hypothesis, Translator, mean_score

KEPT = re.compile(f"({RUN.pattern})")
MOST_PLACEHOLDERS = 1000  # in a block; they are placed together, in quadratic time
LONGEST_SENTENCE = 200  # tokens; models of sentences lose quality beyond

T = TypeVar("T")


def translate_blocks(
    translator: Translator, blocks: Iterable[Block], *, source_lang: str | None = None, target_lang: str | None = None
) -> list[Block]:
    """The translation of blocks, see the module. Models of several languages need the languages."""
    request = SearchRequest(source_lang, target_lang)
    document = document_for(translator, blocks, request)
    return document.join([best for (best,) in sentence_hypotheses(translator, document, request)])


def sentence_hypotheses(
    translator: Translator, document: "SplitBlocks", request: SearchRequest
) -> list[list[Hypothesis]]:
    """Translations as of `Translator.answer` for the sentences of a document, with alignments that `join` needs."""
    found: dict[int, list[Hypothesis]] = {}
    for aligned in (False, True):
        rows = [row for row, needed in enumerate(document.aligned) if (needed or request.alignments) == aligned]
        texts = [document.sentences[row] for row in rows]
        found |= zip(rows, translator.answer(texts, replace(request, alignments=aligned)), strict=True)
    return [found[row] for row in range(len(found))]


def paragraph_hypotheses(
    translator: Translator, lines: Sequence[str], request: SearchRequest
) -> list[list[Hypothesis]]:
    """Translations as of `Translator.answer` for lines that are split into sentences.

    The k-th translation of a line has the k-th of each sentence, and the mean of their scores. What is between the
    sentences, such as numbers and the signs of lists, stays.
    """
    document = document_for(translator, [[line] for line in lines], request)
    found = sentence_hypotheses(translator, document, request)
    ranks = zip(*found, strict=True) if found else [()] * request.num_return_sequences
    results: list[list[Hypothesis]] = [[] for _ in lines]
    for rank in ranks:
        aligned: list[Any] = document.aligned_texts(rank) if request.alignments else []
        texts = [found.target for found in aligned] or map(plain_text, document.join(rank))
        for result, text, parts in zip(results, texts, document.by_block(rank), strict=True):
            score = mean_score(parts) if parts else 0.0
            result.append(Hypothesis(text, score, aligned.pop(0) if aligned else None))
    return results


def document_for(translator: Translator, blocks: Iterable[Block], request: SearchRequest) -> "SplitBlocks":
    """Blocks whose sentences a translator can read."""

    @cache
    def fits(sentence: str) -> bool:
        (ids,), _ = translator.encode([sentence], request.source_lang, request.target_lang)
        return len(ids) <= min(LONGEST_SENTENCE, translator.inputs.positions or LONGEST_SENTENCE)

    language = request.source_lang or languages_of(translator.model.config, translator.tokenizer)[0] or "en"
    return SplitBlocks(blocks, language, fits)


class SplitBlocks:
    """Blocks whose sentences can be replaced.

    Args:
        language: selects the rules of sentence ends.
        fits: whether the model can read a sentence; longer ones are split at spaces.

    Attributes:
        sentences: what is to be translated.
        aligned: for each sentence whether `join` needs its alignment, since markup begins or ends inside of it.
    """

    def __init__(self, blocks: Iterable[Block], language: str, fits: Callable[[str], bool]):
        rules = detected_as(language, ())  # of `de` for `de_DE` and `deu_Latn`
        self._blocks = [_MarkedText(block, rules, fits) for block in blocks]
        found = [sentence for block in self._blocks for sentence in block.sentences]
        self.sentences = [text for text, _ in found]
        self.aligned = [aligned for _, aligned in found]

    def join(self, found: Sequence[Hypothesis]) -> list[Block]:
        """The blocks with a translation for each of `sentences`. Without its alignment, the order of words is kept."""
        return [block.join(own) for block, own in zip(self._blocks, self.by_block(found), strict=True)]

    def aligned_texts(self, found: Sequence[Hypothesis]) -> list[Alignment]:
        """The text of each block and its translation with the alignments of its sentences."""
        return [block.aligned(own) for block, own in zip(self._blocks, self.by_block(found), strict=True)]

    def by_block(self, found: Sequence[T]) -> list[list[T]]:
        """A list for each block, of what is found for each of `sentences`."""
        following = iter(found)
        return [[next(following) for _ in block.sentences] for block in self._blocks]


class _MarkedText:
    """One block: its text, the elements in it, and its sentences."""

    def __init__(self, block: Block, language: str, fits: Callable[[str], bool]):
        self.text, self.root = "", Node(None, 0)
        self._free = MOST_PLACEHOLDERS
        self._contents: list[Content] = []
        self._read(read_block(block, self._contents), self.root)
        corners = self.root.corners()
        kept = [node for node in self.root.descendants() if node.element.keep and node.start < node.end]
        self.pieces: list[tuple[str, bool]] = []
        self.sentences: list[tuple[str, bool]] = []
        start = 0
        for piece, is_sentence in split_sentences(self.text, language, fits):
            end = start + len(piece)
            around = bisect_right(kept, start, key=lambda node: node.start)
            wanted = is_sentence and not (around and end <= kept[around - 1].end)
            self.pieces.append((piece, wanted))
            if wanted:
                marked = bisect_right(corners, start) < bisect_left(corners, end)
                self.sentences.append((piece, marked))
            start = end

    def _read(self, block: Block, parent: Node) -> None:
        for piece in block:
            if isinstance(piece, str):
                parts = KEPT.split(piece, self._free) if self._free else [piece]
                self._free -= len(parts) // 2
                for number, part in enumerate(parts):
                    start = len(self.text)
                    self.text += part
                    if number % 2:
                        parent.children.append(Node(KeptText(part), start, len(self.text)))
            else:
                node = Node(piece, len(self.text))
                self._read(piece.pieces, node)
                if piece.keep:
                    node.children = []
                parent.children.append(node)
        parent.end = len(self.text)

    def join(self, translations: Sequence[Hypothesis]) -> Block:
        return restored(project(self.root, self.text, *self._pairs(translations)), self._contents)

    def aligned(self, translations: Sequence[Hypothesis]) -> Alignment:
        target, pairs = self._pairs(translations)
        places = ((pair, part) for pair in pairs if pair.alignment for part in pair.alignment.parts)
        parts = (part.shifted(pair.source_start, pair.target_start) for pair, part in places)
        found = Alignment(self.text, target, tuple(parts))
        return rewritten(found, plain_text(project(self.root, self.text, target, pairs)))

    def _pairs(self, translations: Sequence[Hypothesis]) -> tuple[str, list[SentencePair]]:
        """The text of the translation, and the pieces of the source and of it."""
        following, start, target = iter(translations), 0, ""
        pairs: list[SentencePair] = []
        space = source = translation = ""
        for piece, is_sentence in self.pieces:
            written, alignment, before = piece, None, translation
            if self.sentences and not is_sentence and not any(map(str.isalnum, piece)):
                written = DIRECTION.sub("", piece)  # marks of the other language
            if is_sentence:
                written, _, alignment = next(following)
                if before and not space.strip():
                    target = target[: len(target) - len(space)] + space_between(source, space, before, written)
                source, space, translation = piece, "", written
            else:
                space += written
            if is_sentence or written.strip():
                pairs.append(SentencePair(piece, start, written, len(target), alignment))
            target += written
            start += len(piece)
        return target, pairs
