# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The largest learning rate that a mode survives, by the protocol of Keel (Chen & Wei 2026, section 5.1).

The learning rate rises linearly from 0 to `max_lr`. The result is the rate at the update before divergence, which is
the first that applies of three, on the loss averaged over the last `WINDOW` updates:

- spike: it exceeds its minimum by a quarter of the progress made (at least `MARGIN` nats), and never comes back; a
  loss that is not finite is a spike;
- stagnation: it never falls below 95 % of the entropy of the word frequencies;
- slow-down: from some update to the end it is more than `MARGIN` nats above that of the best run of the same depth.

A run without divergence survived `max_lr`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from tqdm.auto import tqdm

from residual_hf.analysis.output import Panel, Point, check_matplotlib, write_points
from residual_hf.analysis.short_training import ShortCorpus, new_model, train
from residual_hf.base.environment import commit
from residual_hf.base.errors import InputError
from residual_hf.base.files import append_json_lines, undamaged_entries, write_atomically, write_json_lines
from residual_hf.base.modes import check_modes
from residual_hf.base.tables import as_markdown
from residual_hf.data.pipeline import read_corpora
from residual_hf.model.connections import LN_MODES

from .building import tokenizer_fields
from .preparation import prepare_data
from .recipe import Recipe
from .stress_setting import StressSetting

WINDOW = 20
MARGIN = 0.5


@dataclass(frozen=True)
class StressRun:
    """Training losses in nats per token, one per update, until the end or the first that is not finite."""

    mode: str
    layers: int
    seed: int
    losses: list[float]
    unigram_entropy: float
    commit: str | None = None


@dataclass(frozen=True)
class Survival:
    """Largest learning rate that a run survived, how it diverged (None: it did not), and its lowest mean loss."""

    run: StressRun
    largest_lr: float
    divergence: str | None
    lowest_loss: float


def stress_run(mode: str, layers: int, seed: int, setting: StressSetting, corpus: ShortCorpus) -> StressRun:
    model = new_model(mode, layers, setting.width, ffn=2 * setting.width, seed=seed, **corpus.fields)
    losses = train(model, corpus.train(seed), setting.lr, setting.updates)
    return StressRun(mode, layers, seed, losses, corpus.unigram_entropy, commit())


def corpus_of(recipe: Recipe, folder: Path, max_tokens: int) -> tuple[str, ShortCorpus]:
    """The corpora and the tokenizer of a recipe, which are kept in `folder`, and a name that identifies them.

    Raises:
        InputError: a recipe with `data.stream` or of a language model, or files that cannot be read.
    """
    if not recipe.chosen_task.has_source_text:
        raise InputError(f"task: {recipe.task!r} given, but the stress test is for models with source and target text")
    if recipe.data.stream:
        raise InputError("data.stream: true given, must be false for a stress test")
    texts = read_corpora(recipe.data)
    hashes = [sorted(corpus.sha256.values()) for corpora in texts.values() for corpus in corpora]
    values = [hashes, *(recipe.as_dict()[section] for section in ("data", "tokenizer"))]
    code = hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()[:8]
    name = f"{' + '.join(corpus.name for corpus in texts['train'])} ({code})"
    positions = recipe.build_config().max_position_embeddings
    (folder / code).mkdir(parents=True, exist_ok=True)
    data = prepare_data(recipe, texts, folder / code)
    fields = {**tokenizer_fields(recipe, data.tokenizer), "max_position_embeddings": positions}
    return name, ShortCorpus(data.encoded, data.tokenizer, fields, max_tokens)


def stress(
    file: Path,
    modes: Sequence[str],
    layers: Sequence[int],
    seeds: Sequence[int],
    setting: StressSetting,
    corpus: ShortCorpus | None = None,
) -> list[Survival]:
    """Run all combinations, shallow models first, and append each to `file` (JSON lines); existing runs are kept.

    Args:
        modes: none for all modes.
        corpus: that `setting` names; None for the generated one.

    Raises:
        InputError: an unknown mode, or matplotlib is missing.
    """
    check_modes(modes)
    check_matplotlib()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json_lines(file, undamaged_entries(file))
    modes = [*dict.fromkeys(modes or sorted(LN_MODES))]
    layers, seeds = [*dict.fromkeys(layers)], [*dict.fromkeys(seeds)]
    runs = read_runs(file, setting)
    done = {(run.mode, run.layers, run.seed) for run in runs}
    missing = [(m, n, s) for s in seeds for n in sorted(layers) for m in modes if (m, n, s) not in done]
    if missing and corpus is None:
        corpus = ShortCorpus.generated(setting.max_tokens)
    for mode, depth, seed in tqdm(missing, desc="stress", unit="run", disable=None):
        assert corpus is not None
        run = stress_run(mode, depth, seed, setting, corpus)
        runs.append(run)
        append_json_lines(file, {"setting": asdict(setting), **asdict(run)})
    chosen = [run for run in runs if run.mode in modes and run.layers in layers and run.seed in seeds]
    return ranked([survival(run, runs, setting) for run in chosen])


def read_runs(file: Path, setting: StressSetting) -> list[StressRun]:
    """The runs of a file with this setting."""
    entries = undamaged_entries(file)
    return [StressRun(**entry) for entry in entries if entry.pop("setting") == asdict(setting)]


def survival(run: StressRun, runs: Sequence[StressRun], setting: StressSetting) -> Survival:
    """Judge one run against the others of the same depth."""
    loss = smoothed(run.losses)
    best = [smoothed(other.losses) for other in runs if other.layers == run.layers]
    found: list[tuple[int, str]] = []
    broken = spike(loss)
    if broken is None and len(loss) < setting.updates:
        broken = len(loss)
    if broken is not None:
        found.append((broken, "spike"))
    if min(loss, default=math.inf) > 0.95 * run.unigram_entropy:
        found.append((0, "stagnation"))
    if (update := slow_down(loss, best)) is not None:
        found.append((update, "slow-down"))
    update, divergence = found[0] if found else (setting.updates, None)
    return Survival(run, setting.lr(update), divergence, min(loss, default=math.nan))


def ranked(results: Sequence[Survival]) -> list[Survival]:
    """Modes by the mean of their largest rates, highest first, equal ones by that of their lowest losses."""

    def rank(mode: str) -> tuple[float, float]:
        of_mode = [result for result in results if result.run.mode == mode]
        return -fmean(result.largest_lr for result in of_mode), fmean(result.lowest_loss for result in of_mode)

    return sorted(results, key=lambda result: rank(result.run.mode))


def smoothed(losses: Sequence[float], window: int = WINDOW) -> list[float]:
    """Mean of the last `window` losses at each update."""
    return [sum(part) / len(part) for part in (losses[max(0, i - window + 1) : i + 1] for i in range(len(losses)))]


def spike(loss: Sequence[float]) -> int | None:
    """Updates before the loss left the range of its minimum for good, None if it did not."""
    if not loss:
        return None
    limit = min(loss) + max(MARGIN, 0.25 * (loss[0] - min(loss)))
    return None if loss[-1] <= limit else max(i for i, value in enumerate(loss, start=1) if value <= limit)


def slow_down(loss: Sequence[float], others: Sequence[Sequence[float]]) -> int | None:
    """Updates before the loss fell behind the best one for good, None if it did not."""
    last = None
    for update in range(len(loss) - 1, -1, -1):
        if loss[update] <= min(other[update] for other in others if len(other) > update) + MARGIN:
            break
        last = update
    return last


def table(results: Sequence[Survival]) -> str:
    """Markdown: modes by depth; the largest rate, the kinds of divergence and the lowest loss, means over seeds."""
    depths = sorted({result.run.layers for result in results})
    rows = [["`ln_mode`", *(f"{n}+{n}, lowest loss" for n in depths)]]
    for mode in dict.fromkeys(result.run.mode for result in results):
        cells = [cell([r for r in results if (r.run.mode, r.run.layers) == (mode, n)]) for n in depths]
        rows.append([f"`{mode}`", *cells])
    return as_markdown(rows)


def cell(results: Sequence[Survival]) -> str:
    if not results:
        return ""
    rates = [result.largest_lr for result in results]
    spread = f" ({min(rates):.2g}-{max(rates):.2g})" if len(rates) > 1 else ""
    kinds = ", ".join(dict.fromkeys(result.divergence or "none" for result in results))
    loss = fmean(result.lowest_loss for result in results)
    return f"{fmean(rates):.2g}{spread} {kinds}, {loss:{'.2f' if loss < 1000 else '.0e'}}"


def write_results(results: Sequence[Survival], setting: StressSetting, output_dir: Path) -> list[Path]:
    """Write stress.md (the table), and stress.csv, stress.svg and stress.png (the rate over depth)."""
    many = len({result.run.mode for result in results}) > 8
    panel = Panel("largest learning rate that survives", "layers", "learning rate", rows=many)
    points = [Point(panel.name, r.run.mode, r.run.seed, r.run.layers, r.largest_lr) for r in results]
    seeds = sorted({result.run.seed for result in results})
    commits = sorted({result.run.commit[:12] for result in results if result.run.commit})
    caption = (
        "Stress test of Keel (Chen & Wei 2026), section 5.1. The learning rate rises linearly to "
        f"{setting.max_lr:g} over {setting.updates} updates of {setting.max_tokens} tokens of "
        f"{setting.corpus}; the last before divergence. Width {setting.width}. Seeds: {', '.join(map(str, seeds))}."
    )
    if commits:
        caption += f" Commit {', '.join(commits)}."
    markdown = output_dir / "stress.md"
    write_atomically(markdown, table(results) + "\n")
    return [markdown, *write_points(output_dir, "stress", [panel], points, caption)]
