"""Scores of translated corpora: of raw text, or of text that Moses has tokenized."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any
from unicodedata import is_normalized

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus, numbered
from residual_hf.data.scripts import WITHOUT_SPACES
from residual_hf.data.task import TRANSLATION, Task
from residual_hf.data.tokenizer import join_subwords

from .metrics import (
    METRICS,
    EvaluationSettings,
    corpus_scores,
    detokenize,
    has_spaces,
    is_written_in,
    tokenized_bleu,
    warn_once,
)
from .sentence_metrics import ERROR_RATES, ErrorRate, SentenceMetric
from .translation_metric import add_results, load_metric

logger = logging.getLogger(__name__)

SAMPLE = 100  # references whose script is looked at

FIGURES = ("bleu", "chrf", "tokenized_bleu")
"""Computed at every evaluation, as are fast metrics; `tokenized_bleu` for tokenized text only. Transcripts have
`ERROR_RATES` instead."""


@dataclass(eq=False)
class Scorer:
    """Scores translations of a corpus.

    Args:
        corpus: its targets are the references.
        pretokenized: "moses" if Moses has tokenized the corpus (and perhaps escaped it, as in `&apos;`). Then `bleu`,
            `chrf` and `ter` are computed on detokenized text, with `corpus.raw_targets` as references if there are
            any, and `tokenized_bleu` is what fairseq-generate prints for the tokens; the two are not comparable.
        tokenize: sacreBLEU's tokenizer for BLEU; None: that of the target language.
        metrics: further metrics for `report`, by name.
        name: in reports of several corpora.
    """

    corpus: ParallelCorpus
    pretokenized: str | None = None
    tokenize: str | None = None
    metrics: Mapping[str, SentenceMetric] = field(default_factory=dict)
    lowercase: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if self.pretokenized and self.corpus.target_lang is None:
            raise InputError("target_lang: missing, required to detokenize text")
        self._plain([], self.corpus.target_lang)  # needs a library
        self._check()

    def _check(self) -> None:
        """Raise `InputError` for a setting that cannot be used, and warn about references."""
        self.tokenizer = EvaluationSettings(tokenize=self.tokenize).tokenizer_for(self.corpus.target_lang)
        self._warn_about_references()

    def _warn_about_references(self) -> None:
        """Warn if BLEU would take each sentence of the references for one word, or their subwords for words."""
        name, sample = self.corpus.name, self.corpus.targets[:SAMPLE]
        if any(join_subwords(line) != line for line in sample):
            logger.warning(
                f"{name}: the references are segmented (@@), but translations have complete words: join the subwords, "
                "for example by sed -r 's/@@( |$)//g'"
            )
        if not is_normalized("NFC", "".join(sample)):
            logger.warning(
                f"{name}: the references have letters with accents or dots in a form other than NFC, which most "
                "tokenizers write: metrics may count their words as wrong; normalize them, for example by uconv -x nfc"
            )
        unspaced = is_written_in(WITHOUT_SPACES, sample)
        if unspaced and self.tokenizer in ("13a", "intl") and not self.pretokenized:
            logger.warning(
                f"{name}: BLEU with the tokenizer {self.tokenizer} has no meaning for references without spaces: set "
                f"target_lang ({self.corpus.target_lang}), or tokenize to zh, ja-mecab or char"
            )

    @cached_property
    def plain_references(self) -> Sequence[str]:
        """The references for sacreBLEU: text that is not tokenized."""
        return self.corpus.raw_targets or self._plain(self.corpus.targets, self.corpus.target_lang)

    def figures(self, hypotheses: Sequence[str]) -> dict[str, float]:
        """The values of `FIGURES` and of fast metrics such as ROUGE, by name."""
        figures = {name: score["value"] for name, score in self._compute(hypotheses, ("bleu", "chrf")).items()}
        if self.pretokenized:
            figures["tokenized_bleu"] = tokenized_bleu(hypotheses, self.corpus.targets, self.lowercase).value
        for name, metric in self.metrics.items():
            if metric.is_fast:
                add_results(figures, name, self._further(metric, hypotheses))
        return figures

    def report(self, hypotheses: Sequence[str], *, baseline: Sequence[str] | None = None) -> dict[str, Any]:
        """All scores with their signatures, for JSON; the results of further metrics are below `metrics`.

        A further metric that fails is left out and logged.

        `baseline`: translations of another system, to compare with by paired bootstrap.
        """
        scores: dict[str, Any] = self._compute(hypotheses, METRICS, baseline)
        if self.pretokenized:
            result = tokenized_bleu(hypotheses, self.corpus.targets, self.lowercase)
            scores["tokenized_bleu"] = {**asdict(result), "line": str(result)}
            scores["references"] = "detokenized" if self.corpus.raw_targets is None else "raw"
        if self.metrics:
            scores["metrics"] = {}
            for name, metric in self.metrics.items():
                try:
                    scores["metrics"][name] = self._further(metric, hypotheses)
                except InputError as error:  # the translations may have taken hours
                    logger.error("%s is left out: %s", name, error)
        return scores

    def _further(self, metric: SentenceMetric, hypotheses: Sequence[str]) -> dict[str, float]:
        ours, references = self._plain(hypotheses, self.corpus.target_lang), self.plain_references
        if self.lowercase:
            ours, references = ([line.lower() for line in lines] for lines in (ours, references))
        return metric.compute(ours, references, self._plain(self.corpus.sources, self.corpus.source_lang))

    def _compute(
        self, hypotheses: Sequence[str], metrics: Sequence[str], baseline: Sequence[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        ours = self._plain(hypotheses, self.corpus.target_lang)
        theirs = None if baseline is None else self._plain(baseline, self.corpus.target_lang)
        return corpus_scores(
            ours, self.plain_references, metrics, self.tokenizer, lowercase=self.lowercase, baseline=theirs
        )

    def _plain(self, lines: Sequence[str], language: str | None) -> Sequence[str]:
        return detokenize(lines, language) if self.pretokenized else lines


class TranscriptScorer(Scorer):
    """Scores transcripts by `ERROR_RATES`, and by further metrics."""

    def _check(self) -> None:
        """No sacreBLEU. Warn if there are no words to count."""
        if not has_spaces(self.corpus.target_lang):
            warn_once(
                f"WER has no meaning for a language without spaces between words ({self.corpus.target_lang}): "
                "see CER; with training.metric: cer it chooses the checkpoint"
            )

    def _compute(self, hypotheses: Sequence[str], *_: Any) -> dict[str, dict[str, Any]]:
        return {
            rate.unit: {"value": rate.compute(hypotheses, self.corpus.targets)[rate.unit], "signature": rate.signature}
            for rate in map(ErrorRate, ERROR_RATES)
        }


def make_scorers(
    corpora: Sequence[ParallelCorpus],
    pretokenized: str | None,
    settings: EvaluationSettings,
    *,
    lowercase: bool = False,
    task: Task = TRANSLATION,
) -> list[Scorer]:
    """A scorer of the task for each corpus; of several, with the name of the corpus and the languages of text."""
    metrics = {name: load_metric(name) for name in settings.metrics if name not in task.scores}
    options: dict[str, Any] = {"tokenize": settings.tokenize, "metrics": metrics, "lowercase": lowercase}
    names = [""]
    if len(corpora) > 1:
        languages = [f" {each.source_lang}-{each.target_lang}" if task.has_source_text else "" for each in corpora]
        names = numbered([corpus.name + pair for corpus, pair in zip(corpora, languages, strict=True)])
    kind = Scorer if task.has_source_text else TranscriptScorer
    return [
        kind(corpus, pretokenized=pretokenized, name=name, **options)
        for corpus, name in zip(corpora, names, strict=True)
    ]


def by_corpus(scorers: Sequence[Scorer], hypotheses: Sequence[str]) -> Iterator[tuple[Scorer, Sequence[str]]]:
    """Each scorer with the translations of its corpus, from those of all corpora in order."""
    start = 0
    for scorer in scorers:
        yield scorer, hypotheses[start : start + len(scorer.corpus)]
        start += len(scorer.corpus)


def mean_figures(scorers: Sequence[Scorer], hypotheses: Sequence[str]) -> dict[str, float]:
    """The mean of the figures of each corpus."""
    figures = [scorer.figures(lines) for scorer, lines in by_corpus(scorers, hypotheses)]
    return {name: sum(f[name] for f in figures) / len(figures) for name in figures[0]}


def full_report(scorers: Sequence[Scorer], hypotheses: Sequence[str]) -> dict[str, Any]:
    """The report of a corpus; of several, see `mean_of_reports`."""
    return mean_of_reports({scorer.name: scorer.report(lines) for scorer, lines in by_corpus(scorers, hypotheses)})


def mean_of_reports(reports: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The report of a corpus; of several, the means of `FIGURES`, and the report of each below `corpora`."""
    if len(reports) == 1:
        return next(iter(reports.values()))
    means: dict[str, Any] = {}
    for figure in (*FIGURES, *ERROR_RATES):
        scores = [report[figure] for report in reports.values() if figure in report]
        if len(scores) < len(reports):
            continue
        means[figure] = {"value": sum(score["value"] for score in scores) / len(scores)}
        if signatures := dict.fromkeys(score["signature"] for score in scores if "signature" in score):
            means[figure]["signature"] = " / ".join(signatures)
    return {**means, "corpora": dict(reports)}
