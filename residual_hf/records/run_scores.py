"""Scores of a run by corpus, and its comparison with another run."""

import logging
from dataclasses import dataclass
from typing import Any

from residual_hf.base.errors import InputError
from residual_hf.evaluation.metrics import METRICS, Comparison, paired_bootstrap, tokenizer_of

from .run_folder import Run

logger = logging.getLogger(__name__)

LABELS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "bleu_lowercase": "BLEU, lower case",
    "tokenized_bleu": "BLEU of the tokens",
    "wer": "WER",
    "cer": "CER",
}


@dataclass(frozen=True)
class ScoreTable:
    """The scores of a corpus as `metrics.json` has them, and their 95% intervals."""

    split: str
    corpus: str
    figures: dict[str, Any]
    intervals: dict[str, tuple[float, float]]


def score_tables(run: Run, comparisons: dict[str, Comparison]) -> list[ScoreTable]:
    """One table for each corpus of the test and validation sets, and one for the means of several."""
    tables = []
    for split in ("test", "valid"):
        figures = run.metrics.get(split) or {}
        names = " + ".join(corpus.name for corpus in getattr(run.record.data, split)) or split
        reports = figures.get("corpora") or ({names: figures} if figures else {})
        if len(reports) > 1:
            reports = {**reports, f"mean of {len(reports)} corpora": figures}
        shown = comparisons if split == run.split else {}
        intervals = {name: pair.b_interval for name, pair in shown.items()}
        tables += [ScoreTable(split, corpus, report, intervals) for corpus, report in reports.items()]
    return tables


def compare(run: Run, baseline: Run | None) -> dict[str, Comparison]:
    """Metric -> intervals and p-value; without a baseline the run is compared with itself, for its intervals.

    Raises `InputError` for a baseline that cannot be compared.
    """
    other, split = baseline or run, run.split
    if split not in other.metrics:
        raise InputError(f"baseline: {other.folder} has no scores of data.{split}")
    if "corpora" in run.metrics[split]:
        if baseline is not None:
            raise InputError(f"baseline: data.{split} of {run.folder} has several corpora, must be one")
        return {}
    names = [name for name in METRICS if name in run.metrics[split] and name in other.metrics[split]]
    try:
        (ours, references), (theirs, others) = run.scored_text(split), other.scored_text(split)
    except InputError as error:
        if baseline is not None:
            raise
        if names:
            logger.warning("the card has no confidence intervals: %s", error)
        return {}
    if others != references:
        raise InputError(f"baseline: {other.folder} was scored on other references of data.{split}")
    for one, lines in ((run, ours), (other, theirs)):
        if len(lines) != len(references):
            raise InputError(
                f"{one.folder}: {split}.hypotheses.txt has {len(lines)} lines, but {split}.references.txt "
                f"{len(references)}: the files are not of the same run"
            )
    tokenize, theirs_by = (
        tokenizer_of(one.metrics[split].get("bleu", {}).get("signature", "")) for one in (run, other)
    )
    if tokenize != theirs_by:
        raise InputError(f"baseline: {other.folder} has BLEU of the tokenizer {theirs_by!r}, must be {tokenize!r}")
    comparisons = {
        name: pair
        for name, pair in paired_bootstrap(theirs, ours, references, metrics=names, tokenize=tokenize).items()
        if all(has_same_unit(pair, one.metrics[split][name]) for one in (run, other))
    }
    for name, pair in comparisons.items():
        for one, value in ((other, pair.a), (run, pair.b)):
            recorded = one.metrics[split][name]["value"]
            if abs(value - recorded) > 0.005:
                raise InputError(
                    f"{one.folder}: {split}.hypotheses.txt has {name} {value:.2f}, but metrics.json {recorded:.2f}: "
                    "the files are not of the same run"
                )
    return comparisons


def has_same_unit(pair: Comparison, recorded: dict[str, Any]) -> bool:
    """Whether a recorded TER is of characters as it is today: before, it could be of words in any script."""
    return ("asian:yes" in pair.signature) == ("asian:yes" in recorded.get("signature", ""))
