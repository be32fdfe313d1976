# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Options that several verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.base.errors import InputError
from residual_hf.generation.long_text import LONG_TEXT

SEARCH = ("num_beams", "length_penalty", "dtype")


def add_overwrite(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace existing output")


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
    from residual_hf.base.yaml_reader import load_yaml

    overrides = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise InputError(f"--set {assignment}: must have the form FIELD=VALUE")
        try:
            overrides[name] = load_yaml(value)
        except InputError as error:
            raise InputError(f"--set {assignment}: {error}") from error
    return overrides


def add_languages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source-lang", metavar="CODE", help="source language of a multilingual model")
    parser.add_argument("--target-lang", metavar="CODE", help="target language of a multilingual model")


def add_decoding(parser: argparse.ArgumentParser) -> None:
    add_languages(parser)
    parser.add_argument(
        "--long",
        choices=LONG_TEXT,
        help="how to handle lines with more tokens than the model has positions (default: error)",
    )
    add_overwrite(parser)
    add_search(parser)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-return-sequences", type=int, metavar="N", help="translations per line (default: 1)")
    parser.add_argument("--sample", action="store_true", help="sample translations instead of searching")
    parser.add_argument("--top-k", type=int, metavar="K", help="sample from the K most probable tokens")
    parser.add_argument("--temperature", type=float, help="temperature of sampling (default: 1)")
    parser.add_argument("--seed", type=int, help="seed of sampling (default: 1)")


def add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-beams", type=int, metavar="N", help="beam size (default: that of the model)")
    parser.add_argument("--length-penalty", type=float, help="exponent of the length (default: that of the model)")
    parser.add_argument("--batch-tokens", type=int, metavar="N", help="source tokens times beams in a batch")
    parser.add_argument("--dtype", choices=DECODING_DTYPES, help="default: that of the model; int8: CPU only")
    parser.add_argument("--device", help="cpu, cuda, ... (default: a GPU if there is one)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the model folder")


def load_translator(options: argparse.Namespace, model: str) -> Any:
    from residual_hf.generation.translator import Translator

    return Translator.from_pretrained(
        model,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
        num_beams=options.num_beams,
        length_penalty=options.length_penalty,
        max_tokens=options.batch_tokens,
        dtype=options.dtype,
    )


def stream_settings(options: argparse.Namespace) -> Any:
    """The `StreamSettings` of a verb with `add_sampling` and `add_search`."""
    from residual_hf.generation.stream import StreamSettings

    if options.sample and options.num_beams is not None:
        raise InputError(f"--num-beams: {options.num_beams} given, must be absent with --sample")
    return given_fields(StreamSettings, options)


def given_fields(cls: Any, options: argparse.Namespace) -> Any:
    """An instance of `cls` from the options with the names of its fields; options that are None keep the defaults."""
    given = {field.name: getattr(options, field.name, None) for field in fields(cls)}
    return cls(**{name: value for name, value in given.items() if value is not None})
