"""`residual-hf <verb>`: exit codes and messages; the verbs are in `commands/`."""

import argparse
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ._version import __version__
from .base.errors import BAD_INPUT, BROKEN_PIPE, DIVERGED, FAILED, INTERRUPTED, InputError, is_panic
from .base.files import NO_SPACE, expanded
from .base.interrupts import signals_interrupt
from .commands import analysis, load_package, sharing, training, using
from .commands.arguments import Verb, option_of
from .model.options import suggestion

GROUPS = {"train": training.VERBS, "use": using.VERBS, "share": sharing.VERBS, "study": analysis.VERBS}
"""In the order of `residual-hf --help`."""


def main(arguments: Sequence[str] | None = None, parser: argparse.ArgumentParser | None = None) -> int:
    """Run one verb; returns the exit code: 0, 2 for bad input, 3 for diverged training, 130 when interrupted, or 1.

    Args:
        parser: of a script (`script_parser`); default: that of all verbs.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by `2>&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # as files and their names, in every locale
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars of libraries in files and pipes
    options = (parser or build_parser()).parse_args(arguments, argparse.Namespace(arguments=arguments))
    code = run_verb(options)
    if "RANK" in os.environ:
        from .training.launch import shutdown_process_group

        shutdown_process_group(0 if code in (DIVERGED, INTERRUPTED) else code)  # in which all processes end
    return code


def run_verb(options: argparse.Namespace) -> int:
    signals: list[int] = []
    try:
        with signals_interrupt() as signals:
            if options.loads or options.imports:
                load_package()
            if options.imports:
                from .base.modes import import_modes

                for path in options.imports:
                    import_modes(path)
            code = options.run(options) or 0
            sys.stdout.flush()  # whose errors are those of the verb
            return code
    except InputError as error:
        print(f"{options.program}: {with_option(str(error), options.arguments)}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # what read the output has ended, `head` for example
        discard_output()
        return BROKEN_PIPE
    except BaseException as error:
        in_rust = is_panic(error) or "(os error " in str(error)  # a tokenizer that gives up, a full disk
        if isinstance(error, OSError) or in_rust:
            is_unnamed = getattr(error, "errno", None) in NO_SPACE and not getattr(error, "filename", None)
            where = f" (standard output, or the folder of temporary files {tempfile.gettempdir()})" * is_unnamed
            print(f"{options.program}: {error}{where}", file=sys.stderr)
            if is_unnamed:
                discard_output()
            return FAILED
        if signals or isinstance(error, KeyboardInterrupt):
            print(f"{options.program}: interrupted", file=sys.stderr)
            return INTERRUPTED
        raise


def discard_output() -> None:
    """Let the rest of standard output go nowhere: Python would try once more to write it at the end."""
    with suppress(io.UnsupportedOperation):  # of a program that has put something else in its place
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def with_option(message: str, arguments: Sequence[str]) -> str:
    """A message that begins with the name of a setting, with its option if the user has given that."""
    name, colon, reason = message.partition(":")
    option = option_of(name)
    return f"{option}{colon}{reason}" if any(a.partition("=")[0] == option for a in arguments) else message


class Parser(argparse.ArgumentParser):
    """A parser whose message for an unknown verb, option or choice has the closest known one."""

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        known = re.findall(r"[\w.+-]+", choice[2]) if choice else [*self._option_string_actions]
        if found := choice or re.match(r"unrecognized arguments: (?:.* )?(-[^ =]*)", message):
            close = suggestion(found[1], known)
            message += f"; {close}" if close else ""
        super().error(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses unknown options here, where those of the verb are known."""
        options, unknown = super().parse_known_args(args, namespace)
        if any(word.startswith("-") for word in unknown):
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="residual-hf",
        usage="%(prog)s [-h] [--version] VERB ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"residual-hf {__version__}")
    verbs = parser.add_subparsers(
        dest="verb",
        required=True,
        metavar="VERB",
        prog=parser.prog,
        help=argparse.SUPPRESS,  # is in the description
    )
    lines = ["Train, use and study Transformers with a choice of residual connections."]
    for group, members in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:<11} {verb.summary}" for name, verb in members.items())]
        for name, verb in members.items():
            options = verbs.add_parser(name, description=f"{verb.summary[0].upper()}{verb.summary[1:]}.")
            declare(options, verb)
    parser.description = "\n".join(lines)
    return parser


def script_parser(
    description: str | None,
    add_options: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int | None],
) -> argparse.ArgumentParser:
    """The parser of a script that is one verb, with the functions of a `Verb`."""
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    declare(parser, Verb("", add_options, run))
    return parser


def declare(parser: argparse.ArgumentParser, verb: Verb) -> None:
    parser.register("type", Path, expanded)  # shells leave the `~` in `--output-dir=~/run`
    parser.set_defaults(run=verb.run, loads=verb.loads, imports=[], program=parser.prog)
    verb.add_options(parser)
    if verb.has_modes:
        parser.add_argument(
            "--import",
            dest="imports",
            action="append",
            type=Path,
            metavar="FILE",
            help="Python file with modes of your own, which is run; repeatable",
        )


if __name__ == "__main__":
    sys.exit(main())
