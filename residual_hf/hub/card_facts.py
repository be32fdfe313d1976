# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Everything that a card says, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass

from residual_hf.evaluation.metrics import Comparison

from .emissions import Emissions
from .finished_run import FinishedRun

LABELS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "bleu_lowercase": "BLEU, lower case",
    "tokenized_bleu": "BLEU of the tokens",
}


@dataclass(frozen=True)
class Card:
    """A run with what its folder does not say.

    `comparisons` holds the bootstrap of the scores of `run.split`, against `baseline` if there is one; without the
    references it is empty and `no_interval` says why.
    """

    run: FinishedRun
    name: str
    license: str | None
    data_license: str | None
    baseline: FinishedRun | None
    comparisons: dict[str, Comparison]
    no_interval: str | None
    emissions: Emissions | None
    picture: str | None
