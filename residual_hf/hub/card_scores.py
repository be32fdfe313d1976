# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The sections of a model card with scores."""

from __future__ import annotations

from typing import Any

from .card_facts import LABELS, Card
from .finished_run import SPLITS


def evaluation(card: Card) -> str:
    parts = ["## Evaluation"]
    if "test" not in card.run.metrics:
        parts.append(
            "There was no test set. These are scores on the validation set, by which the weights were chosen too: "
            "expect lower ones on new text."
        )
    decoding = card.run.recipe.get("decoding") or {}
    if "num_beams" in decoding:
        penalty = f", length penalty {decoding['length_penalty']}" if "length_penalty" in decoding else ""
        beams = decoding["num_beams"]
        parts.append(f"Beam search with {beams} beams{penalty}." if beams > 1 else "Greedy search.")
    for split in ("test", "valid"):
        reports = card.run.reports(split)
        parts += [scores_table(card, split, corpus, figures) for corpus, figures in reports.items()]
        if len(reports) > 1:
            parts.append(f"Mean over the {len(reports)} {SPLITS[split]} sets: {_means(card.run.metrics[split])}.")
    if card.comparisons:
        signature = next(iter(card.comparisons.values())).signature
        resamples = dict(field.partition(":")[::2] for field in signature.split("|")).get("bs", "")
        parts.append(
            f"Intervals: bootstrap over the sentences of the set ({int(resamples):,} resamples). They say how much "
            "the choice of sentences matters, not the choice of the seed."
        )
    elif card.no_interval:
        parts.append(f"No confidence intervals: {card.no_interval}.")
    return "\n\n".join(parts)


def comparison(card: Card) -> str:
    if card.baseline is None:
        return ""
    modes = " / ".join(f"`{mode}`" for mode in card.baseline.ln_modes)
    rows = []
    for name, pair in card.comparisons.items():
        verdict = "yes" if pair.p_value < 0.05 else "no"
        difference = f"{pair.b - pair.a:+.2f}"
        rows.append(
            f"| {LABELS[name]} | {pair.a:.2f} | {pair.b:.2f} | {difference} | {pair.p_value:.3f} | {verdict} | "
            f"{_code(pair.signature)} |"
        )
    return "\n".join(
        [
            "### Against a baseline",
            "",
            f"The baseline is the run `{card.baseline.folder.resolve().name}` ({modes}), scored on the same "
            f"{SPLITS[card.run.split]} set. Paired bootstrap resampling (Koehn 2004); one seed of each, so that a "
            "difference between the two runs need not be one between their methods.",
            "",
            "| | baseline | this model | difference | p | significant at 5% | signature |",
            "|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def scores_table(card: Card, split: str, corpus: str, figures: dict[str, Any]) -> str:
    """Scores of one corpus, with intervals where they were computed."""
    shown = card.comparisons if split == card.run.split else {}
    intervals = {name: (max(pair.b_interval[0], 0.0), pair.b_interval[1]) for name, pair in shown.items()}
    rows = []
    for name, figure in _scored(figures).items():
        interval = "{:.2f} to {:.2f}".format(*intervals[name]) if name in intervals else ""
        signature = _code(figure["signature"]) if figure.get("signature") else ""
        rows.append(f"| {LABELS.get(name, name)} | {figure['value']:.2f} | {interval} | {signature} |")
    for name, label in (("nll", "NLL per target token (nats)"), ("ppl", "perplexity per target token")):
        if name in figures:
            rows.append(f"| {label} | {figures[name]:.3f} | | comparable with the same vocabulary only |")
    title = f"**{SPLITS[split].capitalize()} set** ({corpus}):"
    if figures.get("references") == "detokenized":
        title += " the references are detokenised text, which makes the scores comparable with each other only."
    return "\n".join([title, "", "| | score | 95% interval | signature |", "|---|---|---|---|", *rows])


def _scored(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: figure for name, figure in figures.items() if isinstance(figure, dict) and "value" in figure}


def _means(figures: dict[str, Any]) -> str:
    return ", ".join(f"{LABELS.get(name, name)} {figure['value']:.2f}" for name, figure in _scored(figures).items())


def _code(text: str) -> str:
    """Code in a cell of a table, where a bar would end the cell."""
    return "`" + text.replace("|", "\\|") + "`"
