# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What the folder of a finished training run holds, read for its card."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from residual_hf.data.corpus import CorpusSpec, read_parallel
from residual_hf.data.text_files import iter_lines
from residual_hf.errors import InputError


@dataclass(frozen=True)
class FinishedRun:
    """The output folder of `residual-hf train`; `record` is `run.json`, empty in a run that wrote none.

    `recipe` and `config` are plain values, so that runs of older versions and modes of others can be read.
    """

    folder: Path
    recipe: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, Any]
    curve: list[dict[str, Any]]
    record: dict[str, Any]
    cleaning: dict[str, Any] | None

    @property
    def languages(self) -> tuple[str, str]:
        return self.recipe["source_lang"], self.recipe["target_lang"]

    @property
    def ln_modes(self) -> tuple[str, ...]:
        """The modes of encoder and decoder, once if they have the same."""
        own = (self.config.get(f"{stack}_ln_mode") or self.config.get("ln_mode") for stack in ("encoder", "decoder"))
        return tuple(dict.fromkeys(own))

    @property
    def split(self) -> str:
        """What the model is judged by: `"test"`, or `"valid"` in a run without test set."""
        return "test" if "test" in self.metrics else "valid"

    @property
    def hours(self) -> float | None:
        """How long the run took."""
        if self.record.get("seconds") is not None:
            return self.record["seconds"] / 3600
        return self.metrics["minutes"] / 60 if "minutes" in self.metrics else None

    def corpus_record(self, split: str) -> dict[str, Any]:
        """What `run.json` says of a corpus; empty if it says nothing."""
        return (self.record.get("data") or {}).get(split) or {}

    def hypotheses(self, split: str) -> list[str]:
        return list(iter_lines(self.folder / f"{split}.hypotheses.txt"))

    def references(self, split: str) -> list[str]:
        """The references of a split, read again; `InputError` if they are not there or not those of the run."""
        spec = (self.recipe.get("data") or {}).get(split)
        if not isinstance(spec, dict):
            raise InputError(f"{self.folder / 'recipe.yaml'}: data.{split} missing")
        try:
            corpus = read_parallel(CorpusSpec(**spec))
        except TypeError as error:
            raise InputError(f"{self.folder / 'recipe.yaml'}: data.{split}: {error}") from error
        recorded = self.corpus_record(split).get("sha256")
        if recorded and sorted(recorded.values()) != sorted(corpus.sha256.values()):
            raise InputError(f"data.{split}: {corpus.name} has changed since the run of {self.folder}")
        return corpus.targets


def read_run(folder: str | Path) -> FinishedRun:
    """Read the folder of a run. Raises `InputError` naming what is missing or broken in it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"run folder: {folder} is not a folder")
    for name in ("recipe.yaml", "metrics.json", "model/config.json"):
        if not (folder / name).is_file():
            raise InputError(
                f"run folder: {folder} has no {name}; allowed is the folder of a finished residual-hf train"
            )
    try:
        recipe = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{folder / 'recipe.yaml'}: not a YAML file: {error}") from error
    for name in ("source_lang", "target_lang"):
        if not isinstance(recipe, dict) or not isinstance(recipe.get(name), str):
            raise InputError(f"{folder / 'recipe.yaml'}: {name} missing")
    return FinishedRun(
        folder=folder,
        recipe=recipe,
        config=_json(folder / "model" / "config.json"),
        metrics=_json(folder / "metrics.json"),
        curve=_json_lines(folder / "metrics.jsonl"),
        record=_json(folder / "run.json") if (folder / "run.json").is_file() else {},
        cleaning=_json(folder / "cleaning.json") if (folder / "cleaning.json").is_file() else None,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: must be a JSON object, not {type(content).__name__}")
    return content


def _json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise InputError(f"{path}: not a file of JSON lines: {error}") from error
