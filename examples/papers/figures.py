"""Measure and draw figures of the papers for any mode.

python examples/papers/figures.py resi_dual-2 b2t-3 admin-3 --modes rezero deep_norm --output-dir figures
python examples/papers/figures.py b2t-3 --model runs/my_run --modes pre_ln b2t --output-dir figures
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from all_figures import FIGURES, find_figures
from figure import draw_figure
from own_model import OwnModel, draw_for_model

from residual_hf.base.errors import BAD_INPUT, InputError
from residual_hf.base.files import check_space
from residual_hf.base.tables import as_table
from residual_hf.cli import main, script_parser


def add_options(figures: argparse.ArgumentParser) -> None:
    figures.add_argument(
        "names", nargs="*", metavar="name", help="such as resi_dual-2, or all; without a name, they are listed"
    )
    figures.add_argument("--output-dir", type=Path, help="folder for NAME.png, NAME.svg and NAME.csv")
    figures.add_argument("--modes", nargs="+", default=[], help="modes in addition to those of the published figure")
    figures.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="default: 1 2 3")
    figures.add_argument(
        "--full",
        action="store_true",
        help="use the full sizes, which captions name, where the default ones are smaller, to take minutes on a CPU",
    )
    figures.add_argument(
        "--model",
        help="model to draw, as a folder or a name on the Hub; --modes are untrained models of its size",
    )
    figures.add_argument("--source", type=Path, help="text for --model (default: the validation set of the run)")
    figures.add_argument("--reference", type=Path, help="references for --source")


def run(options: argparse.Namespace) -> int:
    if not options.names:
        print(as_table([(figure.name, figure.source) for figure in FIGURES.values()]))
        return 0
    if options.output_dir is None:
        raise InputError("--output-dir: missing, required to draw figures")
    figures, draw = find_figures(options.names), partial[list[Path]](draw_figure, full=options.full)
    if options.model is not None:
        if options.full:
            raise InputError("--full: a model has its own size")
        draw = partial(draw_for_model, own=OwnModel.load(options.model, options.source, options.reference))
    elif options.source is not None or options.reference is not None:
        raise InputError("--source, --reference: given without --model")
    folder = options.output_dir.absolute()
    check_space(next(path for path in (folder, *folder.parents) if path.exists()), field="--output-dir")
    drawn = False
    for figure in figures:
        try:
            paths = draw(figure, output_dir=options.output_dir, modes=options.modes, seeds=options.seeds)
            print(*paths, sep="\n")
            drawn = True
        except InputError as error:
            if "all" not in options.names:
                raise
            print(f"figures.py: left out: {error}", file=sys.stderr)
    return 0 if drawn else BAD_INPUT


if __name__ == "__main__":
    sys.exit(main(parser=script_parser(__doc__, add_options, run)))
