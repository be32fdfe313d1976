# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Which residual connections need a warm-up of the learning rate: a recipe, run with and without, for several modes.

python examples/warmup/study.py examples/tatoeba_de_en/recipe.yaml --warmup 300 0 --modes resi_dual post_ln pre_ln

Every run is `residual-hf train` with `--set`; what is finished is not repeated, what is unfinished goes on. The table
is printed at the end, as Markdown, and is that of Table 5 of Xie et al. 2023 (ResiDual) in form. `--set` changes any
field of the recipe for all runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("recipe", type=Path)
parser.add_argument("--modes", nargs="+", default=["resi_dual", "post_ln", "pre_ln", "admin", "deep_norm", "b2t"])
parser.add_argument("--warmup", nargs=2, type=int, default=[4000, 0], help="updates of warm-up, first and second run")
parser.add_argument("--seeds", nargs="+", type=int, default=[1])
parser.add_argument("--output-dir", type=Path, default=Path("runs/warmup"))
parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")


def run(options: argparse.Namespace, mode: str, warmup: int, seed: int) -> dict[str, float] | None:
    """The figures of one run on the validation set; None if it diverged."""
    folder = options.output_dir / f"{mode}_{warmup}_{seed}"
    if not (folder / "metrics.json").exists():
        own = [f"model.ln_mode={mode}", f"training.warmup_updates={warmup}", f"training.seed={seed}"]
        fields = [argument for field in (*options.set, *own) for argument in ("--set", field)]
        command = [sys.executable, "-m", "residual_hf.cli", "train", str(options.recipe), "--output-dir", str(folder)]
        done = subprocess.run([*command, "--resume", *fields], stdout=subprocess.DEVNULL)
        if done.returncode == 1 and not (folder / "metrics.json").exists():
            return None
        done.check_returncode()
    figures = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["valid"]
    return {"nll": figures["nll"], "bleu": figures["bleu"]["value"]}


def cell(results: list[dict[str, float] | None], figure: str) -> str:
    """The mean over seeds and, of several, the range."""
    values = [result[figure] for result in results if result is not None]
    failed = f" ({len(results) - len(values)} diverged)" if len(values) < len(results) else ""
    if not values:
        return "diverged"
    spread = f" ({min(values):.2f}-{max(values):.2f})" if len(values) > 1 else ""
    return f"{sum(values) / len(values):.2f}{spread}{failed}"


def main() -> None:
    options = parser.parse_args()
    rows = []
    for mode in options.modes:
        results = [[run(options, mode, warmup, seed) for seed in options.seeds] for warmup in options.warmup]
        rows.append([mode, *(cell(of_warmup, figure) for figure in ("nll", "bleu") for of_warmup in results)])
    first, second = options.warmup
    titles = [f"{figure}, warm-up {warmup}" for figure in ("NLL", "BLEU") for warmup in (first, second)]
    for row in (["`ln_mode`", *titles], ["---"] * 5, *rows):
        print("|", " | ".join(row), "|")


if __name__ == "__main__":
    main()
