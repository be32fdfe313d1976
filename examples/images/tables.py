"""Train the rows of a table of "Rethinking Skip Connection" (Liu et al. 2020) with `train.py`, one seed after another.

    python examples/images/tables.py 1 --data cifar10 --output runs --seeds 1 2 3 4 5 --parallel 4

Finished rows are kept and interrupted ones go on when it is started again with the same `--epochs`. After each row it
writes tableN.md, with the mean test errors in % beside those of the paper.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from residual_hf.base.tables import as_markdown


class Row(NamedTuple):
    """A network of a table, with the published test error in %."""

    name: str
    published: str
    ln_mode: str
    options: dict[str, float]
    norm_type: str | None = None
    depth: int = 110

    @property
    def folder(self) -> str:
        values = "_".join(f"{value:g}" for value in self.options.values())
        return "-".join(filter(None, [self.ln_mode, values, self.norm_type]))


def skips(published: Sequence[str], norm_type: str | None = None) -> list[Row]:
    """1, 2 and 3xSkip with a norm, and 2 and 3 rSkip; 1rSkip is 1xSkip."""
    norm = "BN" if norm_type else "LN"
    modes = [("x", "xskip_ln", "skip_scale", scale) for scale in (1, 2, 3)]
    modes += [("r", "rskip_ln", "skip_order", order) for order in (2, 3)]
    return [
        Row(f"{value}{kind}Skip+{norm}", error, mode, {option: value}, norm_type)
        for (kind, mode, option, value), error in zip(modes, published, strict=True)
    ]


PLAIN = [("6.31 (6.37)", 1), ("8.41", 2), ("9.23", 3)]
DEPTHS = {20: ("33.38", "32.99"), 32: ("32.00", "31.39"), 44: ("30.50", "29.85"), 56: ("29.81", "28.98")}
TABLES = {
    "1": [Row(f"{scale}xSkip", error, "xskip", {"skip_scale": scale}) for error, scale in PLAIN]
    + skips(["7.72", "6.29", "6.07", "6.02", "6.55"]),
    "3": [
        Row("0.5x + F", "18.61", "xskip", {"skip_scale": 0.5}),
        Row("LN(0.5x + F)", "29.88", "xskip_ln", {"skip_scale": 0.5}),
        Row("LN(x + 2F)", "24.98", "xskip_ln", {"skip_scale": 1, "branch_scale": 2}),
        Row("LN(x + 3F)", "61.02", "xskip_ln", {"skip_scale": 1, "branch_scale": 3}),
    ],
    "4": skips(["8.23", "6.43", "6.50", "6.77", "6.68"], "batch_norm"),
    "6": [
        row
        for depth, errors in {**DEPTHS, 110: ("28.71", "27.69")}.items()
        for row in (
            Row(f"1xSkip, depth {depth}", errors[0], "xskip", {"skip_scale": 1}, depth=depth),
            Row(f"2rSkip+LN, depth {depth}", errors[1], "rskip_ln", {"skip_order": 2}, depth=depth),
        )
    ],
    "wskip": [
        Row("wSkip+LN, w from 1", "8.66", "wskip_ln", {"skip_init": 1.0}),
        Row("wSkip+LN, w from 2", "6.45", "wskip_ln", {"skip_init": 2.0}),
    ],
}  # fmt: skip


def folder(row: Row, seed: int, options: argparse.Namespace) -> Path:
    return options.output / f"{row.folder}-depth{options.depth or row.depth}-seed{seed}"


def error_of(row: Row, seed: int, options: argparse.Namespace) -> float | None:
    """The test error in % of a finished network. Exits if it was trained in another way."""
    path = folder(row, seed, options) / "result.json"
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    for name in ("epochs", "data", "bf16"):
        if result[name] != getattr(options, name):
            sys.exit(f"{path}: {name} {result[name]}, not {getattr(options, name)}: use another --output")
    return float(result["error"])


def train(row: Row, seed: int, options: argparse.Namespace) -> None:
    """Train a row in a process of its own, with its output in log.txt, unless it has a result."""
    if error_of(row, seed, options) is not None:
        return
    place = folder(row, seed, options)
    place.mkdir(parents=True, exist_ok=True)
    norm_type = ["--norm-type", row.norm_type] if row.norm_type else []
    command = [
        sys.executable, Path(__file__).with_name("train.py"), "--data", options.data, "--output", place,
        "--depth", options.depth or row.depth, "--ln-mode", row.ln_mode, "--ln-mode-options", json.dumps(row.options),
        "--epochs", options.epochs, "--seed", seed, *norm_type, *(["--bf16"] if options.bf16 else []),
    ]  # fmt: skip
    with (place / "log.txt").open("a") as log:
        done = subprocess.run(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{row.name}, seed {seed}: train.py failed, see {log.name}")
    (options.output / f"table{options.table}.md").write_text(as_table(options))


def as_table(options: argparse.Namespace) -> str:
    """The rows with the results that there are."""
    rows = [["network", "published (164 epochs)", "test error", "per seed"]]
    for row in TABLES[options.table]:
        found = [error_of(row, seed, options) for seed in options.seeds]
        errors = [error for error in found if error is not None]
        mean = f"{sum(errors) / len(errors):.2f}" if errors else ""
        rows.append([row.name, row.published, mean, " ".join(f"{error:.2f}" for error in errors)])
    seeds = " ".join(map(str, options.seeds))
    return f"depth {options.depth or 110}, {options.epochs} epochs, seeds {seeds}\n\n{as_markdown(rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--data", required=True, help="as of train.py: CIFAR-10, and CIFAR-100 for table 6")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--depth", type=int, help="of all rows; by default that of the paper")
    parser.add_argument("--epochs", type=int, default=164)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--parallel", type=int, default=1, help="networks that train at the same time")
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    if options.table == "6" and options.depth:
        parser.error(f"--depth: {options.depth} given, but table 6 is of several depths")
    jobs = [(row, seed, options) for seed in options.seeds for row in TABLES[options.table]]
    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(lambda job: train(*job), jobs))
    print(as_table(options))


if __name__ == "__main__":
    main()
