# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""BLEU, chrF and TER with their sacreBLEU signatures, and whether two systems differ. Works without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from residual_hf.errors import InputError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

METRICS = ("bleu", "chrf", "chrf++", "ter")


@dataclass(frozen=True)
class MetricScore:
    """A corpus score (0 to 100 for BLEU and chrF, edits per 100 reference words for TER) and how it was measured."""

    value: float
    signature: str


class Scores(dict[str, MetricScore]):
    """Name of a metric -> its score."""

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Plain dictionaries, for JSON."""
        return {name: asdict(metric_score) for name, metric_score in self.items()}


@dataclass(frozen=True)
class TokenizedBLEU:
    """BLEU of text in tokens; as a string it reads like the line that fairseq-generate prints.

    `value` and `precisions` (of 1- to 4-grams) are percentages, the lengths count tokens of the whole corpus.
    """

    value: float
    precisions: tuple[float, ...]
    brevity_penalty: float
    system_length: int
    reference_length: int
    signature: str

    def __str__(self) -> str:
        precisions = "/".join(f"{precision:.1f}" for precision in self.precisions)
        ratio = self.system_length / max(self.reference_length, 1)
        return (
            f"BLEU4 = {self.value:.2f}, {precisions} (BP={self.brevity_penalty:.3f}, ratio={ratio:.3f}, "
            f"syslen={self.system_length}, reflen={self.reference_length})"
        )


@dataclass(frozen=True)
class Comparison:
    """Two systems by one metric under paired bootstrap resampling.

    `a` and `b` are the corpus scores; `a_interval` and `b_interval` the bounds of the 95% interval over the resamples;
    `p_value` the probability of a difference at least as large if the systems were equally good.
    """

    a: float
    b: float
    a_interval: tuple[float, float]
    b_interval: tuple[float, float]
    p_value: float
    signature: str


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    lowercase: bool = False,
    tokenize: str = "13a",
) -> Scores:
    """Corpus scores of detokenised translations, as sacreBLEU (Post 2018) computes them.

    Args:
        hypotheses: one translation per line.
        references: the reference of every line.
        metrics: "bleu", "chrf" (chrF2), "chrf++" (chrF2 with word bigrams), "ter".
        lowercase: compare without case. TER, too, minds the case otherwise, unlike in sacreBLEU's command line.
        tokenize: sacreBLEU's tokenizer for BLEU, such as "13a", "intl", "zh", "ja-mecab", "char", "none".

    Raises:
        InputError: no hypotheses, another number of references, an unknown metric or tokenizer.
    """
    _check_lines("hypotheses", hypotheses, references)
    scores = Scores()
    for name, metric in _make_metrics(metrics, lowercase, tokenize).items():
        value = metric.corpus_score(hypotheses, [references]).score
        scores[name] = MetricScore(value, str(metric.get_signature()))
    return scores


def tokenized_bleu(hyp_tokens: Sequence[str], ref_tokens: Sequence[str]) -> TokenizedBLEU:
    """BLEU4 of lines that are tokenised already, as multi-bleu.perl and fairseq-generate count it: no smoothing, case
    kept, tokens split at spaces.

    Comparable only between systems with the very same tokenisation; for anything else use `score`.

    Raises:
        InputError: no lines, or another number of references.
    """
    from sacrebleu.metrics import BLEU

    _check_lines("hyp_tokens", hyp_tokens, ref_tokens)
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    result = metric.corpus_score(hyp_tokens, [ref_tokens])
    return TokenizedBLEU(
        result.score, tuple(result.precisions), result.bp, result.sys_len, result.ref_len, str(metric.get_signature())
    )


def paired_bootstrap(
    system_a: Sequence[str],
    system_b: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = ("bleu", "chrf"),
    lowercase: bool = False,
    tokenize: str = "13a",
    samples: int = 1000,
) -> dict[str, Comparison]:
    """Whether two systems differ, by paired bootstrap resampling (Koehn 2004) of the lines, as in sacreBLEU.

    Systems with the very same lines get p = 1, where sacreBLEU gives its least p-value.

    Args:
        system_a: translations of the baseline.
        system_b: translations of the other system.
        references: the reference of every line.
        metrics, lowercase, tokenize: as for `score`.
        samples: number of resamples; the least p-value is 1 / (samples + 1). Their seed is sacreBLEU's, 12345 or the
            environment variable SACREBLEU_SEED, and part of the signature.

    Raises:
        InputError: as for `score`, or `samples` below 1.
    """
    from sacrebleu.significance import PairedTest

    _check_lines("system_a", system_a, references)
    _check_lines("system_b", system_b, references)
    if samples < 1:
        raise InputError(f"samples: {samples} given, must be at least 1")
    identical = list(system_a) == list(system_b)
    comparisons = {}
    for name, metric in _make_metrics(metrics, lowercase, tokenize).items():
        test = PairedTest(
            [("a", system_a), ("b", system_b)], {name: metric}, [references], test_type="bs", n_samples=samples
        )
        signatures, columns = test()
        ((title, signature),) = signatures.items()
        a, b = columns[title]
        comparisons[name] = Comparison(
            a=float(a.score),
            b=float(b.score),
            a_interval=(float(a.mean - a.ci), float(a.mean + a.ci)),
            b_interval=(float(b.mean - b.ci), float(b.mean + b.ci)),
            p_value=1.0 if identical else float(b.p_value),
            signature=str(signature),
        )
    return comparisons


def _check_lines(field: str, hypotheses: Sequence[str], references: Sequence[str]) -> None:
    for name, lines in ((field, hypotheses), ("references", references)):
        if isinstance(lines, str):
            raise InputError(f"{name}: one string given, must be a sequence of lines")
    if not hypotheses:
        raise InputError(f"{field}: no lines given, there must be at least one")
    if len(hypotheses) != len(references):
        raise InputError(f"{field}: {len(hypotheses)} lines for {len(references)} references, must be as many")


def _make_metrics(names: Sequence[str], lowercase: bool, tokenize: str) -> dict[str, Metric]:
    from sacrebleu.metrics import BLEU, CHRF, TER

    unknown = [name for name in names if name not in METRICS]
    if isinstance(names, str) or unknown:
        raise InputError(f"metrics: {names!r} given, must be a sequence of names out of {list(METRICS)}")
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"tokenize: {tokenize!r} given, must be one of {sorted(BLEU.TOKENIZERS)}")

    def bleu() -> Metric:
        try:
            return BLEU(lowercase=lowercase, tokenize=tokenize)
        except (ImportError, OSError, RuntimeError) as error:
            raise InputError(f"tokenize: {tokenize!r} cannot be used on this machine: {error}") from error

    makers = {
        "bleu": bleu,
        "chrf": lambda: CHRF(lowercase=lowercase),
        "chrf++": lambda: CHRF(lowercase=lowercase, word_order=2),
        "ter": lambda: TER(case_sensitive=not lowercase),
    }
    return {name: makers[name]() for name in names}
