# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Model cards generated from the folder of a training run: what is not known is left out."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from residual_hf.errors import InputError
from residual_hf.evaluation.metrics import METRICS, Comparison, paired_bootstrap
from residual_hf.files import write_atomically

from .card_check import HUB_ID, check_metadata, validate_card
from .card_facts import LABELS, Card
from .card_plot import learning_curve
from .card_text import card_text
from .emissions import estimate
from .finished_run import FinishedRun, read_run

__all__ = ["validate_card", "write_card"]

logger = logging.getLogger(__name__)

HUB_METRICS = ("bleu", "chrf", "ter")
HUB_SPLITS = {"valid": "validation", "test": "test"}
NO_HUB_DATASET = "local-files"  # the Hub wants a type; these files have no id there


def write_card(
    run_folder: str | os.PathLike,
    *,
    model_name: str | None = None,
    baseline: str | os.PathLike | None = None,
    license: str | None = None,
    data_license: str | None = None,
    datasets: Sequence[str] = (),
    carbon_intensity: float | None = None,
    device_power: float | None = None,
    output: str | os.PathLike | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the card of a finished run (`residual-hf train`) and the picture of its learning curve; returns its path.

    The picture needs matplotlib; without it the card says where the figures are. Confidence intervals and the
    comparison need the references of the run's recipe, so run it where the recipe was run.

    Args:
        model_name: None takes the name of the folder.
        baseline: folder of another run on the same test set, to compare with by paired bootstrap.
        license: of the weights, an identifier of the Hub such as `apache-2.0`. None: not stated.
        data_license: of the training data, any text. None: not stated.
        datasets: ids on the Hub of the training data; those that the recipe names are found without.
        carbon_intensity, device_power: grams of CO2 equivalent per kWh and watts of one device, see `estimate`.
        output: a Markdown file; None is `model/README.md` of the run, with `training_curve.png` beside it, for another
            file `NAME.png` beside `NAME.md`.
        overwrite: replace a card that is there.

    Raises:
        InputError: a folder that is not a finished run, a card that exists, a baseline that cannot be compared, or
            metadata that the Hub would refuse, naming the field.
    """
    run = read_run(run_folder)
    path = run.folder / "model" / "README.md" if output is None else Path(output)
    picture_path = path.with_name("training_curve.png" if output is None else f"{path.stem}.png")
    if path.suffix != ".md":
        raise InputError(f"output: {path} given, must be a file *.md")
    if path.exists() and not overwrite:
        raise InputError(f"output: {path} exists; use --overwrite or another file")
    name = model_name or run.folder.resolve().name
    if not HUB_ID.fullmatch(name):
        raise InputError(f"model_name: {name!r} given; allowed is a name as on the Hub: letters, digits, . _ -")
    emissions = estimate(run, carbon_intensity, device_power)
    other = None if baseline is None else read_run(baseline)
    comparisons, no_interval = _bootstrap(run, other)
    picture = learning_curve(run.curve)
    card = Card(
        run=run,
        name=name,
        license=license,
        data_license=data_license,
        baseline=other,
        comparisons=comparisons,
        no_interval=no_interval,
        emissions=emissions,
        picture=picture_path.name if picture else None,
    )
    metadata = card_metadata(card, datasets)
    check_metadata(metadata.to_dict())
    path.parent.mkdir(parents=True, exist_ok=True)
    if picture:
        write_atomically(picture_path, picture)
    write_atomically(path, f"---\n{metadata.to_yaml()}\n---\n\n{card_text(card)}")
    return path


def card_metadata(card: Card, datasets: Sequence[str] = ()) -> ModelCardData:
    """What the Hub reads of a card."""
    run = card.run
    languages = (language for direction in run.directions for language in direction)
    codes = (re.fullmatch(r"([a-z]{2,3})([-_].*)?", language) for language in languages)
    named = [*datasets, *filter(None, map(_hub_dataset, run.corpora("train")))]
    extra: dict[str, Any] = {}
    if card.emissions is not None:
        extra["co2_eq_emissions"] = {"emissions": card.emissions.grams, "source": "estimate, see the card"}
        if card.emissions.hardware:
            extra["co2_eq_emissions"]["hardware_used"] = card.emissions.hardware
    results = [result for split in ("test", "valid") for result in _results(run, split)]
    return ModelCardData(
        language=list(dict.fromkeys(code[1] for code in codes if code)) or None,
        license=card.license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["residual_hf", *run.ln_modes],
        datasets=list(dict.fromkeys(named)) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=card.name,
        eval_results=results or None,
        **extra,
    )


def _results(run: FinishedRun, split: str) -> list[EvalResult]:
    reports, specs = run.reports(split), run.corpora(split)
    spec = specs[0] if len(reports) == len(specs) == 1 else {}
    dataset = _hub_dataset(spec)
    part = spec.get("split") if dataset else None
    task = "Translation " + "-".join(run.directions[0]) if len(run.directions) == 1 else "Translation"
    return [
        EvalResult(
            task_type="translation",
            task_name=task,
            dataset_type=dataset or NO_HUB_DATASET,
            dataset_name=corpus,
            dataset_config=corpus if len(reports) > 1 else spec.get("dataset_config"),
            dataset_split=part or HUB_SPLITS[split],
            metric_type=name,
            metric_value=round(figures[name]["value"], 2),
            metric_name=LABELS[name],
            metric_args={"signature": figures[name]["signature"]},
        )
        for corpus, figures in reports.items()
        for name in HUB_METRICS
        if name in figures
    ]


def _hub_dataset(spec: dict[str, Any]) -> str | None:
    """The id of a corpus on the Hub; None for files and local folders."""
    name = spec.get("dataset")
    return name if name and HUB_ID.fullmatch(name) and not Path(name).exists() else None


def _bootstrap(run: FinishedRun, baseline: FinishedRun | None) -> tuple[dict[str, Comparison], str | None]:
    """Intervals and p-values on the test set (validation set), or why there are none; a baseline must be compared."""
    try:
        return _compare(run, baseline or run), None
    except InputError as error:
        if baseline is not None:
            raise
        logger.warning("the card gets no confidence intervals: %s", error)
        return {}, "they need one test set, as it was at the time of the run, beside the run"


def _compare(run: FinishedRun, baseline: FinishedRun) -> dict[str, Comparison]:
    split = run.split
    if split not in baseline.metrics:
        raise InputError(f"baseline: {baseline.folder} has no scores for data.{split}")
    (ours, references), (theirs, others) = run.scored_text(split), baseline.scored_text(split)
    if others != references:
        raise InputError(f"baseline: {baseline.folder} was scored on other references for data.{split}")
    comparisons: dict[str, Comparison] = {}
    for name in METRICS:
        figures = [one.metrics[split].get(name) for one in (baseline, run)]
        if None in figures:
            continue
        signature = dict(part.partition(":")[::2] for part in figures[1]["signature"].split("|"))
        tokenize = {"tokenize": signature["tok"]} if name == "bleu" and "tok" in signature else {}
        comparisons |= paired_bootstrap(theirs, ours, references, metrics=(name,), **tokenize)
        for one, figure, value in zip(
            (baseline, run), figures, (comparisons[name].a, comparisons[name].b), strict=True
        ):
            if abs(value - figure["value"]) > 0.005:
                raise InputError(
                    f"{one.folder}: {split}.hypotheses.txt has {name} {value:.2f}, metrics.json "
                    f"{figure['value']:.2f}; they are not of one run, or the references have changed"
                )
    return comparisons
