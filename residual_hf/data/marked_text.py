"""Text of a recipe as its model learns to read it: with placeholders, translations of terms, and capitals."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from zlib import crc32

from residual_hf.model.placeholders import PLACEHOLDER_TOKENS, EditedText, masked_pair, without_emoji
from residual_hf.model.translation_inputs import in_capitals

from .corpus import ParallelCorpus
from .data_settings import DataSettings
from .glossary import TERM_TOKENS, Glossary


def marking_tokens(data: DataSettings) -> list[str]:
    """The tokens that the vocabulary needs."""
    return [*(PLACEHOLDER_TOKENS if data.placeholders else ()), *(TERM_TOKENS if data.glossary is not None else ())]


def training_edits(data: DataSettings) -> Callable[[ParallelCorpus], ParallelCorpus]:
    """A function that replaces spans and annotates terms in a training corpus, as far as the recipe says so."""
    glossary = None if data.glossary is None else Glossary.read(data.glossary)
    return partial(marked, glossary=glossary, placeholders=data.placeholders, learned=True)


def marked(
    corpus: ParallelCorpus, *, placeholders: bool, glossary: Glossary | None = None, learned: bool = False
) -> ParallelCorpus:
    """A corpus with tokens in the place of spans, see `masked_pair`, and with terms that a `glossary` teaches.

    What is translated with neither (not `learned`) is without emoji, as `TranslationInputs` reads it.
    """
    if not placeholders and glossary is None:
        return corpus if learned else replace(corpus, sources=[without_emoji(text).text for text in corpus.sources])
    pairs = []
    for source, target in corpus:
        terms = [] if glossary is None else glossary.taught(source, target)
        edited = (EditedText(source, terms), EditedText(target))
        if placeholders:
            edited = masked_pair(source, target, terms, learned=learned)
        pairs.append((edited[0].text, edited[1].text))
    return replace(corpus.with_pairs(pairs), raw_targets=corpus.raw_targets)


def with_capitals(corpus: ParallelCorpus, data: DataSettings, seed: int) -> ParallelCorpus:
    """A training corpus in which shares of the pairs are followed by copies of them in other case.

    The choice depends on the seed and the text only, so that a stream or a resumed run makes the same one.
    """
    shares = {"upper": data.upper_case, "title": data.title_case}
    if not any(shares.values()):
        return corpus
    languages, pairs = (corpus.source_lang, corpus.target_lang), []
    is_reversed = data.bidirectional and corpus.tag is None
    for pair in corpus:
        pairs.append(pair)
        for kind, share in shares.items():
            if crc32("\t".join((str(seed), kind, *pair)).encode()) < share * 2**32:
                sides = zip(pair, languages, strict=True)
                source, target = (in_capitals(*side, of_words=kind == "title") for side in sides)
                if source != pair[0] and not (is_reversed and target == pair[1]):  # else a source has two translations
                    pairs.append((source, target))
    return corpus.with_pairs(pairs)
