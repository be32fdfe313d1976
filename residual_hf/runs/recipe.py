"""A recipe: the YAML file that describes a training run."""

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from huggingface_hub.errors import StrictDataclassError

from residual_hf.base.errors import InputError, InputSettings, input_errors
from residual_hf.base.files import expanded
from residual_hf.base.memory import total_memory
from residual_hf.base.yaml_files import read_yaml
from residual_hf.data.data_settings import SPLITS, CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.data.task import TASKS, Task
from residual_hf.evaluation.metrics import EvaluationSettings
from residual_hf.evaluation.sentence_metrics import ROUGE
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.model.configuration_residual import ELSEWHERE, ResidualConfig
from residual_hf.model.options import check_fields, from_mapping, option, refusal, shortened, unknown_name
from residual_hf.training.training_settings import LOSSES, TrainingSettings

COMET = "comet:"  # before the model of a metric


@dataclass(frozen=True)
class Recipe(InputSettings):
    """A training run: data, model, training and scores."""

    also_called = {name: f"model.{name}" for name in (*ResidualConfig.__annotations__, "preset", "from")}

    output_dir: str | Path = option(may_change=True, help="folder of the run")
    data: DataSettings = option(help="corpora, see below")
    paths_from: str = option(
        "working_directory",
        choices=("working_directory", "recipe"),
        help="where relative paths start: in the working directory, or in the folder of the `recipe`",
    )
    task: str = option("translation", choices=TASKS, help="task of the model")
    language: str | None = option(None, help="language of the text, for tasks other than `translation`")
    source_lang: str | None = option(None, help="source language of all corpora without their own")
    target_lang: str | None = option(None, help="target language of all corpora without their own")
    tokenizer: TokenizerSettings = option(
        None, help="tokenizer, see below; default with `model.from`: that of the model"
    )
    model: dict = option(
        {},
        help="fields of `ResidualConfig`, and `preset`; or `from`: a trained model to start from (a folder or a name "
        "on the Hub), whose `ln_mode` and dropout can be changed",
    )
    training: TrainingSettings = option(TrainingSettings(max_updates=10_000), help="hyperparameters, see below")
    decoding: DecodingSettings = option(DecodingSettings(), may_change=True, help="search, see below")
    evaluation: EvaluationSettings = option(EvaluationSettings(), may_change=True, help="metrics, see below")

    def __post_init__(self) -> None:
        start = self.model.get("from") if isinstance(self.model, Mapping) else None
        if start is not None and not (isinstance(start, (str, Path)) and str(start).strip()):
            raise InputError(refusal("model.from", start, "a folder or a name on the Hub"))
        if self.tokenizer is None:
            object.__setattr__(self, "tokenizer", TokenizerSettings(path=start))
        check_fields(self)
        self._check_language()
        splits: dict[str, Any] = {name: self._with_languages(getattr(self.data, name)) for name in SPLITS}
        object.__setattr__(self, "data", dataclasses.replace(self.data, **splits))
        self.check()

    def _check_language(self) -> None:
        """Give `source_lang` and `target_lang` the value of `language`."""
        if self.chosen_task.translates:
            self.require(self.language is None, "language", "null with task 'translation', see source_lang")
            return
        self.require(self.language, "language", f"given with task {self.task!r}")
        for name in ("source_lang", "target_lang"):
            same = getattr(self, name) in (None, self.language)
            self.require(same, name, f"null with task {self.task!r}, see language")
            object.__setattr__(self, name, self.language)

    def _with_languages(self, specs: tuple[CorpusSpec, ...] | None) -> tuple[CorpusSpec, ...] | None:
        """The corpora, with the languages of the recipe and the columns of the task where they set no own."""
        columns = self.chosen_task.columns
        return specs and tuple(
            dataclasses.replace(
                spec,
                source_lang=spec.source_lang or self.source_lang,
                target_lang=spec.target_lang or self.target_lang,
                **(columns if spec.source_column is None and (spec.file or spec.jsonl or spec.dataset) else {}),
            )
            for spec in specs
        )

    def check(self) -> None:
        data, tokenizer = self.data, self.tokenizer
        self.require(self.paths_from == "working_directory", "paths_from", "working_directory unless in a file")
        known = [*ResidualConfig.__annotations__]  # without those of Transformers, which it does not check
        for name in self.model:
            if name not in (*known, *ResidualConfig.attribute_map, "preset", "from"):
                raise InputError(f"model.{unknown_name(name, ['preset', 'from', *known], ELSEWHERE)}")
        absent = "absent with model.from, whose sizes the model has"
        self.require(self.starts_from is None or "preset" not in self.model, "model.preset", absent)
        for name in ("source_lang", "target_lang"):
            given = all(getattr(spec, name) for spec in data.corpora)
            self.require(given, name, "given in the recipe or for every corpus")
        if data.subword_regularization is not None and (tokenizer.path is None or tokenizer.kind == "pretokenized"):
            kinds = data.subword_regularization.tokenizer_kinds
            allowed = f"{' or '.join(kinds)} with this data.subword_regularization"
            self.require(tokenizer.kind in kinds, "tokenizer.kind", allowed)
        if data.rewrites_text:
            allowed = "another than 'pretokenized' with data.placeholders, glossary, upper_case or title_case"
            self.require(tokenizer.kind != "pretokenized", "tokenizer.kind", allowed)
        if data.glossary is not None:
            allowed = "true or with a path with data.glossary, which writes translations into sources"
            self.require(tokenizer.joint or tokenizer.path, "tokenizer.joint", allowed)
        self.require(self.starts_from or self.training.lora is None, "training.lora", "null without model.from")
        self._check_task()
        if data.stream:
            self.require(self.training.max_updates, "training.max_updates", "given with data.stream")
            self.require(not self.training.max_epochs, "training.max_epochs", "null with data.stream")
            self.require(not self.training.num_workers, "training.num_workers", "0 with data.stream")
        if self.training.metric == "tokenized_bleu":
            self.require(data.pretokenized, "data.pretokenized", "given for training.metric 'tokenized_bleu'")
        if self.training.metric in ROUGE:
            scored = "rouge" in {name.partition(":")[0] for name in self.evaluation.metrics}
            self.require(scored, "evaluation.metrics", f"with rouge for training.metric {self.training.metric!r}")
        targets = data.target_languages
        for language in targets if self.chosen_task.has_source_text else ():
            self.evaluation.tokenizer_for(language)
        if data.language_tags is not None and self.starts_from is None:
            tagless = [spec for spec in data.train if spec.tag is None] if data.bidirectional else []
            trained = {spec.target_lang for spec in data.train} | {spec.source_lang for spec in tagless}
            if unseen := [language for language in targets if language not in trained]:
                allowed = ", ".join(sorted(map(str, trained)))
                raise InputError(
                    f"target_lang: {', '.join(unseen)} of data.valid or data.test, must be in data.train: {allowed}"
                )
        if len(targets) > 1:
            several = f"with the target languages {', '.join(targets)}"
            self.require(data.language_tags, "data.language_tags", f"'source' or 'target' {several}")
            self.require(tokenizer.joint, "tokenizer.joint", f"true {several}")

    def _check_task(self) -> None:
        """Raise `InputError` for fields that do not belong to the task."""
        for name in ("is_decoder_only", "is_encoder_only", "is_encoder_decoder"):
            self.require(name not in self.model, f"model.{name}", "absent in a recipe, whose task decides on it")
        task, allowed = self.chosen_task, f"with task {self.task!r}"
        if self.data.train[0].is_text != task.reads_lines:
            wanted, given = ("text", "sentence pairs") if task.reads_lines else ("source and target", "text")
            raise InputError(f"data.train: {given} given, must be {wanted} {allowed}")
        for name, fixed in task.fixed.items():
            of_corpus = name.removeprefix("corpus.")
            owners = [self] if of_corpus == name else self.data.corpora
            for owner in owners:
                if (value := owner.value_of(of_corpus)) != fixed:
                    word = {None: "null", (): "empty"}.get(fixed, str(fixed).lower())
                    raise InputError(refusal(name, value, f"{word} {allowed}"))
        metrics, kinds = (*LOSSES, *task.scores), task.tokenizers
        self.require(self.training.metric in metrics, "training.metric", f"one of {', '.join(metrics)} {allowed}")
        self.require(self.tokenizer.kind in kinds, "tokenizer.kind", f"one of {', '.join(kinds)} {allowed}")
        size, most = self.data.block_size, self.max_tokens
        self.require(not (size and most) or size <= most, "data.block_size", f"<= training.max_tokens ({most})")

    @property
    def chosen_task(self) -> Task:
        """The task, which the stages of the run ask for all that depends on it."""
        return TASKS[self.task]

    def check_block_size(self, positions: int) -> None:
        """Raise `InputError` for blocks of more tokens than the positions of the model."""
        size = self.data.block_size or min(positions, self.max_tokens or positions)
        self.require(size <= positions, "data.block_size", f"<= {positions}, the max_position_embeddings of the model")
        fits = self.evaluation.context_window <= max(0, size - 2)
        self.require(fits, "evaluation.context_window", f"<= {size - 2} for blocks of {size} tokens")

    @property
    def max_tokens(self) -> int | None:
        """`training.max_tokens`; None if it is not known yet."""
        return None if self.training.max_tokens == "auto" else self.training.max_tokens

    @property
    def input_paths(self) -> list[Path]:
        """The files and folders that the run reads."""
        named = [self.tokenizer.path, self.training.deepspeed, self.starts_from, self.data.glossary]
        named += [name.removeprefix(COMET) for name in self.evaluation.metrics]
        for spec in self.data.corpora:
            named += [*spec.files, spec.raw_target, spec.dataset, spec.audio_folder]
        return [path for name in named if name is not None and (path := expanded(name)).exists()]

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain values for YAML, without the unset fields of corpora."""
        values = plain(self)
        for split in SPLITS:
            specs = [
                {name: value for name, value in spec.items() if value is not None}
                for spec in values["data"][split] or ()
            ]
            values["data"][split] = specs[0] if len(specs) == 1 else specs or None
        return values

    def build_config(self, **overrides: Any) -> ResidualConfig:
        """The configuration of a model without `from`.

        Raises `InputError` for a value that is not allowed, and for a model that this machine cannot hold.
        """
        fields, preset = self.model_fields, self.model.get("preset")
        fields |= {name: value for name, value in self.chosen_task.config.items() if fields.get(name) is None}
        make = ResidualConfig if preset is None else partial(ResidualConfig.preset, preset)
        config = checked_config(make, {**fields, **overrides})
        check_memory(config)
        return config

    @property
    def starts_from(self) -> str | None:
        """The model to start from, a folder or a name on the Hub."""
        return self.model.get("from")

    @property
    def model_fields(self) -> dict[str, Any]:
        """The fields of `ResidualConfig` that the recipe sets itself."""
        return {name: value for name, value in self.model.items() if name not in ("preset", "from")}


def plain(settings: Any) -> dict[str, Any]:
    """A dataclass as values for YAML: lists instead of tuples, text instead of paths."""
    return json.loads(json.dumps(dataclasses.asdict(settings), default=os.fspath))


def checked_config(make: Callable[..., ResidualConfig], fields: Mapping[str, Any]) -> ResidualConfig:
    """The result of `make` for fields of a recipe. Raises `InputError` for a value that is not allowed."""
    try:
        return make(**fields)
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise InputError(f"model: {shortened(str(error.__cause__ or error), 1000)}") from error


def check_memory(config: ResidualConfig) -> None:
    """Raise `InputError` for a model whose matrices and positions alone need more memory than there is."""
    width, total = config.d_model, total_memory()
    stacks = config.stack_configs
    sizes = [own.layers * (4 * width + 2 * own.ffn_dim) for own in stacks]
    needed = 4 * width * (sum(sizes) + config.max_position_embeddings)
    if needed > total:
        raise InputError(
            f"model: d_model {width}, {'+'.join(str(own.layers) for own in stacks)} layers with FFNs "
            f"of width {max(own.ffn_dim for own in stacks)} and {config.max_position_embeddings} positions "
            f"need {needed / 1e9:,.0f} GB, but this process may use {total / 1e9:.0f} GB of memory"
        )


def load_recipe(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe from a YAML file.

    Its relative paths start from the working directory, with `paths_from: recipe` from the folder of the file. Those
    of the result and of `overrides` start from the working directory.

    Args:
        path: the file.
        overrides: values that replace those of the file, by dotted name: `{"training.seed": 2}`.

    Raises `InputError` if the file cannot be read, or a field is unknown, missing or not allowed.
    """
    path = Path(path)
    values = read_yaml(path, "recipe.yaml")
    if isinstance(values, dict) and values.get("paths_from") == "recipe":
        values = placed_in(path.parent, values | {"paths_from": "working_directory"}, Recipe)
    with input_errors(f"{path}: "):
        for name, value in (overrides or {}).items():
            _override(values, name, value)
        recipe = from_mapping(Recipe, values)
        if recipe.starts_from is None:
            recipe.check_block_size(recipe.build_config().max_position_embeddings)
    return recipe


def placed_in(folder: Path, values: Any, hint: Any, name: str = "") -> Any:
    """Values of a recipe, or of a part of it of the type `hint`, with the relative paths that start from a folder.

    What may be a name on the Hub is one unless the folder has it.
    """
    types = {hint, *get_args(hint), *(entry for part in get_args(hint) for entry in get_args(part))}
    if isinstance(values, list):
        return [placed_in(folder, value, hint, name) for value in values]
    if isinstance(values, dict):
        section = next(filter(dataclasses.is_dataclass, types), None)
        hints = {"from": Path} if section is None else get_type_hints(section)
        return {key: placed_in(folder, value, hints.get(key), key) for key, value in values.items()}
    if name == "metrics" and isinstance(values, str):
        _, kind, file = values.rpartition(COMET)
        is_path = (kind or "/" in file or file.endswith(".py")) and (folder / file).exists()
        return f"{kind}{folder / file}" if is_path else values
    if Path in types and isinstance(values, str):
        path = folder / expanded(values)
        return str(path) if name not in ("dataset", "path", "from") or path.exists() else values
    return values


def _override(values: Any, name: str, value: Any) -> None:
    *parents, last = name.split(".")
    for parent in parents:
        if isinstance(values, dict):
            values[parent] = values = copy.copy(values.get(parent, {}))
    if not isinstance(values, dict):
        where = ".".join(parents)
        raise InputError(f"{name}: {where} is not a section of the recipe" if where else "must be a mapping of fields")
    values[last] = value
