"""Train one recipe with several modes, depths, warm-ups, learning rates and seeds; print tables and draw the curves.

    python examples/comparison/study.py examples/iwslt14_de_en/recipe.yaml --layers 6 12 --warmup 4000 0 --seeds 1 2 3

Every run is `residual-hf train` with `--set`, in its own folder. Run the command again to continue: finished runs are
not repeated, unfinished ones are resumed. Scores are those of the test set, or of the validation set if the recipe has
no test set. A cell shows the mean and the range over the seeds, and a star if the score differs from that of the first
mode with p < 0.05 and in the same direction in every seed (paired bootstrap over the sentences, Koehn 2004). BLEU
below `LEAST` and NLL have no stars: `differences.py` tests NLL over seeds. With several learning rates, another table
shows each mode at the rate with its lowest validation NLL. `curves.svg`, `.png` and `.csv` in the output folder show
the validation NLL over updates and over learning rates.
"""

import argparse
import itertools
import math
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from tqdm.auto import tqdm

import residual_hf_cli
from residual_hf.base.errors import DIVERGED, InputError
from residual_hf.base.files import RECORD
from residual_hf.base.modes import import_modes
from residual_hf.base.tables import as_markdown
from residual_hf.commands.arguments import parse_overrides
from residual_hf.evaluation.metrics import paired_bootstrap, tokenizer_of
from residual_hf.model.connections import LN_MODES
from residual_hf.records.run_folder import Run as FinishedRun
from residual_hf.records.run_record import RunRecord
from residual_hf.runs.recipe import load_recipe

sys.path.append(str(Path(__file__).parents[1] / "papers"))
from points import Panel, Point, write_points

LEAST = 1.0  # BLEU, below which no score says anything
FIGURES = {"bleu": "sacreBLEU", "tokenized_bleu": "tokenized BLEU", "wer": "WER", "cer": "CER", "nll": "NLL"}
PROGRAM = str(Path(residual_hf_cli.__file__).with_name("__main__.py"))  # `-m` would take a clone without kernels

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("recipe", type=Path)
parser.add_argument(
    "--modes",
    nargs="+",
    default=["resi_dual", "post_ln", "pre_ln", "admin", "deep_norm", "b2t"],
    help="or `all`; a mode in quotes may have settings of its own: 'resi_dual training.r_drop=5'",
)
parser.add_argument("--layers", nargs="+", type=int, default=[None], help="of each stack (default: the recipe's)")
parser.add_argument("--warmup", nargs="+", type=int, default=[None], help="updates (default: the recipe's)")
parser.add_argument("--lr", nargs="+", type=float, default=[None], help="learning rates (default: the recipe's)")
parser.add_argument("--seeds", nargs="+", type=int, default=[1])
parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
parser.add_argument("--output-dir", type=Path, default=Path("runs/comparison"))
parser.add_argument("--import", dest="imports", action="append", default=[], type=Path, help="file with your modes")
parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="for all runs")


@dataclass(frozen=True)
class Column:
    """What differs between the columns of a table."""

    layers: int | None
    warmup: int | None
    lr: float | None

    @property
    def title(self) -> str:
        parts = {"{0}+{0}": self.layers, "warm-up {}": self.warmup, "learning rate {:g}": self.lr}
        return ", ".join(text.format(value) for text, value in parts.items() if value is not None)

    @property
    def suffix(self) -> str:
        parts = {"_{}l": self.layers, "_w{}": self.warmup, "_lr{:g}": self.lr}
        return "".join(text.format(value) for text, value in parts.items() if value is not None)

    def fields(self) -> Iterator[str]:
        if self.layers is not None:
            yield from (f"model.{stack}_layers={self.layers}" for stack in ("encoder", "decoder"))
        if self.warmup is not None:
            yield f"training.warmup_updates={self.warmup}"
        if self.lr is not None:
            yield f"training.lr={self.lr!r}"


@dataclass(frozen=True)
class Run:
    mode: str  # and settings of its own, separated by spaces
    column: Column
    seed: int
    root: Path

    @property
    def folder(self) -> Path:
        name = re.sub(r" [\w.]*?(\w+)=", r"_\1_", self.mode)
        name = re.sub(r"[^a-zA-Z0-9.+-]+", "_", name).strip("_")
        return self.root / f"{name}{self.column.suffix}_s{self.seed}"

    def settings(self, common: Sequence[str]) -> list[str]:
        mode, *of_mode = re.split(r" +(?=[\w.]+=)", self.mode)
        own = [f"model.ln_mode={mode}", *of_mode, f"training.seed={self.seed}", *self.column.fields()]
        return [*common, *own, f"output_dir={self.folder}"]

    @property
    def diverged(self) -> bool:
        return (self.folder / RECORD).exists() and RunRecord.read(self.folder).diverged is not None

    def train(self, recipe: Path, common: Sequence[str], imports: Sequence[Path] = ()) -> FinishedRun | None:
        """The finished run; None if it diverged."""
        if self.diverged:
            return None
        if not (self.folder / "metrics.json").exists():
            settings = [word for field in self.settings(common) for word in ("--set", field)]
            resume = ["--resume"] if (self.folder / RECORD).exists() else []
            own = [f"--import={path}" for path in imports]
            command = [sys.executable, PROGRAM, "train", str(recipe), *resume, *own, *settings]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if done.returncode == DIVERGED:
                return None
            if done.returncode:
                raise SystemExit(f"{self.folder}: {done.stderr[-2000:]}")
        return FinishedRun.read(self.folder, finished=True)


def train_all(runs: Sequence[Run], options: argparse.Namespace) -> dict[Run, FinishedRun | None]:
    """Ctrl-C stops the active runs, each with a checkpoint. After it, or after a failed run, no other run starts."""
    with ThreadPoolExecutor(options.parallel) as pool:
        futures = {pool.submit(run.train, options.recipe, options.set, options.imports): run for run in runs}
        try:
            return {futures[f]: f.result() for f in tqdm(as_completed(futures), "runs", len(runs))}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def value(run: FinishedRun, figure: str) -> float | None:
    found = run.metrics[run.split].get(figure)
    return found["value"] if isinstance(found, dict) else found


def sign(run: FinishedRun | None, other: FinishedRun | None) -> int:
    """1 where a run has more BLEU than another one, -1 where it has less, 0 where that may be chance.

    Of several test sets, the table has the mean, which is not tested.
    """
    if run is None or other is None or "corpora" in run.metrics[run.split]:
        return 0
    if max(value(run, "bleu"), value(other, "bleu")) < LEAST:
        return 0
    texts, references = zip(*(one.scored_text(one.split) for one in (run, other)), strict=True)
    tokenizer = tokenizer_of(run.metrics[run.split]["bleu"]["signature"])
    chance = paired_bootstrap(*texts, references[0], metrics=("bleu",), tokenize=tokenizer)["bleu"].p_value >= 0.05
    return 0 if chance else 1 if value(run, "bleu") > value(other, "bleu") else -1


def cell(runs: Sequence[FinishedRun | None], baseline: Sequence[FinishedRun | None], figure: str) -> str:
    values = [value(run, figure) for run in runs if run is not None]
    diverged = f" ({len(runs) - len(values)} diverged)" if len(values) < len(runs) else ""
    if not values:
        return "diverged"
    digits = 3 if figure == "nll" else 2
    spread = f" ({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else ""
    differs = figure == "bleu" and baseline and {*map(sign, runs, baseline)} in ({1}, {-1})
    star = "*" if differs else ""
    return f"{sum(values) / len(values):.{digits}f}{star}{spread}{diverged}"


Results = dict[Run, FinishedRun | None]


def of(results: Results, mode: str, column: Column) -> list[FinishedRun | None]:
    return [result for run, result in results.items() if (run.mode, run.column) == (mode, column)]


def columns_of(results: Results) -> list[Column]:
    return list(dict.fromkeys(run.column for run in results))


def table(results: Results, modes: Sequence[str], figure: str) -> str:
    columns = columns_of(results)
    rows = []
    for mode in modes:
        baselines = [[] if mode == modes[0] else of(results, modes[0], column) for column in columns]
        pairs = zip(columns, baselines, strict=True)
        rows.append([f"`{mode}`", *(cell(of(results, mode, column), other, figure) for column, other in pairs)])
    return as_markdown([["`ln_mode`", *(column.title or "score" for column in columns)], *rows])


def diverged_and_nll(runs: Sequence[FinishedRun | None]) -> tuple[int, float]:
    """How many runs diverged, and the mean validation NLL of the others."""
    found = [run.metrics["valid"]["nll"] for run in runs if run is not None]
    return len(runs) - len(found), sum(found) / len(found) if found else math.inf


def table_of_best_rates(results: Results, modes: Sequence[str], figure: str) -> str:
    """Each mode at the learning rate with the fewest diverged seeds, and of these with its lowest validation NLL."""
    settings = list(dict.fromkeys(replace(column, lr=None) for column in columns_of(results)))
    rows = []
    for mode in modes:
        rows.append([f"`{mode}`"])
        for setting in settings:
            rates = [column for column in columns_of(results) if replace(column, lr=None) == setting]
            best = min(rates, key=lambda rate: diverged_and_nll(of(results, mode, rate)))
            text, rate = cell(of(results, mode, best), [], figure), f"{best.lr:g}"
            rows[-1].append(f"{text} at {'every rate' if text == 'diverged' else rate}")
    return as_markdown([["`ln_mode`", *(setting.title or "score" for setting in settings)], *rows])


def draw(results: Results, folder: Path) -> None:
    """Write curves.svg, .png and .csv: the validation NLL over updates, and over learning rates if several.

    More than eight modes with learning rates have a row of dots each instead of curves.
    """
    panels, points = [], []
    many = len({run.mode for run in results}) > 8 and all(run.column.lr for run in results)
    for column in columns_of(results):
        if not many:
            panels.append(Panel(column.title, "updates", "validation NLL"))
        for run, finished in results.items():
            if finished is not None and run.column == column:
                points += [
                    Point(column.title, run.mode, run.seed, entry["step"], entry["eval_nll"])
                    for entry in finished.curve
                    if math.isfinite(entry.get("eval_nll", math.nan))
                ]
    for setting in dict.fromkeys(replace(column, lr=None) for column in columns_of(results)):
        name = f"{setting.title}, final".removeprefix(", ")
        ends = [
            Point(name, run.mode, run.seed, run.column.lr, finished.metrics["valid"]["nll"])
            for run, finished in results.items()
            if finished is not None and run.column.lr is not None and replace(run.column, lr=None) == setting
        ]
        if ends:
            panels.append(Panel(name, "learning rate", "validation NLL", log_x=True, rows=many))
            points += sorted(ends, key=lambda end: min(p.y for p in ends if p.series == end.series))
    commits = sorted({commit[:12] for run in results.values() if run is not None for commit in run.record.commits})
    seeds = sorted({run.seed for run in results})
    drawn = "a dot is a run" if many else "lines are means, bands the range" if len(seeds) > 1 else "a line is a run"
    caption = f"Commit {', '.join(commits)}. " * bool(commits) + f"Seeds: {', '.join(map(str, seeds))}; {drawn}."
    if lost := [run.folder.name for run, finished in results.items() if finished is None]:
        caption += f" Not drawn, as they diverged: {', '.join(lost)}."
    write_points(folder, "curves", panels, points, caption)


def main() -> None:
    options = parser.parse_args()
    for path in options.imports:
        import_modes(path)
    if options.modes == ["all"]:
        options.modes = list(dict.fromkeys([*parser.get_default("modes"), *sorted(LN_MODES)]))
    columns = itertools.starmap(Column, itertools.product(options.layers, options.warmup, options.lr))
    runs = [
        Run(mode, column, seed, options.output_dir)
        for column, mode, seed in itertools.product(columns, options.modes, options.seeds)
    ]
    if len({run.folder for run in runs}) < len(set(runs)):
        raise SystemExit("two of the runs have the same folder: settings that end in the same name, or close rates")
    for run in runs:  # all recipes are checked before the first run starts
        recipe = load_recipe(options.recipe, parse_overrides(run.settings(options.set)))
        if (run.folder / "metrics.json").exists() or run.diverged:
            before = load_recipe(run.folder / "recipe.yaml", {"output_dir": str(recipe.output_dir)})
            if before.as_dict() != recipe.as_dict():
                raise SystemExit(f"{run.folder}: a finished run of another recipe; use another --output-dir")
    finished = train_all(runs, options)
    results = {run: finished[run] for run in runs}
    complete = [result for result in results.values() if result is not None]
    if not complete:
        print("Every run diverged: there is nothing to draw. Lower --lr, or raise --warmup.")
    for figure, name in FIGURES.items():
        if complete and value(complete[0], figure) is not None:
            print(f"{name}, {complete[0].split}:\n\n{table(results, options.modes, figure)}\n")
            if figure in ("bleu", "nll") and len(options.modes) > 1:
                starred = f"* differs from `{options.modes[0]}`, p < 0.05; below {LEAST:g} BLEU nothing is tested.\n"
                print(starred if figure == "bleu" else "differences.py --metric nll tests the differences of NLL.\n")
            if len(options.lr) > 1:
                print(f"At the best learning rate:\n\n{table_of_best_rates(results, options.modes, figure)}\n")
    if complete and find_spec("matplotlib") is not None:
        draw(results, options.output_dir)
    elif complete:
        print("No curves: pip install 'residual_hf[figures]' draws them.")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"study.py: {error}")
