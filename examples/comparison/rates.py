"""The tables of docs/researcher.md, "Depth and learning rate", and their picture, from rates.csv: one line per run.

    python examples/comparison/rates.py                          # prints the tables
    python examples/comparison/rates.py --picture docs/images/rates.png
    python examples/comparison/rates.py --add runs/rates         # adds the runs of a study to rates.csv

`nll` is the validation NLL of the final model (the checkpoint with the lowest), `test_nll` that of the test set; they
are empty for a run that diverged or had no test set. A run that is added replaces that of the same mode, depth, rate
and seed. Figures with two decimals are as they were recorded: the folders of those runs no longer exist.
"""

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from statistics import fmean

from residual_hf.base.errors import InputError
from residual_hf.base.files import RECORD, read_json, write_atomically
from residual_hf.base.tables import as_markdown
from residual_hf.records.run_record import RunRecord
from residual_hf.runs.recipe import load_recipe

sys.path.append(str(Path(__file__).parents[1] / "papers"))
from points import Panel, Point, to_pictures

FILE = Path(__file__).with_suffix(".csv")
LAYERS, RATES = (6, 18), (1e-3, 3e-3, 1e-2)
SETTING = (64, 500)  # width and updates


@dataclass(frozen=True)
class Run:
    mode: str
    layers: int
    lr: float
    seed: int
    nll: float  # infinite if there is none
    test_nll: float
    commit: str

    def row(self) -> list[str]:
        measured = ("" if math.isinf(nll) else repr(nll) for nll in (self.nll, self.test_nll))
        return [self.mode, str(self.layers), f"{self.lr:g}", str(self.seed), *measured, self.commit]


def read() -> list[Run]:
    with open(FILE, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [
        Run(mode, int(layers), float(lr), int(seed), float(nll or "inf"), float(test_nll or "inf"), commit)
        for mode, layers, lr, seed, nll, test_nll, commit in rows
    ]


def run_of(folder: Path) -> Run | None:
    """The run of a study in a folder; None if it has neither finished nor diverged."""
    record, metrics = RunRecord.read(folder), folder / "metrics.json"
    if not record.diverged and (record.goes_on or not metrics.exists()):
        return None
    scores = {} if record.diverged else read_json(metrics)
    nll, test_nll = (round(scores.get(split, {}).get("nll", math.inf), 4) for split in ("valid", "test"))
    recipe = load_recipe(folder / "recipe.yaml")
    training, model = recipe.training, recipe.model
    others = {name: model[name] for name in model if name.endswith("ln_mode_options") and model[name]}
    if others or (model.get("d_model"), training.max_updates) != SETTING:
        raise InputError(f"{folder}: must have width {SETTING[0]}, {SETTING[1]} updates and no ln_mode_options")
    commit = (record.commits or ["unknown"])[-1][:7]
    return Run(model["ln_mode"], model["encoder_layers"], training.lr, training.seed, nll, test_nll, commit)


def add(folder: Path) -> None:
    runs = {(run.mode, run.layers, run.lr, run.seed): run for run in read()}
    for record in folder.glob(f"*/{RECORD}"):
        if (run := run_of(record.parent)) is not None:
            runs[run.mode, run.layers, run.lr, run.seed] = run
    rows = [[field.name for field in fields(Run)], *(runs[key].row() for key in sorted(runs))]
    write_atomically(FILE, "".join(f"{','.join(row)}\n" for row in rows))


def shown(nll: float, otherwise: str = "diverged") -> str:
    return otherwise if math.isinf(nll) else f"{nll:.2f}"


def at_each_rate(runs: Sequence[Run], mode: str, layers: int) -> list[list[Run]]:
    """The runs of a mode, sorted by seed, for each learning rate."""
    own = [run for run in runs if (run.mode, run.layers) == (mode, layers)]
    return [sorted((run for run in own if run.lr == lr), key=lambda run: run.seed) for lr in RATES]


def best(runs: Sequence[Run], mode: str, layers: int) -> Run:
    """The run with seed 1 that has the lowest NLL, at any rate."""
    return min((run for run in runs if (run.mode, run.layers, run.seed) == (mode, layers, 1)), key=lambda run: run.nll)


def modes(runs: Sequence[Run]) -> list[str]:
    """The modes with seed 1 at each depth and rate, sorted by its NLL at the best rate with the fewest layers."""
    found = {(run.mode, run.layers, run.lr) for run in runs if run.seed == 1}
    whole = [mode for mode in {run.mode for run in runs} if {*product([mode], LAYERS, RATES)} <= found]
    return sorted(whole, key=lambda mode: (round(best(runs, mode, LAYERS[0]).nll, 2), mode))


def table(runs: Sequence[Run]) -> str:
    """All modes with seed 1: the lowest validation NLL of each depth in bold, and the test NLL of that run, with its
    rate if it is another one."""
    columns = [(layers, of) for layers in LAYERS for of in (*RATES, "test")]
    rows = [["`ln_mode`", *(f"{layers}+{layers}, {of}" for layers, of in columns)]]
    for mode in modes(runs):
        rows.append([f"`{mode}`"])
        for layers in LAYERS:
            lowest = best(runs, mode, layers)
            for run, *_ in at_each_rate(runs, mode, layers):
                rows[-1].append(f"**{shown(run.nll)}**" if run == lowest and run.nll < math.inf else shown(run.nll))
            rows[-1].append(shown(lowest.test_nll, "") + ("" if lowest.lr in RATES else f" at {lowest.lr:g}"))
    return as_markdown(rows)


def table_of_seeds(runs: Sequence[Run]) -> str:
    """The modes with several seeds, each depth at the learning rate with the lowest mean NLL."""
    rows = []
    for mode in modes(runs):
        repeated = [[each for each in at_each_rate(runs, mode, layers) if len(each) > 1] for layers in LAYERS]
        if all(repeated):
            chosen = [min(rates, key=lambda each: fmean(run.nll for run in each)) for rates in repeated]
            cells = (f"{', '.join(shown(run.nll) for run in each)} at {each[0].lr:g}" for each in chosen)
            rows.append([f"`{mode}`", *cells])
    return as_markdown([["`ln_mode`", *(f"{n}+{n}, seeds 1, 2, 3" for n in LAYERS)], *rows])


def picture(runs: Sequence[Run]) -> bytes:
    """A row of dots for each mode, sorted by its lowest NLL."""
    panels = [Panel(f"{n}+{n} layers", "learning rate", "validation NLL", log_x=True, rows=True) for n in LAYERS]
    points = []
    for panel, layers in zip(panels, LAYERS, strict=True):
        finite = [run for run in runs if run.layers == layers and run.nll < math.inf]
        lowest = {run.mode: run.nll for run in sorted(finite, key=lambda run: -run.nll)}
        finite.sort(key=lambda run: (lowest[run.mode], run.mode))
        points += [Point(panel.name, run.mode, run.seed, run.lr, run.nll) for run in finite]
    caption = "Runs and commits: examples/comparison/rates.csv. A dot is a run; those that diverged have none."
    return to_pictures("rates", panels, points, caption)["png"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, metavar="FOLDER", help="output folder of a study")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    options = parser.parse_args()
    if options.add is not None:
        add(options.add)
    runs = read()
    if options.picture is not None:
        write_atomically(options.picture, picture(runs))
    print(f"{table(runs)}\n\n{table_of_seeds(runs)}")


if __name__ == "__main__":
    main()
