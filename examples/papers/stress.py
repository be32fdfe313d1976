"""The largest learning rate that a mode survives, by the protocol of Keel (Chen & Wei 2026, section 5.1).

    python examples/papers/stress.py --modes post_ln pre_ln resi_dual --layers 6 18 --output-dir stress

The learning rate rises linearly from 0 to `max_lr`. The result is the rate at the update before divergence, which is
the first that applies of three, on the loss averaged over the last `WINDOW` updates:

- spike: it exceeds its minimum by a quarter of the progress made (at least `MARGIN` nats), and never comes back; a
  loss that is not finite is a spike;
- stagnation: it never falls below 95 % of the entropy of the word frequencies;
- slow-down: from some update to the end it is more than `MARGIN` nats above that of the best run of the same depth.

A run without divergence survived `max_lr`.
"""

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from generated import generated_corpus, new_model
from points import Panel, Point, check_matplotlib, write_points
from tqdm.auto import tqdm

from residual_hf.analysis.short_training import ShortCorpus, train
from residual_hf.base.environment import commit
from residual_hf.base.errors import InputError, InputSettings
from residual_hf.base.files import append_json_lines, undamaged_entries, write_atomically, write_json_lines
from residual_hf.base.lock import Lock
from residual_hf.base.modes import check_modes
from residual_hf.base.tables import as_markdown
from residual_hf.cli import main, script_parser
from residual_hf.commands.arguments import add_fields, given_fields
from residual_hf.data.pipeline import read_corpora
from residual_hf.model.connections import LN_MODES
from residual_hf.model.options import option
from residual_hf.runs.building import tokenizer_fields
from residual_hf.runs.preparation import prepare_data
from residual_hf.runs.recipe import Recipe, load_recipe
from residual_hf.runs.verdict import MARGIN, smoothed, spike

WINDOW = 20


@dataclass(frozen=True)
class StressSetting(InputSettings):
    """Sizes of a stress test; runs with another setting are not compared."""

    width: int = option(64, minimum=1, help="`d_model`")
    updates: int = option(1000, minimum=1, help="updates of a run; in the paper 5000")
    max_lr: float = option(5e-2, above=0, help="last learning rate")
    max_tokens: int = option(1024, minimum=1, help="padded tokens of a batch")
    corpus: str = option("the generated corpus", help="name of the training text")

    def check(self) -> None:
        heads = max(4, self.width // 64)
        self.require(self.width % heads == 0, "width", f"a multiple of {heads}, the number of heads")

    def lr(self, update: int) -> float:
        return self.max_lr * update / self.updates


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
    """
    write_json_lines(file, undamaged_entries(file))
    modes = [*dict.fromkeys(modes or sorted(LN_MODES))]
    layers, seeds = [*dict.fromkeys(layers)], [*dict.fromkeys(seeds)]
    runs = read_runs(file, setting)
    done = {(run.mode, run.layers, run.seed) for run in runs}
    missing = [(m, n, s) for s in seeds for n in sorted(layers) for m in modes if (m, n, s) not in done]
    if missing and corpus is None:
        corpus = generated_corpus(setting.max_tokens)
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
    loss = smoothed(run.losses, WINDOW)
    best = [smoothed(other.losses, WINDOW) for other in runs if other.layers == run.layers]
    broken, is_stagnant = spike(loss), min(loss, default=math.inf) > 0.95 * run.unigram_entropy
    if broken is None and len(loss) < setting.updates:
        broken = len(loss)
    ends = {"spike": broken, "stagnation": 0 if is_stagnant else None, "slow-down": slow_down(loss, best)}
    update, divergence = next(((end, kind) for kind, end in ends.items() if end is not None), (setting.updates, None))
    return Survival(run, setting.lr(update), divergence, min(loss, default=math.nan))


def ranked(results: Sequence[Survival]) -> list[Survival]:
    """Modes by the mean of their largest rates, highest first, equal ones by that of their lowest losses."""

    def rank(mode: str) -> tuple[float, float]:
        of_mode = [result for result in results if result.run.mode == mode]
        return -fmean(result.largest_lr for result in of_mode), fmean(result.lowest_loss for result in of_mode)

    return sorted(results, key=lambda result: rank(result.run.mode))


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


def add_options(stress: argparse.ArgumentParser) -> None:
    stress.add_argument("--output-dir", type=Path, required=True, help="for runs.jsonl (continued), table and plot")
    stress.add_argument("--recipe", type=Path, help="train on the corpora of this recipe (default: generated text)")
    stress.add_argument("--modes", nargs="+", default=[], help="modes to test (default: all)")
    stress.add_argument("--layers", nargs="+", type=int, default=[6, 18], help="layers of each stack (default: 6 18)")
    stress.add_argument("--seeds", nargs="+", type=int, default=[1], help="default: 1")
    add_fields(stress, StressSetting, "width", "updates", "max_tokens", "max_lr")


def run(options: argparse.Namespace) -> None:
    check_modes(options.modes)
    check_matplotlib()
    if min(options.layers) < 1:
        raise InputError(f"--layers: {options.layers} given, must be at least 1")
    setting, corpus, folder = given_fields(StressSetting, options), None, options.output_dir
    with Lock(folder / "stress.lock", f"--output-dir: {folder}"):
        if options.recipe is not None:
            name, corpus = corpus_of(load_recipe(options.recipe), folder / "corpora", setting.max_tokens)
            setting = replace(setting, corpus=name)
        results = stress(folder / "runs.jsonl", options.modes, options.layers, options.seeds, setting, corpus)
        paths = write_results(results, setting, folder)
    print(paths[0].read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main(parser=script_parser(__doc__, add_options, run)))
