# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Several corpora as one: both directions of each, and tags that say which language is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.settings import CorpusSpec
from residual_hf.errors import InputError


def language_tag(language: str) -> str:
    """`<2de>` for `de` (Johnson et al. 2017, Google's Multilingual Neural Machine Translation System)."""
    return f"<2{language}>"


def reverse(corpus: ParallelCorpus) -> ParallelCorpus:
    """The corpus from its target to its source language."""
    return replace(
        corpus,
        sources=corpus.targets,
        targets=corpus.sources,
        source_lang=corpus.target_lang,
        target_lang=corpus.source_lang,
        raw_targets=None,
    )


def reverse_spec(spec: CorpusSpec) -> CorpusSpec:
    """Where the reverse of a corpus lies: in the same files."""
    columns = (spec.source_column, spec.target_column)
    if spec.tsv is not None and spec.source_column is None:
        columns = (1, 2)
    return replace(
        spec,
        source=spec.target,
        target=spec.source,
        source_column=columns[1],
        target_column=columns[0],
        source_lang=spec.target_lang,
        target_lang=spec.source_lang,
        raw_target=None,
    )


def in_both_directions(corpora: Iterable[ParallelCorpus]) -> list[ParallelCorpus]:
    """Every corpus and, behind it, its reverse."""
    return [direction for corpus in corpora for direction in (corpus, reverse(corpus))]


def tag_corpus(corpus: ParallelCorpus, side: str) -> ParallelCorpus:
    """The corpus with the tag of its target language before every sentence of a side, `"source"` or `"target"`."""
    if corpus.target_lang is None:
        raise InputError(f"{corpus.name}: target_lang is missing, which a language tag is made of")
    tag = language_tag(corpus.target_lang)
    lines = corpus.sources if side == "source" else corpus.targets
    return replace(corpus, **{f"{side}s": [f"{tag} {line}" for line in lines]})


def concatenate(corpora: Sequence[ParallelCorpus], name: str) -> ParallelCorpus:
    """One corpus after the other; its languages are stated where they are those of all."""
    if len(corpora) == 1:
        return corpora[0]

    def shared(languages: set[str | None]) -> str | None:
        return languages.pop() if len(languages) == 1 else None

    return ParallelCorpus(
        sources=[line for corpus in corpora for line in corpus.sources],
        targets=[line for corpus in corpora for line in corpus.targets],
        name=name,
        source_lang=shared({corpus.source_lang for corpus in corpora}),
        target_lang=shared({corpus.target_lang for corpus in corpora}),
        sha256={path: digest for corpus in corpora for path, digest in corpus.sha256.items()},
        skipped_empty=sum(corpus.skipped_empty for corpus in corpora),
    )
