"""Language tags, tags of synthetic corpora, and both directions of a corpus."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from residual_hf.base.errors import InputError
from residual_hf.model.translation_inputs import language_tags

from .corpus import ParallelCorpus


def language_tag(language: str) -> str:
    """`<2de>` for `de` (Johnson et al. 2017, Google's Multilingual Neural Machine Translation System)."""
    return f"<2{language}>"


def directions(corpus: ParallelCorpus, bidirectional: bool) -> list[ParallelCorpus]:
    """The corpus and, if `bidirectional`, its reverse."""
    back = replace(
        corpus,
        sources=corpus.targets,
        targets=corpus.sources,
        source_lang=corpus.target_lang,
        target_lang=corpus.source_lang,
        raw_targets=None,
    )
    return [corpus, back] if bidirectional else [corpus]


def check_tagged(lines: Iterable[str], tokenizer: Any, subject: str) -> None:
    """Raise `InputError`, which names `subject`, unless all lines start with a language tag of the vocabulary."""
    tags = tuple(language_tags(tokenizer).values())
    if not all(line.startswith(tags) for line in lines):
        raise InputError(f"{subject} without a language tag, must start with one, such as {tags[0]}")


def tag_corpus(corpus: ParallelCorpus, side: str | None) -> ParallelCorpus:
    """The corpus with its own tag before every source, and with the tag of its target language before every sentence
    of `side`: `"source"`, `"target"` or None.

    Raises `InputError` for language tags and a corpus without a target language.
    """
    if side is not None and corpus.target_lang is None:
        raise InputError(f"{corpus.name}: target_lang missing, which language tags need")
    language = "" if corpus.target_lang is None else language_tag(corpus.target_lang)
    source = (language if side == "source" else "") + (corpus.tag or "")
    target = language if side == "target" else ""
    return replace(corpus, sources=_prefixed(corpus.sources, source), targets=_prefixed(corpus.targets, target))


def _prefixed(lines: list[str], tags: str) -> list[str]:
    return [f"{tags} {line}" for line in lines] if tags else lines


def training_pairs(
    corpus: ParallelCorpus,
    bidirectional: bool,
    tagged_side: str | None,
    edited: Callable[[ParallelCorpus], ParallelCorpus] = lambda corpus: corpus,
) -> ParallelCorpus:
    """The corpus to train on: `edited`, with tags and, if `bidirectional`, every pair followed by its reverse.

    A corpus with a tag of its own has synthetic sources: it is not reversed, which would make them targets.
    """
    both = bidirectional and corpus.tag is None
    views = [tag_corpus(edited(direction), tagged_side) for direction in directions(corpus, both)]
    return views[0] if len(views) == 1 else corpus.with_pairs(chain.from_iterable(zip(*views, strict=True)))


def concatenate(corpora: Sequence[ParallelCorpus], name: str) -> ParallelCorpus:
    """The pairs of all corpora, in order."""
    sources = [line for corpus in corpora for line in corpus.sources]
    return ParallelCorpus(sources, [line for corpus in corpora for line in corpus.targets], name)
