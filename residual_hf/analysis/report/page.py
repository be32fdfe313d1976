"""One HTML page about training runs: curves, scores, maps by layer, translations, settings. It needs no network."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import Environment

from residual_hf.base.errors import InputError
from residual_hf.base.files import check_output_file, leaves, write_atomically
from residual_hf.base.tables import duration
from residual_hf.evaluation.metrics import METRICS, Comparison
from residual_hf.records.learning_curve import series
from residual_hf.records.markdown import file_name, public
from residual_hf.records.run_folder import Run, damage_named
from residual_hf.records.run_scores import LABELS, compare, score_tables

from .charts import line_chart
from .layer_maps import layer_maps
from .sampled_translations import Sample, choose_samples

TEMPLATE = Path(__file__).with_name("report.html.jinja")
PER_TOKEN = ("nll", "ppl")  # comparable with the same vocabulary only
LOWER_IS_BETTER = ("ter", "wer", "cer", "word_ppl", *PER_TOKEN)
SIGNIFICANT = 0.05
CURVES = {
    "nll": "Training NLL per token (nats)",
    "eval_nll": "Validation NLL per token (nats)",
    "eval_bleu": "Validation BLEU",
    "eval_chrf": "Validation chrF",
    "eval_rougeL": "Validation ROUGE-L",
    "eval_wer": "Validation WER",
    "eval_cer": "Validation CER",
    "grad_norm": "Gradient norm before clipping",
    "learning_rate": "Learning rate",
    "tokens_per_second": "Tokens per second",
}
"""Titles of the charts by entry of `metrics.jsonl`."""


def write_report(folders: Sequence[str | Path], output: str | Path, *, overwrite: bool = False) -> Path:
    """Write the report of runs, finished or not, as one HTML file; returns its path.

    The first run is the baseline: the others are compared with it by paired bootstrap resampling of the test set.
    Folders of paths, and access tokens, are left out of the settings.

    Raises `InputError` for a folder that is not that of a run, one that is given twice, and an output that exists.
    """
    path = Path(output)
    check_output_file(path, overwrite=overwrite, field="--output-file", suffix=".html")
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise InputError(f"run folders: {', '.join(map(str, folders))} given, must differ")
    runs = [Run.read(folder) for folder in folders]
    names, notes = labels(runs), list[str]()
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        TEMPLATE.read_text(encoding="utf-8")
    )
    with damage_named(*(run.folder for run in runs)):
        differing, equal = settings(runs)
        html = page.render(
            names=names,
            facts=[facts(run) for run in runs],
            curves=curves(runs),
            scores=score_sections(runs, names, notes),
            labels=LABELS | {"nll": "NLL", "ppl": "perplexity", "word_ppl": "perplexity per word"},
            lower_is_better=LOWER_IS_BETTER,
            significant=SIGNIFICANT,
            maps=layer_maps([run.folder for run in runs]),
            samples=samples(runs),
            differing=differing,
            equal=equal,
            notes=notes,
        )
    write_atomically(path, html)
    return path


def labels(runs: Sequence[Run]) -> list[str]:
    """Names of the folders; with those around them where two are equal."""
    parts = [run.folder.resolve().parts for run in runs]
    count = 1
    while len({part[-count:] for part in parts}) < len(parts):
        count += 1
    return ["/".join(part[-count:]) for part in parts]


def facts(run: Run) -> dict[str, str]:
    """The lines about a run in the head of the page."""
    record, model = run.record, run.config or run.recipe.get("model") or {}
    layers = "+".join(str(model[f"{s}_layers"]) for s in ("encoder", "decoder") if model.get(f"{s}_layers"))
    last = max((entry["step"] for entry in run.curve), default=0)
    found = {
        "mode": ", ".join(run.ln_modes),
        "layers": layers,
        "parameters": f"{record.parameters:,}" if record.parameters else None,
        "updates": f"{record.updates or last:,}",
        "time": duration(record.seconds) if record.seconds else None,
        "device": record.device,
        "started": (record.started or "")[:16].replace("T", " "),
        "state": "finished" if record.finished else f"not finished, last entry at update {last:,}",
    }
    return {name: str(value) for name, value in found.items() if value}


def curves(runs: Sequence[Run]) -> list[str]:
    """The charts that any of the runs has values for."""
    charts = []
    for name, title in CURVES.items():
        values = {
            number: {float(step): float(value) for step, value in series(run.curve, name).items()}
            for number, run in enumerate(runs)
        }
        charts.append(line_chart(title, values, log=name == "grad_norm"))
    return [chart for chart in charts if chart]


def score_sections(runs: Sequence[Run], names: Sequence[str], notes: list[str]) -> list[dict[str, Any]]:
    """A table for each corpus, test sets first: a row for each run, and the best score by metric.

    A row has, for each metric, the score and its comparison with the first run; None where there is none.
    """
    comparisons = [comparison(run, runs[0], name, notes) for run, name in zip(runs, names, strict=True)]
    tables: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for number, run in enumerate(runs):
        for table in score_tables(run, {}):
            tables.setdefault((table.split, table.corpus), {})[number] = table.figures
    one_vocabulary = len({vocabulary(run) for run in runs if run.config}) <= 1
    sections = []
    for (split, corpus), figures in sorted(tables.items(), key=lambda item: item[0][0] != "test"):
        values = {number: plain_scores(found) for number, found in figures.items()}
        order = (*METRICS, *dict.fromkeys(name for found in values.values() for name in found if name not in METRICS))
        metrics = [name for name in order if any(name in found for found in values.values())]
        rows = []
        for number, run in enumerate(runs):
            pairs = comparisons[number] if split == run.split else {}
            found = values.get(number, {})
            rows.append([(found.get(name), pairs.get(name)) for name in metrics])
        title = {"test": "Test set", "valid": "Validation set"}[split] + (f": {corpus}" if corpus != split else "")
        marked = []
        if len({text_of(runs[number], split) for number in figures}) == 1:
            marked = [name for name in metrics if one_signature(figures.values(), name)]
            if len({packing(runs[number]) for number in figures}) == 1:
                marked += ["word_ppl", *(PER_TOKEN if one_vocabulary else ())]
        best = {name: best_of(name, values.values()) for name in metrics if name in marked}
        sections.append({"title": public(title), "metrics": metrics, "rows": rows, "best": best})
    return sections


def text_of(run: Run, split: str) -> tuple[Any, ...]:
    """Equal in runs that were scored on the same text."""
    return tuple((corpus.pairs, *corpus.sha256.values()) for corpus in getattr(run.record.data, split))


def packing(run: Run) -> tuple[Any, ...]:
    """Equal in language models whose tokens are predicted from equally long contexts."""
    return run.block_size, run.setting("data", "sample_break_mode"), run.setting("evaluation", "context_window")


def one_signature(figures: Iterable[Mapping[str, Any]], name: str) -> bool:
    """Whether a score was computed in the same way, and is one of those that are higher or lower if better."""
    scores = [found[name] for found in figures if name in found]
    signatures = {str(score.get("signature")) for score in scores if isinstance(score, dict)}
    return name in LABELS and len(signatures) == 1


def vocabulary(run: Run) -> tuple[Any, ...]:
    """Equal in runs whose figures per token can be compared: its size, tags that are tokens, the tokenizer's files."""
    files = {name: sha256 for name, sha256 in run.record.tokenizer.items() if name != "tokenizer_config.json"}
    size = run.config.get("decoder_vocab_size", run.config.get("vocab_size"))
    return size, run.predicts_tags, *sorted(files.items())


def comparison(run: Run, baseline: Run, name: str, notes: list[str]) -> dict[str, Comparison]:
    """The run against the baseline by metric, where they can be compared; `notes` gets the reason otherwise."""
    if run.split not in run.metrics or "word_ppl" in run.metrics[run.split]:  # no translations to compare
        return {}
    try:
        return compare(run, baseline if run is not baseline else None)
    except InputError as error:
        notes.append(f"{name} is not compared with the first run: {public(str(error))}.")
        return {}


def plain_scores(figures: Mapping[str, Any]) -> dict[str, float]:
    """The scores of a corpus by name; a result of a further metric, such as ROUGE, has both names."""
    values = {name: entry["value"] for name, entry in figures.items() if isinstance(entry, dict) and "value" in entry}
    values |= {name: figures[name] for name in ("word_ppl", *PER_TOKEN) if name in figures}
    for metric, results in (figures.get("metrics") or {}).items():
        values |= {f"{file_name(metric)} {name}": value for name, value in results.items()}
    return {name: float(value) for name, value in values.items()}


def best_of(name: str, scores: Iterable[Mapping[str, float]]) -> float | None:
    values = [found[name] for found in scores if name in found]
    better = min if name in LOWER_IS_BETTER else max
    return better(values) if len(values) > 1 else None


def samples(runs: Sequence[Run]) -> list[Sample]:
    """Translations of the test (or validation) set of the first run that has one, by all runs that have the same."""
    texts: dict[int, list[tuple[str, str, str]]] = {}
    for number, run in enumerate(runs):
        with suppress(InputError):  # no translations
            texts[number] = run.samples(run.split)
    texts = {number: found for number, found in texts.items() if found}
    if not texts:
        return []
    first = next(iter(texts.values()))
    asked = [(source, reference) for source, _, reference in first]
    same = {n: found for n, found in texts.items() if [(s, r) for s, _, r in found] == asked}
    return choose_samples(asked, {number: [line for _, line, _ in found] for number, found in same.items()})


def settings(runs: Sequence[Run]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Recipe and machine of the runs by field: the values of all runs where they differ, and the others once."""
    found = [leaves(public({**run.recipe, "output_dir": None, "run": machine(run)})) for run in runs]
    columns = [{name: str(value) for name, value in each.items() if value is not None} for each in found]
    names = dict.fromkeys(name for column in columns for name in column)
    values = {name: [column.get(name, "") for column in columns] for name in names}
    differing = {name: row for name, row in values.items() if len(set(row)) > 1}
    return differing, {name: row[0] for name, row in values.items() if name not in differing and row[0]}


def machine(run: Run) -> dict[str, Any]:
    record = run.record
    names = ("command", "commit", "device", "processes", "parameters", "max_tokens_found", "tokens_per_update")
    return {name: getattr(record, name) for name in names} | {"versions": record.versions}
