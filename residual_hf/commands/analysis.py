"""Verbs that describe residual connections and compare them."""

import argparse
from pathlib import Path

from residual_hf.base.errors import input_errors

from .arguments import Verb, add_overwrite


def add_modes(modes: argparse.ArgumentParser) -> None:
    modes.add_argument("names", nargs="*", metavar="name", help="names of modes; without one, all are listed")


def run_modes(options: argparse.Namespace) -> None:
    from residual_hf.analysis.mode_list import describe_mode, modes_table

    with input_errors("", ValueError):
        if options.names:
            from residual_hf.conversion.export import targets_of  # as slow as PyTorch; the table does without

            print("\n\n".join(describe_mode(name, targets_of(name)) for name in options.names))
        else:
            print(modes_table())


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


VERBS = {
    "modes": Verb("list or describe residual connections", add_modes, run_modes, loads=False),
    "report": Verb("compare training runs on one HTML page", add_report, run_report, loads=False),
}
