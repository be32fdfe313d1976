# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What a saved model folder must hold, checked without loading its weights."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, GenerationConfig
from transformers.dynamic_module_utils import get_relative_import_files

from residual_hf._version import __version__
from residual_hf.errors import InputError
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import ResidualConnection, get_ln_mode
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
NOT_FIELDS = {"auto_map", "custom_pipelines", "model_type", "quantization_config"}
AUTO_CLASSES = ("AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM")
NAMED = 5  # weights in an error message


def validate_model_folder(folder: str | os.PathLike) -> list[str]:
    """The names of the files that make up the model of a folder: config, weights, tokenizer, code; not the card.

    Raises `InputError` naming file and field for whatever would keep the model from loading elsewhere: no readable
    config, generation config or tokenizer, weights that are damaged or do not fit the config, a vocabulary larger
    than the model's, model code that is missing or incomplete.
    """
    folder = Path(folder)
    values = read_config(folder)
    config = _build_config(values, folder / "config.json")
    _check_generation_config(folder, config)
    weights = check_weights(folder, config)
    tokenizer_files = _check_tokenizer(folder, config)
    code = _check_code(folder, values, config)
    return ["config.json", "generation_config.json", *weights, *tokenizer_files, *code]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `InputError` where there is none."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        values = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: a {type(values).__name__}, must be a JSON object")
    return values


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of `config.json`; `InputError` for those of another model, or that this version does not know."""
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") != ResidualConfig.model_type:
        raise InputError(
            f"{path}: model_type is {values.get('model_type')!r}, allowed is {ResidualConfig.model_type!r}"
        )
    check_fields(values, path)
    return values


def check_fields(values: dict[str, Any], where: object) -> None:
    """Refuse fields that would be ignored: those of a newer version change what the model computes."""
    known = {field.name for field in dataclasses.fields(ResidualConfig)} | {*ResidualConfig.attribute_map, *NOT_FIELDS}
    unknown = sorted(name for name in values if name not in known and not name.startswith("_"))
    if unknown:
        raise InputError(
            f"{where}: residual_hf {__version__} does not know the fields {', '.join(unknown)}: the model was saved "
            "by a newer version (upgrade residual_hf), or they do not belong there (remove them)"
        )


def _build_config(values: dict[str, Any], path: Path) -> ResidualConfig:
    try:
        return ResidualConfig.from_dict(values)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise InputError(f"{path}: {error}") from error


def _check_generation_config(folder: Path, config: ResidualConfig) -> None:
    path = folder / "generation_config.json"
    read_json(path)
    try:
        generation = GenerationConfig.from_pretrained(folder)
        generation.validate()
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: {error}") from error
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        value = getattr(generation, name)
        for token in value if isinstance(value, list) else [value]:
            if token is not None and not 0 <= token < config.decoder_vocab_size:
                raise InputError(f"{path}: {name} {token} lies outside the {config.decoder_vocab_size} target tokens")


def weight_shapes(folder: Path) -> tuple[list[str], dict[str, tuple[int, ...]]]:
    """The weight files of a folder and the shape of every tensor in them; `InputError` naming a damaged file."""
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        placed = read_json(folder / INDEX).get("weight_map")
        if not isinstance(placed, dict) or any(Path(str(name)).name != name for name in placed.values()):
            raise InputError(f"{folder / INDEX}: no weight_map in it that names files beside it")
        names = sorted(set(placed.values()))
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: there is no such file; weights are saved as safetensors by save_checkpoint")
        try:
            with safe_open(path, "pt") as file:
                shapes |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InputError(
                f"{path}: damaged or cut off ({error}); copy or download the file again ({path.stat().st_size} bytes)"
            ) from error
    return [*names, *([INDEX] if names != [WEIGHTS] else [])], shapes


def check_weights(folder: Path, config: ResidualConfig) -> list[str]:
    """The weight files, checked by their headers against the model that the config describes."""
    names, found = weight_shapes(folder)
    with torch.device("meta"):
        model = ResidualForConditionalGeneration(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    allowed = wanted | dict.fromkeys(model.all_tied_weights_keys, ())
    refuse_differences(
        folder,
        missing=wanted.keys() - found.keys() - model.all_tied_weights_keys.keys(),
        unknown=found.keys() - allowed.keys(),
        mismatched=[(k, found[k], wanted[k]) for k in sorted(found.keys() & wanted) if found[k] != wanted[k]],
    )
    return names


def refuse_differences(
    where: object,
    missing: Iterable[str],
    unknown: Iterable[str],
    mismatched: Iterable[tuple[str, Iterable[int], Iterable[int]]],
) -> None:
    """`InputError` naming weights that do not fit the config: missing, unknown, or (name, shape, right shape)."""
    shapes = [f"{name} {tuple(found)} instead of {tuple(wanted)}" for name, found, wanted in mismatched]
    differences = {"missing": sorted(missing), "unknown": sorted(unknown), "of another shape": shapes}
    parts = []
    for kind, names in differences.items():
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            parts.append(f"{kind}: {', '.join(names[:NAMED])}{more}")
    if parts:
        raise InputError(f"{where}: weights and config.json do not fit; {'; '.join(parts)}")


def check_vocabulary(tokenizer: Any, config: ResidualConfig, where: object) -> None:
    """Refuse a tokenizer with more tokens than the model has, or other ids for padding and end of sentence."""
    refuse_larger(tokenizer, config.vocab_size, config.decoder_vocab_size, where)
    for name in ("pad_token_id", "eos_token_id"):
        expected, found = getattr(config, name), getattr(tokenizer, name)
        if found is not None and found not in (expected if isinstance(expected, list) else [expected]):
            raise InputError(f"{where}: {name} is {found} in the tokenizer, {expected} in config.json")


def refuse_larger(tokenizer: Any, source_rows: int, target_rows: int, where: object) -> None:
    """Refuse a tokenizer with more tokens than the tables of the model have rows."""
    target_tokens = getattr(tokenizer, "target_vocab_size", len(tokenizer))
    for language, tokens, rows in (("source", len(tokenizer), source_rows), ("target", target_tokens, target_rows)):
        if tokens > rows:
            raise InputError(f"{where}: the tokenizer has {tokens} tokens for the {language}, the model has {rows}")


def _check_tokenizer(folder: Path, config: ResidualConfig) -> list[str]:
    values = read_json(folder / "tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise InputError(f"{folder}: the tokenizer cannot be loaded: {error}") from error
    check_vocabulary(tokenizer, config, folder)
    names = dict.fromkeys([*TOKENIZER_FILES, *tokenizer.vocab_files_names.values()])
    code = [reference for pair in values.get("auto_map", {}).values() for reference in pair if reference]
    modules = [_check_reference(folder, reference, "tokenizer_config.json: auto_map") for reference in code]
    return [name for name in names if (folder / name).is_file()] + modules


def _check_code(folder: Path, values: dict[str, Any], config: ResidualConfig) -> list[str]:
    """The files of the model code: all that `auto_map` and `custom_pipelines` lead to."""
    auto_map, pipelines = values.get("auto_map") or {}, values.get("custom_pipelines") or {}
    references = {f"auto_map: {name}": auto_map.get(name) for name in AUTO_CLASSES}
    references |= {
        f"custom_pipelines: {task}": (pipelines.get(task) or {}).get("impl")
        for task in dict.fromkeys(["translation", *pipelines])
    }
    names: dict[str, None] = {}
    for field, reference in references.items():
        entry = _check_reference(folder, reference, f"config.json: {field}")
        try:
            imported = [Path(path).name for path in get_relative_import_files(folder / entry)]
        except (OSError, SyntaxError) as error:
            raise InputError(f"{folder / entry}: its imports cannot be followed: {error}") from error
        names |= dict.fromkeys([entry, *imported])
    for stack in ("encoder", "decoder"):
        mode = get_ln_mode(config.stack_ln_mode(stack))
        home, _, module = mode.__module__.rpartition(".")
        if home != ResidualConnection.__module__.rpartition(".")[0] and f"{module}.py" not in names:
            raise InputError(
                f"{folder}: the code of ln_mode {mode.name!r} ({mode.__module__}) is not in it, so the model would "
                "load nowhere else: put the mode into a file of its own, import it and save the model again"
            )
    return sorted(names)


def _check_reference(folder: Path, reference: Any, field: str) -> str:
    """The file that holds `module.Class`."""
    module, _, name = str(reference or "").rpartition(".")
    if not module.isidentifier() or not name.isidentifier():
        raise InputError(
            f"{folder}: {field} is {reference!r}, must be a class of a file beside it; save the model again with "
            "save_checkpoint, which writes the model code"
        )
    path = folder / f"{module}.py"
    try:
        classes = [node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path}: the model code cannot be read: {error}") from error
    if name not in classes:
        raise InputError(f"{path}: no class {name} in it, which {field} names")
    return path.name
