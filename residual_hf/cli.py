# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""`residual-hf <verb>`: exit codes and messages; the verbs are in `commands/`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ._version import __version__
from .base.errors import InputError, is_panic
from .base.interrupts import signals_interrupt
from .commands import BAD_INPUT, BROKEN_PIPE, FAILED, INTERRUPTED, analysis, sharing, training, using

VERBS = (
    training.add_quickstart,
    training.add_init,
    analysis.add_check,
    training.add_train,
    training.add_average,
    training.add_distill,
    using.add_evaluate,
    using.add_translate,
    using.add_serve,
    sharing.add_card,
    sharing.add_push,
    sharing.add_convert,
    sharing.add_export,
    analysis.add_modes,
    analysis.add_report,
    analysis.add_replay,
    analysis.add_figures,
    analysis.add_stress,
)
"""In the order of `residual-hf --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0, 2 for bad input, 3 for diverged training, 130 when interrupted, or 1."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by `2>&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars of libraries in files and pipes
    options = build_parser().parse_args(arguments, argparse.Namespace(arguments=arguments))
    code = run_verb(options)
    if "RANK" in os.environ:
        from .training.launch import shutdown_process_group

        shutdown_process_group()
    return code


def run_verb(options: argparse.Namespace) -> int:
    signals: list[int] = []
    try:
        with signals_interrupt() as signals:
            return options.run(options)
    except InputError as error:
        print(f"residual-hf {options.verb}: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # what read the output has ended, `head` for example
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except BaseException as error:
        in_rust = is_panic(error) or "(os error " in str(error)  # a tokenizer that gives up, a full disk
        if isinstance(error, OSError) or in_rust:
            print(f"residual-hf {options.verb}: {error}", file=sys.stderr)
            return FAILED
        if signals or isinstance(error, KeyboardInterrupt):
            print(f"residual-hf {options.verb}: interrupted", file=sys.stderr)
            return INTERRUPTED
        raise


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="residual-hf", description="Train, use and study Transformers with a choice of residual connections."
    )
    parser.add_argument("--version", action="version", version=f"residual-hf {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for add_verb in VERBS:
        add_verb(verbs)
    return parser


if __name__ == "__main__":
    sys.exit(main())
