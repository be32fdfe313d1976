# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""ROUGE (Lin 2004) by the library `rouge_score`, as in `evaluate.load("rouge")`, but without a script from the Hub."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from residual_hf.base.errors import InputError, requires

from .metrics import Lines, check_lines

logger = logging.getLogger(__name__)

TYPES = ("rouge1", "rouge2", "rougeL")


@dataclass(frozen=True)
class Rouge:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L in percent, the means over the summaries; case is ignored.

    The tokens are runs of the letters a to z and of digits: text in other scripts has none, for which a warning is
    logged. The variant `"stem"` compares Porter stems, as ROUGE-1.5.5 does with `-m` and most papers report; the
    default compares words, as `evaluate.load("rouge")` does.

    Raises:
        InputError: another variant, or `rouge_score` is not installed.
    """

    variant: str = ""
    is_fast: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.variant not in ("", "stem"):
            raise InputError(f"evaluation.metrics: 'rouge:{self.variant}' given, must be rouge or rouge:stem")
        with requires("rouge"):
            import rouge_score  # noqa: F401

    def compute(self, predictions: Lines, references: Lines, sources: Lines = ()) -> dict[str, float]:
        """The scores by the names of `TYPES`; sources are not used."""
        from rouge_score.rouge_scorer import RougeScorer

        check_lines("predictions", predictions, references)
        scorer = RougeScorer(TYPES, use_stemmer=self.variant == "stem")
        scores = [scorer.score(*pair) for pair in zip(references, predictions, strict=True)]
        if not any(scorer.score(reference, reference)["rouge1"].fmeasure for reference in references):
            logger.warning("rouge: no reference has a word with the letters a to z; ROUGE ignores all others")
        return {name: 100 * sum(score[name].fmeasure for score in scores) / len(scores) for name in TYPES}
