# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A recipe: one YAML file that says what to train on what, and how."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError

from residual_hf.data.settings import CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.errors import InputError
from residual_hf.generation.decode import DecodingSettings
from residual_hf.model.configuration_residual import ResidualConfig

from .settings import TrainingSettings


@dataclass
class Recipe:
    """Everything a run needs. `model` takes `preset` and any field of `ResidualConfig`.

    `source_lang` and `target_lang` are those of every corpus that does not state its own.
    """

    output_dir: str
    data: DataSettings
    source_lang: str | None = None
    target_lang: str | None = None
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    model: dict[str, Any] = field(default_factory=dict)
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(max_updates=10000))
    decoding: DecodingSettings = field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        for split in ("train", "valid", "test"):
            if getattr(self.data, split):
                setattr(self.data, split, [self._with_languages(spec) for spec in getattr(self.data, split)])
        specs = [*self.data.train, *self.data.valid, *(self.data.test or [])]
        for name in ("source_lang", "target_lang"):
            if any(getattr(spec, name) is None for spec in specs):
                raise InputError(f"{name}: missing, in the recipe or in every corpus")
        targets = self.target_languages
        regularization = self.data.subword_regularization
        if regularization is not None and (self.tokenizer.path is None or self.tokenizer.kind == "pretokenized"):
            regularization.check_kind(self.tokenizer.kind)
        if self.data.stream and self.training.max_updates is None:
            raise InputError("training.max_updates: missing; a stream has no end and no epochs")
        if len(targets) > 1 and not self.data.language_tags:
            raise InputError(
                f"data.language_tags: missing; a model that translates into {', '.join(targets)} has to "
                "be told which, by a tag on the source or the target"
            )
        if len(targets) > 1 and not self.tokenizer.joint:
            raise InputError("tokenizer.joint: false given, but several target languages share one vocabulary")

    @property
    def target_languages(self) -> list[str]:
        """The languages that the model translates into, in alphabetical order."""
        data = self.data
        specs = [*data.train, *data.valid, *(data.test or [])]
        sources = {spec.source_lang for spec in specs} if data.bidirectional else set()
        return sorted({spec.target_lang for spec in specs} | sources)

    def _with_languages(self, spec: CorpusSpec) -> CorpusSpec:
        """The corpus with the languages of the recipe where it states none."""
        return dataclasses.replace(
            spec,
            source_lang=spec.source_lang or self.source_lang,
            target_lang=spec.target_lang or self.target_lang,
        )

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain values, for YAML; what a corpus leaves unset is left out."""
        values = dataclasses.asdict(self)
        for split in ("train", "valid", "test"):
            specs = [
                {key: _plain(value) for key, value in spec.items() if value is not None}
                for spec in values["data"][split] or []
            ]
            values["data"][split] = specs[0] if len(specs) == 1 else specs or None
        return values

    def build_config(self, **overrides: Any) -> ResidualConfig:
        """The model's configuration. Raises `InputError` with the fields that exist for an unknown one."""
        fields = dict(self.model)
        preset = fields.pop("preset", None)
        known = {f.name for f in dataclasses.fields(ResidualConfig)}
        for name in fields:
            if name not in known and name not in ResidualConfig.attribute_map:
                raise InputError(f"model.{name}: there is no such field. Known: preset, {', '.join(sorted(known))}")
        try:
            if preset is not None:
                return ResidualConfig.preset(preset, **{**fields, **overrides})
            return ResidualConfig(**{**fields, **overrides})
        except (StrictDataclassError, ValueError, TypeError) as error:
            raise InputError(f"model: {error.__cause__ or error}") from error


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe from YAML; `overrides` replaces values by dotted name, as in {"training.seed": 2}.

    Paths in it are relative to the current folder. Raises `InputError` naming the file and the field for anything
    that is unknown, missing or of a wrong type.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such recipe") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a YAML file: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: a recipe is a mapping of sections, not {type(content).__name__}")
    for name, value in (overrides or {}).items():
        section = content
        *parents, leaf = name.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise InputError(f"{name}: {parent!r} is not a section of the recipe")
        section[leaf] = value
    try:
        recipe = from_mapping(Recipe, content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    recipe.build_config()
    return recipe


def from_mapping(cls: type, values: Any, where: str = "") -> Any:
    """An instance of a dataclass from nested dicts, with types checked and unknown names refused."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where or 'recipe'}: must be a mapping of fields, not {values!r}")
    hints = typing.get_type_hints(cls)
    declared = {f.name: f for f in dataclasses.fields(cls)}
    unknown = [name for name in values if name not in declared]
    if unknown:
        raise InputError(f"{_dot(where, unknown[0])}: there is no such field. Known: {', '.join(declared)}")
    required = [
        f.name
        for f in declared.values()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and f.name not in values
    ]
    if required:
        raise InputError(f"{_dot(where, required[0])}: missing")
    return cls(**{name: _convert(hints[name], value, _dot(where, name)) for name, value in values.items()})


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _dot(where: str, name: str) -> str:
    return f"{where}.{name}" if where else str(name)


def _convert(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        if value is None and type(None) in typing.get_args(hint):
            return None
        if len(options) == 1:
            return _convert(options[0], value, where)
        if any(_is_a(value, option) for option in options):
            return value
    elif dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, where)
    elif typing.get_origin(hint) is list and dataclasses.is_dataclass(typing.get_args(hint)[0]):
        entries = value if isinstance(value, list) else [value]
        one = typing.get_args(hint)[0]
        return [
            from_mapping(one, entry, f"{where}[{i}]" if len(entries) > 1 else where) for i, entry in enumerate(entries)
        ]
    elif hint is float and isinstance(value, str):
        try:
            return float(value)  # YAML 1.1 reads 5e-4 as a string
        except ValueError:
            pass
    elif hint is float and _is_a(value, int):
        return float(value)
    elif _is_a(value, hint):
        return value
    name = getattr(hint, "__name__", str(hint)) if not typing.get_args(hint) else str(hint)
    raise InputError(f"{where}: {value!r} given, must be {name}")


def _is_a(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    kind = typing.get_origin(hint) or hint
    if kind is int and isinstance(value, bool):
        return False
    return isinstance(value, kind)
