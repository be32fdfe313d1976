# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Verbs that describe, compare and diagnose residual connections."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from residual_hf.base.errors import BAD_INPUT, InputError
from residual_hf.base.files import check_output_file, write_atomically
from residual_hf.base.tables import as_table
from residual_hf.runs.stress_setting import StressSetting

from .arguments import Verb, add_fields, add_overwrite, given_fields


def add_modes(modes: argparse.ArgumentParser) -> None:
    modes.add_argument("names", nargs="*", metavar="name", help="name of a mode; several with --svg")
    modes.add_argument("--svg", type=Path, metavar="FILE", help="draw the wiring of the modes to an SVG file")
    modes.add_argument("--stack", choices=("encoder", "decoder"), default="encoder", help="stack to draw with --svg")
    add_overwrite(modes)


def run_modes(options: argparse.Namespace) -> None:
    from residual_hf.analysis.mode_list import describe_mode, modes_table

    if options.svg is None and len(options.names) > 1:
        raise InputError(f"modes: {len(options.names)} names given; without --svg at most one is described")
    if options.svg is not None and not options.names:
        raise InputError("--svg: name the modes to draw, as in `residual-hf modes post_ln pre_ln --svg FILE`")
    try:
        if options.svg is not None:
            from residual_hf.analysis.diagrams.diagram import draw_modes

            check_output_file(options.svg, overwrite=options.overwrite, field="--svg", suffix=".svg")
            write_atomically(options.svg, draw_modes(options.names, options.stack))
            print(options.svg)
        elif options.names:
            from residual_hf.conversion.export import targets_of  # as slow as PyTorch; the table does without

            print(describe_mode(options.names[0], targets_of(options.names[0])))
        else:
            print(modes_table())
    except ValueError as error:
        raise InputError(str(error)) from error


def add_figures(figures: argparse.ArgumentParser) -> None:
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


def run_figures(options: argparse.Namespace) -> int:
    from residual_hf.analysis.figures.figure import draw_figure
    from residual_hf.analysis.figures.gallery import FIGURES, find_figures
    from residual_hf.analysis.figures.own_model import OwnModel, draw_for_model
    from residual_hf.base.files import check_space

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
            print(f"residual-hf figures: left out: {error}", file=sys.stderr)
    return 0 if drawn else BAD_INPUT


def add_stress(stress: argparse.ArgumentParser) -> None:
    stress.add_argument("--output-dir", type=Path, required=True, help="for runs.jsonl (continued), table and plot")
    stress.add_argument("--recipe", type=Path, help="train on the corpora of this recipe (default: generated text)")
    stress.add_argument("--modes", nargs="+", default=[], help="modes to test (default: all)")
    stress.add_argument("--layers", nargs="+", type=int, default=[6, 18], help="layers of each stack (default: 6 18)")
    stress.add_argument("--seeds", nargs="+", type=int, default=[1], help="default: 1")
    add_fields(stress, StressSetting, "width", "updates", "max_tokens", "max_lr")


def run_stress(options: argparse.Namespace) -> None:
    from residual_hf.analysis.output import check_matplotlib
    from residual_hf.base.lock import Lock
    from residual_hf.base.modes import check_modes
    from residual_hf.runs.recipe import load_recipe
    from residual_hf.runs.stress import corpus_of, stress, write_results

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


def add_report(report: argparse.ArgumentParser) -> None:
    report.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="RUN_FOLDER",
        help="output folders of `residual-hf train`; the first is compared with the others",
    )
    report.add_argument("--output-file", type=Path, default=Path("report.html"), help="default: report.html")
    add_overwrite(report)


def run_report(options: argparse.Namespace) -> None:
    from residual_hf.analysis.report.page import write_report

    print(write_report(options.folders, options.output_file, overwrite=options.overwrite))


def add_replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("folder", type=Path, metavar="RUN", help="output folder of `residual-hf train`")
    replay.add_argument("--at", type=int, metavar="UPDATE", help="update of the spike (default: the last spike)")


def run_replay(options: argparse.Namespace) -> None:
    from residual_hf.base.processes import this_process
    from residual_hf.runs.replay import replay

    found = replay(options.folder, options.at)
    if this_process().is_main_process:
        print(found)


VERBS = {
    "modes": Verb("list, describe or draw residual connections", add_modes, run_modes, loads=False),
    "report": Verb("compare training runs on one HTML page", add_report, run_report),
    "replay": Verb("repeat the updates before a loss spike and measure each of them", add_replay, run_replay),
    "figures": Verb("measure and draw figures of the papers for any mode", add_figures, run_figures),
    "stress": Verb("find the largest learning rate at which each mode trains", add_stress, run_stress),
}
