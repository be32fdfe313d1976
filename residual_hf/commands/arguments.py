"""Verbs, and the options that several of them share."""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from residual_hf.base.errors import InputError, input_errors, refuse_if
from residual_hf.evaluation.score_table import score_line, score_table
from residual_hf.generation.generation_settings import DecodingSettings, StreamSettings
from residual_hf.model.options import type_hints

from . import load_package

METAVARS = {int: "N", float: "X", Path: "FILE"}
SAMPLING = ("num_return_sequences", "sample", "top_k", "temperature", "seed")
SEARCH = ("num_beams", "length_penalty", "dtype", "shortlist")


class Verb(NamedTuple):
    """A verb: its line in `--help`, its functions, and whether PyTorch and Transformers are loaded before it runs.

    `run` returns an exit code, None for 0. `has_modes`: the verb reads recipes or models, whose modes may be a user's.
    """

    summary: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    loads: bool = True
    has_modes: bool = True


def integer(text: str) -> int:
    """A `type` of an option: an integer of at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} given, must be at least 1")
    return number


def add_overwrite(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace existing output")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print scores as JSON, not as a line and a table")


def print_scores(report: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print a report as a line with the scores and a table, or with `--json` for machines."""
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print(score_line(report), "", score_table(report), sep="\n")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override a field of the recipe, such as training.seed=2; repeatable",
    )


def parse_overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """["training.seed=2"] to {"training.seed": 2}; values are YAML."""
    from residual_hf.base.yaml_files import load_yaml

    overrides = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise InputError(f"--set {assignment}: must have the form FIELD=VALUE")
        with input_errors(f"--set {assignment}: put text with special characters into quotes: "):
            overrides[name] = load_yaml(value)
    return overrides


def add_fields(parser: argparse.ArgumentParser, cls: type, *names: str) -> None:
    for name in names:
        add_field(parser, cls, name)


def add_field(
    parser: argparse.ArgumentParser, cls: type, name: str, *, flag: str | None = None, default: Any = None
) -> None:
    """The option for a field of a settings class, with the type, the choices and the help of its declaration.

    An option that is not given is None, which `given_fields` leaves out.

    Args:
        flag: the option, if it is not `--name`.
        default: shown instead of the default of the class.
    """
    (field,) = (field for field in fields(cls) if field.name == name)
    hint, choices, default = type_hints(cls)[name], field.metadata["choices"], default or field.default
    (kind,) = {part for part in get_args(hint) or (hint,) if part not in (NoneType, ...)}
    help = with_options(cls, field.metadata["help"]).replace("`", "").replace("%", "%%")
    described: dict[str, Any] = {"type": kind, "choices": choices, "metavar": None if choices else METAVARS.get(kind)}
    if kind is bool:
        described = {"action": "store_true", "default": None}
    elif get_origin(hint) is tuple:
        described["action"], help = "append", f"{help}; repeatable"
    elif default is not None:
        help += f" (default: {default})"
    parser.add_argument(flag or option_of(name), help=help, **described)


def option_of(name: str) -> str:
    """`--num-beams` for `num_beams`."""
    return f"--{name.replace('_', '-')}"


def with_options(cls: type, text: str) -> str:
    """A text about fields of a settings class, with their options in place of their names in backticks."""
    names = "|".join(field.name for field in fields(cls))
    return re.sub(f"`({names})`", lambda name: option_of(name[1]), text)


def add_search(parser: argparse.ArgumentParser, batch_tokens: int | None = None) -> None:
    """The options of `load_translator`."""
    for name in SEARCH:
        add_field(parser, DecodingSettings, name, default="that of the model")
    add_field(parser, DecodingSettings, "max_tokens", flag="--batch-tokens", default=batch_tokens)
    parser.set_defaults(batch_tokens=batch_tokens)
    parser.add_argument(
        "--glossary",
        type=Path,
        metavar="FILE",
        help="lines of a term and its translation, with a tab, a semicolon or a comma between them",
    )
    add_loading(parser)


def add_loading(parser: argparse.ArgumentParser) -> None:
    """The options of a model that is loaded."""
    parser.add_argument("--device", help="cpu, cuda, ... (default: a GPU if there is one)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the model folder")


def load_translator(options: argparse.Namespace, model: str) -> Any:
    """A `Translator` with the options that the verb has."""
    load_package()
    from residual_hf.generation.translator import Translator

    return Translator.from_pretrained(
        model,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
        glossary=getattr(options, "glossary", None),
        max_tokens=options.batch_tokens,
        **{name: getattr(options, name, None) for name in SEARCH},
    )


def made_with(options: argparse.Namespace, model: str) -> dict[str, Any]:
    """The identity of the translator of `load_translator`. Raises `InputError` for a glossary that cannot be read."""
    from residual_hf.checkpoint import identity
    from residual_hf.data.glossary import Glossary
    from residual_hf.model.checksums import file_hash

    found = {name: getattr(options, name) for name in SEARCH} | identity(model) | {"glossary": None}
    found["imports"] = [file_hash(path) for path in options.imports]
    if options.glossary is not None:
        Glossary.read(options.glossary)
        found["glossary"] = file_hash(options.glossary)
    return found


def refuse(options: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Raise `InputError` if one of some options is given."""
    refuse_if({f"{option_of(name)}: {reason}": getattr(options, name) for name in names})


def stream_settings(options: argparse.Namespace) -> StreamSettings:
    """The `StreamSettings` of a verb with the options `SAMPLING` and `add_search`."""
    if options.sample:
        refuse(options, ["num_beams"], f"{options.num_beams} given, must be absent with --sample")
    return given_fields(StreamSettings, options)


def arguments_of(function: Callable[..., Any], options: argparse.Namespace) -> dict[str, Any]:
    """The options that are named as parameters of a function and are given."""
    given = {name: getattr(options, name, None) for name in signature(function).parameters}
    return {name: value for name, value in given.items() if value is not None}


def given_fields(cls: Any, options: argparse.Namespace) -> Any:
    """An instance of a settings class from the options that are named as its fields and are given.

    Raises `InputError` with the name of the option for a value that is not allowed.
    """
    try:
        return cls(**arguments_of(cls, options))
    except InputError as error:
        name, colon, reason = str(error).partition(":")
        raise InputError(with_options(cls, f"`{name}`{colon}{reason}")) from error
