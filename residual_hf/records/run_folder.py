"""Reading the folder of a run, for cards, reports and comparisons."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import RECORD, read_json, undamaged_entries
from residual_hf.base.yaml_files import read_yaml
from residual_hf.data.task_facts import FACTS, TRANSLATION, TaskFacts
from residual_hf.data.text_files import iter_lines
from residual_hf.evaluation.metrics import detokenize

from .run_record import RunRecord


@dataclass(frozen=True)
class Run:
    """The output folder of a run; `record` is its `run.json`, `curve` its `metrics.jsonl`.

    `recipe`, `config` and `metrics` are plain values, so that runs with a mode that is not imported can be read;
    the last two are empty if the run has not finished. `cleaning` maps the names of training corpora to their cleaning
    reports.
    """

    folder: Path
    recipe: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, Any]
    curve: list[dict[str, Any]]
    record: RunRecord
    cleaning: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, folder: str | Path, *, finished: bool = False) -> "Run":
        """Read a run folder. Raises `InputError` naming the file that is missing or damaged.

        With `finished`, also for a run without a final model and its scores.
        """
        folder = Path(folder)
        for name in ("recipe.yaml", RECORD, *(("metrics.json", "model/config.json") if finished else ())):
            if not (folder / name).is_file():
                kind = "finished run" if finished else "run"
                raise InputError(f"run folder: {folder} has no {name}, must be the folder of a {kind}")
        record = RunRecord.read(folder)
        if finished and record.goes_on:
            raise InputError(f"run folder: {folder} was resumed and has not finished: continue it with train --resume")
        config, metrics, cleaning = (
            read_json(folder / name) if (folder / name).is_file() else {}
            for name in ("model/config.json", "metrics.json", "cleaning.json")
        )
        if record.goes_on:
            metrics = {}
        for split in {"test", "valid"} & metrics.keys():
            if not _are_figures(metrics[split]):
                raise InputError(f"{folder / 'metrics.json'}: damaged, {split} must be scores with a `value` each")
        if "kept" in cleaning:
            cleaning = {record.data.train[0].name: cleaning}
        recipe, curve = read_recipe(folder), undamaged_entries(folder / "metrics.jsonl")
        return cls(folder, recipe, config, metrics, curve, record, cleaning)

    @property
    def split(self) -> str:
        """The split to evaluate the model on: `"test"`, or `"valid"` in a run without a test set."""
        return "test" if "test" in self.metrics else "valid"

    def setting(self, section: str, name: str) -> Any:
        """A value of the recipe; None if it has none."""
        return (self.recipe.get(section) or {}).get(name)

    @property
    def predicts_tags(self) -> bool:
        """Whether the tag of a language is a token of the target, and thus has a part in the NLL."""
        return self.config.get("language_tags") == "target"

    @property
    def block_size(self) -> int | None:
        """Tokens of a training example of a language model; None: as many as it has positions."""
        size, most = self.setting("data", "block_size"), self.setting("training", "max_tokens")
        positions = self.config.get("max_position_embeddings")
        return size or (most if isinstance(most, int) and positions is not None and most < positions else None)

    @property
    def task(self) -> TaskFacts:
        """The task of the model."""
        return FACTS[self.recipe.get("task") or TRANSLATION.name]

    @property
    def starts_from(self) -> str | None:
        """The model that the run started from, a folder or a name on the Hub; None for random weights."""
        return self.setting("model", "from")

    @property
    def ln_modes(self) -> list[str]:
        """The modes of the stacks; one if they are equal. Without a config, those that the recipe names."""
        fields = self.config or self.recipe.get("model") or {}
        stacks = ("decoder",) if (self.config or self.task.config).get("is_decoder_only") else ("encoder", "decoder")
        names = (fields.get(f"{stack}_ln_mode") or fields.get("ln_mode") for stack in stacks)
        return list(dict.fromkeys(filter(None, names)))

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Pairs (source, target) of languages that the model was trained on."""
        pairs = [(corpus.source_lang, corpus.target_lang) for corpus in self.record.data.train]
        if self.setting("data", "bidirectional"):
            pairs = [direction for pair in pairs for direction in (pair, pair[::-1])]
        return list(dict.fromkeys((source, target) for source, target in pairs if source and target))

    def scored_text(self, split: str) -> tuple[list[str], list[str]]:
        """Translations and references of a split, as scored. Raises `InputError` without them."""
        translations, references = (
            list(iter_lines(self.folder / f"{split}.{name}.txt")) for name in ("hypotheses", "references")
        )
        start, both = 0, bool(self.setting("data", "bidirectional"))
        for corpus in getattr(self.record.data, split) if self.setting("data", "pretokenized") else ():
            for language in (corpus.target_lang, corpus.source_lang)[: 1 + both]:
                rows = slice(start, start := start + (corpus.pairs or 0))
                translations[rows] = detokenize(translations[rows], language)
        return translations, references

    def samples(self, split: str, count: int | None = None) -> list[tuple[str, str, str]]:
        """The first `count` sources, translations and references of a split; empty without its text files."""
        file = self.folder / f"{split}.sources.txt"
        if split not in self.metrics or not file.is_file():
            return []
        texts = (iter_lines(file), *self.scored_text(split))
        return list(islice(zip(*texts, strict=False), count))


def _are_figures(scores: Any) -> bool:
    """Whether nested values are scores: each mapping has a number `value`, or such mappings in it."""
    return isinstance(scores, dict) and all(
        isinstance(score["value"], (int, float)) if "value" in score else _are_figures(score)
        for score in scores.values()
        if isinstance(score, dict)
    )


def read_recipe(folder: Path) -> dict[str, Any]:
    """The recipe in a run folder as plain values. Raises `InputError` for a file that is not a mapping."""
    recipe = read_yaml(folder / "recipe.yaml")
    if not isinstance(recipe, dict):
        raise InputError(f"{folder / 'recipe.yaml'}: must be a mapping of sections, not {type(recipe).__name__}")
    return recipe


@contextmanager
def damage_named(*folders: Path) -> Iterator[None]:
    """Context in which records that were changed by hand, so that a figure is a text for example, are `InputError`."""
    damage = AttributeError, KeyError, TypeError, ValueError, TemplateError
    with input_errors(f"{', '.join(map(str, folders))}: a record of the run is damaged: ", *damage, named=True):
        yield
