"""Figures 3 and 4 of "Rethinking Skip Connection" (Liu et al. 2020) from runs of `train.py` on CIFAR.

    python examples/images/figures.py --data cifar10 --runs runs/* --output figures

Gradient norms of the outputs of the middle stage's blocks and the effective scale of their shortcuts, and the training
loss. Runs that differ only in the seed are one line with a band.
"""

import argparse
import json
import sys
from pathlib import Path

from pictures import Images, read

sys.path.append(str(Path(__file__).parents[1] / "papers"))
from cifar_figures import FIGURES, middle_stage
from points import Point, write_points

from residual_hf import ResidualForImageClassification
from residual_hf.base.errors import InputError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    runs = [run for run in options.runs if (run / "result.json").exists()]
    if not runs:
        sys.exit(f"figures.py: --runs {' '.join(map(str, options.runs))}: no folder with a result.json of train.py")
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    try:
        splits, _ = read(options.data, results[0]["image_size"])
    except InputError as error:
        sys.exit(f"figures.py: {error}")
    pixels = splits["train"][0].float() / 255
    test = Images(*splits["test"], pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)), augment=False)
    step = max(1, len(test) // 256)  # the images may be sorted by class
    batch = test.__getitems__(list(range(0, len(test), step)))
    points: dict[str, list[Point]] = {figure.name: [] for figure in FIGURES}
    scales = []
    several = len({result["depth"] for result in results}) > 1
    for run, result in zip(runs, results, strict=True):
        values = map(str, result["ln_mode_options"].values())
        depth = f"depth {result['depth']}" if several else None
        series = " ".join(filter(None, [result["ln_mode"], *values, result["norm_type"], depth]))
        model = ResidualForImageClassification.from_pretrained(run)
        found = list(middle_stage(model, batch, series, result["seed"]))
        points["skip-cifar-3"] += found
        points["skip-cifar-4"] += [
            Point("training loss", series, result["seed"], update, loss) for update, loss in result["losses"]
        ]
        scales.append((series, result["seed"], [point.y for point in found if point.panel == "effective scale"]))
    for figure in FIGURES:
        if not points[figure.name]:  # runs of fewer than 50 updates have no losses
            continue
        caption = f"As {figure.source}, but of {len(scales)} runs of examples/images/train.py."
        print(*write_points(options.output, figure.name, figure.panels, points[figure.name], caption), sep="\n")
    for series, seed, values in scales:
        mean = f"{sum(values) / len(values):.2f}" if values else "not defined for this mode"
        print(f"{series}, seed {seed}: mean effective scale of the middle stage {mean}")


if __name__ == "__main__":
    main()
