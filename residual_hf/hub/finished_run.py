# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What the folder of a finished training run holds, read for its card."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from residual_hf.data.corpus import read_parallel
from residual_hf.data.settings import CorpusSpec
from residual_hf.data.text_files import iter_lines
from residual_hf.errors import InputError

SPLITS = {"train": "training", "valid": "validation", "test": "test"}


@dataclass(frozen=True)
class FinishedRun:
    """The output folder of `residual-hf train`; `record` is its `run.json`.

    `recipe` and `config` are plain values, so that runs of older versions and modes of others can be read; so are
    `record` and `cleaning`, empty in a run that wrote no such file.
    """

    folder: Path
    recipe: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, Any]
    curve: list[dict[str, Any]]
    record: dict[str, Any]
    cleaning: dict[str, Any]

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Pairs (source, target) of languages that it was trained on."""
        default = self.recipe.get("source_lang"), self.recipe.get("target_lang")
        pairs = [
            (spec.get("source_lang") or default[0], spec.get("target_lang") or default[1])
            for spec in self.corpora("train")
        ] or [default]
        if self._data.get("bidirectional"):
            pairs = [direction for pair in pairs for direction in (pair, pair[::-1])]
        return list(dict.fromkeys(pair for pair in pairs if None not in pair))

    @property
    def _data(self) -> dict[str, Any]:
        return self.recipe.get("data") or {}

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
        """How long the run took; None for a resumed one, of which only the last start was timed."""
        if self.record.get("resumed"):
            return None
        if self.record.get("seconds") is not None:
            return self.record["seconds"] / 3600
        return self.metrics["minutes"] / 60 if "minutes" in self.metrics else None

    def corpora(self, split: str) -> list[dict[str, Any]]:
        """What the recipe says of the corpora of a split; empty for a split that there is not."""
        specs = self._data.get(split) or []
        return [spec for spec in (specs if isinstance(specs, list) else [specs]) if isinstance(spec, dict)]

    def corpus_title(self, split: str) -> str | None:
        """Names of what the corpora of a split were read from, without folders."""
        return " + ".join(filter(None, map(_title, self.corpora(split)))) or None

    def pairs(self, split: str) -> int | None:
        """Sentence pairs of a split; None if the run did not record it."""
        recorded = self._recorded(split)
        return sum(corpus["pairs"] for corpus in recorded) if recorded else None

    def hashes(self, split: str) -> dict[str, str]:
        """File -> SHA-256 of what was read for a split."""
        return {path: digest for corpus in self._recorded(split) for path, digest in corpus["sha256"].items()}

    def _recorded(self, split: str) -> list[dict[str, Any]]:
        return (self.record.get("data") or {}).get(split) or []

    @property
    def cleaning_reports(self) -> dict[str, dict[str, Any]]:
        """Name of a training corpus -> how many of its pairs were left out, and why."""
        one = {self.corpus_title("train"): self.cleaning} if "kept" in self.cleaning else self.cleaning
        return {name.replace("|", ", "): report for name, report in one.items()}

    def reports(self, split: str) -> dict[str, dict[str, Any]]:
        """Name of a corpus -> its scores; `metrics.json` has them one level deeper where there are several."""
        figures = self.metrics.get(split)
        if figures is None:
            return {}
        return figures.get("corpora") or {self.corpus_title(split) or SPLITS[split]: figures}

    def scored_text(self, split: str) -> tuple[list[str], list[str]]:
        """Translations and references of a split as they were scored.

        Raises `InputError` if the references are not there any more, are not those of the run, or are several corpora.
        """
        if len(self.corpora(split)) != 1 or self._data.get("bidirectional"):
            raise InputError(f"data.{split}: not one corpus in one direction")
        try:
            corpus = read_parallel(CorpusSpec(**self.corpora(split)[0]))
        except TypeError as error:
            raise InputError(f"{self.folder / 'recipe.yaml'}: data.{split}: {error}") from error
        recorded = self.hashes(split)
        if recorded and sorted(recorded.values()) != sorted(corpus.sha256.values()):
            raise InputError(f"data.{split}: {corpus.name} has changed since the run of {self.folder}")
        hypotheses = list(iter_lines(self.folder / f"{split}.hypotheses.txt"))
        if self._data.get("pretokenized") != "moses":
            return hypotheses, corpus.targets
        from residual_hf.evaluation.scorer import detokenize

        language = self.directions[0][1]
        references = corpus.raw_targets or detokenize(corpus.targets, language)
        return detokenize(hypotheses, language), references


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
    if not isinstance(recipe, dict):
        raise InputError(f"{folder / 'recipe.yaml'}: must be a mapping of sections, not {type(recipe).__name__}")
    run = FinishedRun(
        folder=folder,
        recipe=recipe,
        config=_json(folder / "model" / "config.json"),
        metrics=_json(folder / "metrics.json"),
        curve=_json_lines(folder / "metrics.jsonl"),
        record=_json(folder / "run.json", needed=False),
        cleaning=_json(folder / "cleaning.json", needed=False),
    )
    if not run.directions:
        raise InputError(f"{folder / 'recipe.yaml'}: source_lang or target_lang missing")
    return run


def _title(spec: dict[str, Any]) -> str:
    if spec.get("name"):
        return spec["name"]
    if spec.get("dataset"):
        folder = Path(spec["dataset"])
        return f"{folder.name if folder.exists() else folder}[{spec.get('split', 'train')}]"
    return ", ".join(Path(spec[key]).name for key in ("source", "target", "tsv", "jsonl") if spec.get(key))


def _json(path: Path, needed: bool = True) -> dict[str, Any]:
    if not needed and not path.is_file():
        return {}
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
