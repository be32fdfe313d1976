"""Scores as a line and as a table for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from residual_hf.base.tables import as_table


def score_line(report: Mapping[str, Any]) -> str:
    """The scores of a report in one line, those of the test set before those of the validation set.

    Of a language model the perplexities. Of several corpora, the mean.
    """
    inside = {name: part for name, part in _inside(report).items() if name != "corpora"}
    lines = []
    for name, part in sorted(inside.items(), key=lambda item: item[0] != "test") or [("", report)]:
        scores = {
            key: score["value"] for key, score in part.items() if isinstance(score, Mapping) and "value" in score
        }
        for metric, values in part.get("metrics", {}).items():
            scores |= {f"{metric} {key}": value for key, value in values.items()}
        scores = scores or {key: part[key] for key in ("ppl", "word_ppl", "nll") if key in part}
        lines.append(f"{name} {', '.join(f'{key} {_shown(value)}' for key, value in scores.items())}".strip())
    return "; ".join(lines)


def score_table(report: Mapping[str, Any]) -> str:
    """A report of scores as a table with a row for each figure and a column for each corpus, and the signatures."""
    columns = dict(_columns(report))
    signatures: dict[str, None] = {}
    figures = {name: dict(_figures(scores, signatures)) for name, scores in columns.items()}
    names = dict.fromkeys(figure for column in figures.values() for figure in column)
    shown = {name: column for name, column in figures.items() if column}
    rows = [["", *shown], *([name, *(column.get(name, "") for column in shown.values())] for name in names)]
    return "\n".join([as_table(rows).lstrip("\n"), *signatures])


def _inside(report: Mapping[str, Any]) -> dict[str, Any]:
    """The reports of splits and corpora inside a report."""
    parts = {key: part for key, part in report.items() if isinstance(part, Mapping) and "value" not in part}
    return {key: part for key, part in parts.items() if key != "metrics"}


def _columns(report: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The scores of a report, and those of the splits and corpora inside it, by their names."""
    inside = _inside(report)
    corpora = dict(inside.pop("corpora", {}))
    yield name or ("mean" if corpora else ""), {key: part for key, part in report.items() if key not in inside}
    for key, part in (corpora | inside).items():
        yield from _columns(part, f"{name} {key}".strip())


def _figures(scores: Mapping[str, Any], signatures: dict[str, None]) -> Iterator[tuple[str, str]]:
    for name, score in scores.items():
        if isinstance(score, Mapping) and "value" in score:
            yield name, _shown(score["value"])
            for other in ("baseline", "p_value"):
                if other in score:
                    yield f"{name} {other}", _shown(score[other])
            if "signature" in score:
                signatures[f"{name}: {score['signature']}"] = None
        elif isinstance(score, Mapping) and name == "metrics":
            for metric, values in score.items():
                yield from ((f"{metric} {key}", _shown(value)) for key, value in values.items())
        elif isinstance(score, (int, float, str)):
            yield name, _shown(score)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"
    return f"{value:,}" if type(value) is int else str(value)
