# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Which scores a corpus gets: those of raw text, or of text that was tokenised before it came to us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from residual_hf.data.corpus import ParallelCorpus
from residual_hf.errors import InputError

from .metrics import score, tokenized_bleu

TEXTS = ("raw", "moses")
FIGURES = ("bleu", "chrf", "tokenized_bleu")
"""What is computed at every evaluation; the last one of text that is tokenised already."""


class Scorer:
    """Scores translations of one corpus against its references.

    Args:
        references: one line per sentence, as the corpus has them.
        text: `"raw"`, or `"moses"` for text that Moses has tokenised (and perhaps escaped, as `&apos;`). Then `bleu`,
            `chrf` and `ter` are sacreBLEU's of the detokenised translations, and `tokenized_bleu` is what
            fairseq-generate prints for the tokens as they are; the two are not comparable.
        language: of the references; Moses' detokeniser asks for it.
        raw_references: references that never were tokenised, for the scores of detokenised text; without them the
            references are detokenised too.
        name: of the corpus.

    Raises:
        InputError: another kind of text, no language for Moses, another number of raw references.
    """

    def __init__(
        self,
        references: Sequence[str],
        *,
        text: str = "raw",
        language: str | None = None,
        raw_references: Sequence[str] | None = None,
        name: str = "",
    ):
        if text not in TEXTS:
            raise InputError(f"text: {text!r} given, must be one of {list(TEXTS)}")
        if text == "moses" and language is None:
            raise InputError("target_lang: missing, which detokenising text asks for")
        if raw_references is not None and len(raw_references) != len(references):
            raise InputError(f"raw_target: {len(raw_references)} lines for {len(references)} sentences")
        self.references = references
        self.text = text
        self.language = language
        self.raw_references = raw_references
        self.name = name

    @cached_property
    def plain_references(self) -> Sequence[str]:
        """The references that sacreBLEU's scores are computed with: text that is not tokenized."""
        if self.text == "raw":
            return self.references
        return self.raw_references or detokenize(self.references, self.language)

    def figures(self, hypotheses: Sequence[str]) -> dict[str, float]:
        """Name of a score to its value: those of `FIGURES`."""
        plain = self._plain(hypotheses)
        scores = {name: s.value for name, s in score(plain, self.plain_references, metrics=("bleu", "chrf")).items()}
        if self.text == "moses":
            scores["tokenized_bleu"] = tokenized_bleu(hypotheses, self.references).value
        return scores

    def report(self, hypotheses: Sequence[str]) -> dict[str, Any]:
        """All scores with their signatures, for JSON."""
        plain, references = self._plain(hypotheses), self.plain_references
        scores: dict[str, Any] = score(plain, references, metrics=("bleu", "chrf", "ter")).as_dict()
        scores["bleu_lowercase"] = score(plain, references, metrics=("bleu",), lowercase=True).as_dict()["bleu"]
        if self.text == "moses":
            result = tokenized_bleu(hypotheses, self.references)
            scores["tokenized_bleu"] = {**asdict(result), "line": str(result)}
            scores["references"] = "raw" if self.raw_references is not None else "detokenized"
        return scores

    def _plain(self, hypotheses: Sequence[str]) -> Sequence[str]:
        return hypotheses if self.text == "raw" else detokenize(hypotheses, self.language)


def make_scorers(corpora: Sequence[ParallelCorpus], text: str) -> list[Scorer]:
    """A scorer for each corpus; if there are several, it is named by the corpus and its languages."""
    return [
        Scorer(
            corpus.targets,
            text=text,
            language=corpus.target_lang,
            raw_references=corpus.raw_targets,
            name="" if len(corpora) == 1 else f"{corpus.name} {corpus.source_lang}-{corpus.target_lang}",
        )
        for corpus in corpora
    ]


def detokenize(lines: Sequence[str], language: str) -> list[str]:
    """Moses-tokenised lines as plain text, with `&apos;` and its like read back (`sacremoses`)."""
    try:
        from sacremoses import MosesDetokenizer
    except ImportError as error:
        raise InputError("text: moses needs the library sacremoses: pip install sacremoses") from error
    moses = MosesDetokenizer(lang=language)
    return [moses.detokenize(line.split(" "), unescape=True) for line in lines]


def by_corpus(scorers: Sequence[Scorer], hypotheses: Sequence[str]) -> Iterator[tuple[Scorer, Sequence[str]]]:
    """The scorers of several corpora, each with its part of the translations of one behind the other."""
    start = 0
    for scorer in scorers:
        yield scorer, hypotheses[start : start + len(scorer.references)]
        start += len(scorer.references)


def mean_figures(scorers: Sequence[Scorer], hypotheses: Sequence[str]) -> dict[str, float]:
    """The means over corpora of their figures, as multilingual models are compared."""
    figures = [scorer.figures(lines) for scorer, lines in by_corpus(scorers, hypotheses)]
    return {name: sum(f[name] for f in figures) / len(figures) for name in figures[0]}
