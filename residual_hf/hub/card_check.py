# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The Hub's rules for the metadata of a model card, without a network.

They follow https://github.com/huggingface/hub-docs (modelcard.md, docs/hub/repositories-licenses.md).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.repocard import ModelCard, metadata_load

from residual_hf.errors import InputError

_IDENTIFIERS = """
afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 bigscience-openrail-m bsd
bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0
cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0
creativeml-openrail-m ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gfdl gpl gpl-2.0 gpl-3.0 isc lgpl
lgpl-2.1 lgpl-3.0 lgpl-lr lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openrail openrail++ osl-3.0 other
pddl postgresql unknown unlicense wtfpl zlib
"""
LICENSES = frozenset(_IDENTIFIERS.split())
LANGUAGE = re.compile(r"[a-z]{2,3}|code|multilingual")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
REQUIRED = ("library_name", "pipeline_tag", "tags")


def validate_card(path: str | Path) -> None:
    """Check the metadata of a translation model's card.

    Raises `InputError` naming the first field that is missing or wrong, as `model-index[0].results[0].task.type`, its
    value and what is allowed.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    try:
        metadata = metadata_load(path)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: the metadata are not YAML: {error}") from error
    if metadata is None:
        raise InputError(f"{path}: no metadata; a card begins with a block of YAML between lines of ---")
    try:
        check_metadata(metadata)
        ModelCard.load(path)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def check_metadata(metadata: dict[str, Any]) -> None:
    """`validate_card` for metadata that are not in a file yet."""
    for name in REQUIRED:
        if name not in metadata:
            raise InputError(f"{name}: missing")
    _is(metadata["pipeline_tag"] == "translation", "pipeline_tag", metadata["pipeline_tag"], "translation")
    _text(metadata["library_name"], "library_name")
    for name in ("tags", "metrics"):
        for where, value in _list(metadata, name):
            _text(value, where)
    for where, code in _list(metadata, "language", single=True):
        known = isinstance(code, str) and LANGUAGE.fullmatch(code)
        _is(known, where, code, "a code of ISO 639, two or three small letters, in quotes if YAML reads another value")
    for name in ("datasets", "base_model"):
        for where, value in _list(metadata, name, single=True):
            valid = isinstance(value, str) and HUB_ID.fullmatch(value) and "--" not in value and ".." not in value
            _is(valid, where, value, "an id on the Hub, as name or owner/name")
    _check_license(metadata)
    _check_emissions(metadata.get("co2_eq_emissions"))
    if "model-index" in metadata:
        models = list(_list(metadata, "model-index"))
        _is(models, "model-index", [], "a list with an entry")
        for where, model in models:
            _check_results(model, where)


def _check_license(metadata: dict[str, Any]) -> None:
    if "license" not in metadata:
        return
    value = metadata["license"]
    allowed = "an identifier of https://huggingface.co/docs/hub/repositories-licenses"
    _is(isinstance(value, str) and value in LICENSES, "license", value, allowed)
    if value == "other" and not metadata.get("license_name"):
        raise InputError("license_name: missing; license other needs a name")


def _check_emissions(emissions: Any) -> None:
    if emissions is None:
        return
    where = "co2_eq_emissions"
    if isinstance(emissions, dict):
        where, emissions = f"{where}.emissions", emissions.get("emissions")
    _is(_is_number(emissions) and emissions >= 0, where, emissions, "grams as a number")


def _check_results(model: Any, where: str) -> None:
    _text(_get(model, "name", where), f"{where}.name")
    results = list(_list(model, "results", where))
    _is(results, f"{where}.results", model.get("results"), "a list with an entry")
    for place, result in results:
        _text(_get(result, "task.type", place), f"{place}.task.type")
        for name in ("type", "name"):
            _text(_get(result, f"dataset.{name}", place), f"{place}.dataset.{name}")
        metrics = list(_list(result, "metrics", place))
        _is(metrics, f"{place}.metrics", result.get("metrics"), "a list with an entry")
        for spot, metric in metrics:
            _text(_get(metric, "type", spot), f"{spot}.type")
            value = _get(metric, "value", spot)
            _is(_is_number(value) or isinstance(value, str) and value, f"{spot}.value", value, "a number or a text")


def _get(record: Any, dotted: str, where: str) -> Any:
    for name in dotted.split("."):
        if not isinstance(record, dict) or name not in record:
            raise InputError(f"{where}.{dotted}: missing")
        record = record[name]
    return record


def _list(record: Any, name: str, where: str = "", single: bool = False) -> list[tuple[str, Any]]:
    """Members of a list with their places; nothing if the field is not there."""
    value = record.get(name, []) if isinstance(record, dict) else []
    path = f"{where}.{name}" if where else name
    if single and not isinstance(value, list):
        return [(path, value)]
    _is(isinstance(value, list), path, value, "a list")
    return [(f"{path}[{i}]", member) for i, member in enumerate(value)]


def _text(value: Any, where: str) -> None:
    _is(isinstance(value, str) and value.strip(), where, value, "a text")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is(holds: Any, where: str, value: Any, allowed: str) -> None:
    if not holds:
        raise InputError(f"{where}: {value!r} given; allowed is {allowed}")
