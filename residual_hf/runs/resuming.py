"""Checks before a run is resumed: recipe, text and tokenizer are the same."""

import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from residual_hf.base.environment import device_name, versions
from residual_hf.base.errors import InputError
from residual_hf.base.files import expanded, leaves, number_of, numbered_folders, read_json
from residual_hf.base.processes import this_process
from residual_hf.checkpoint import WEIGHT_FILES
from residual_hf.data.data_settings import MOVABLE, SPLITS
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.pipeline import Corpora
from residual_hf.model.checksums import file_hash, find_damage
from residual_hf.model.options import from_mapping
from residual_hf.records.recording import describe_data, kernels, modes_of_user
from residual_hf.records.run_folder import read_recipe
from residual_hf.records.run_record import THEN, DataRecord, RunRecord
from residual_hf.training.checkpoints import complete_checkpoints
from residual_hf.training.training_settings import LOSSES

from .recipe import Recipe

logger = logging.getLogger(__name__)


SCORED_BY = (
    *("training.eval_sentences", "training.eval_beams", "evaluation.tokenize"),
    *(f"decoding.{name}" for name in ("length_penalty", "early_stopping", "max_length_a", "max_length_b", "dtype")),
)
"""Fields that change the score of an evaluation during training."""


def check_same_run(recipe: Recipe, texts: Corpora, folder: Path) -> None:
    """Raise `InputError` listing how recipe, text and tokenizer differ from those that a run was started with.

    Fields declared with `may_change` are not compared, nor are the paths of a tokenizer, a starting model and a
    glossary that were moved: the run has a copy of the tokenizer. Text is compared by its hash, because files may have
    been moved; the files of a stream by their sizes and samples. Another number of processes is refused, unless
    `tokens_per_update` gives updates the same batches.
    """
    record, now = RunRecord.read(folder), recipe.as_dict()
    free = {field.name: now[field.name] for field in fields(recipe) if field.metadata["may_change"]}
    before = from_mapping(Recipe, read_recipe(folder) | free, f"{folder / 'recipe.yaml'}: ").as_dict()
    for section, settings in (("data", recipe.data), ("training", recipe.training)):
        old, new = before[section], now[section]
        old |= {field.name: new[field.name] for field in fields(settings) if field.metadata["may_change"]}
    for section, name in (("tokenizer", "path"), ("model", "from"), ("data", "glossary")):
        old, new = before.get(section, {}).get(name), now[section].get(name)
        if old is not None and new is not None and not expanded(old).exists() and expanded(new).exists():
            before[section][name] = new
    differences = [f"data.{split}: other text" for split in other_text(recipe, texts, record)]
    old, new = leaves(_without_places(before)), leaves(_without_places(now))
    differences += [
        f"{name}: {old.get(name)!r}, now {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    processes, same_updates = this_process().num_processes, now["training"]["tokens_per_update"] is not None
    if record.processes != processes and (now["training"]["max_tokens"] == "auto" or not same_updates):
        differences.append(f"processes: {record.processes}, now {processes}")
    differences += other_tokenizer(folder, record)
    made, most = complete_checkpoints(folder / "checkpoints")[-1:], recipe.training.max_updates
    if not differences and made and most is not None and number_of(made[0]) > most:
        updates = f"{number_of(made[0])} updates are made; give as many or more"
        raise InputError(f"--resume: training.max_updates: {most} given, but {updates}")
    if differences:
        advice = "".join(
            f". To train on from its weights, set model.from: {path} and another output_dir"
            for path in ([folder] if (folder / "model").is_dir() else made)
        )
        raise InputError(f"--resume: {folder} was started differently: {'; '.join(differences)}{advice}")


def other_tokenizer(folder: Path, record: RunRecord) -> list[str]:
    """The files that are missing or different in the tokenizer of a run, if they were recorded."""
    found = tokenizer_hashes(folder)
    if missing := sorted(record.tokenizer.keys() - found.keys()):
        return [f"{folder / 'tokenizer'} has no {', '.join(missing)}"]
    other = f"{folder / 'tokenizer'}: other files than those that the run was trained with"
    return [other] if record.tokenizer and found != record.tokenizer else []


def other_text(recipe: Recipe, texts: Corpora, record: RunRecord) -> list[str]:
    """Those of `train`, `valid` and `glossary` whose text is not the recorded one."""
    found, other = describe_data(recipe.data, texts), []
    for split in ("train", "valid"):
        streamed = split == "train" and recipe.data.stream
        recorded, present = (_fingerprints(data, split, streamed) for data in (record.data, found))
        if any(recorded) and recorded != present:
            other.append(split)
    if record.data.glossary not in (None, found.glossary):
        other.append("glossary")
    return other


def warn_about_rounding(folder: Path) -> None:
    """Warn if a run goes on with other devices, threads, kernels or libraries, which add numbers in another order."""
    record = RunRecord.read(folder)
    before = {name: (getattr(record, name) or "").split(THEN)[-1] for name in ("device", "kernels")} | record.versions
    present = {"device": device_name(), "kernels": kernels(), **versions()}
    pairs = [(name, old, present.get(name)) for name, old in before.items() if old]
    changes = [f"{name}: {old}, now {now}" for name, old, now in pairs if old != now]
    if record.device and changes:
        logger.warning(
            "the weights will differ in their last digits from those of an uninterrupted run, as sums are rounded in "
            "another order (%s)",
            "; ".join(changes),
        )


def warn_about_scores(recipe: Recipe, folder: Path) -> None:
    """Warn if the metric that chooses checkpoints is measured otherwise than before."""
    decisive = ("evaluation.context_window",) if recipe.training.metric in LOSSES else SCORED_BY
    before, now = leaves(read_recipe(folder)), leaves(recipe.as_dict())
    names = [name for name in decisive if before.get(name, now.get(name)) != now.get(name)]
    if names:
        logger.warning(
            "%s: the %s of earlier checkpoints was measured otherwise, and still decides which is the best",
            ", ".join(f"{name}: {before[name]}, now {now[name]}" for name in names),
            recipe.training.metric,
        )


def warn_about_modes(recipe: Recipe, folder: Path) -> None:
    """Warn if the file of a mode has changed, by which the rest of the run may follow another equation."""
    before, now = RunRecord.read(folder).modes, modes_of_user(recipe.model)
    for name in sorted(name for name in before.keys() & now.keys() if before[name] != now[name]):
        logger.warning("ln_mode %s: its file has changed since the run was started", name)


def hash_of_pairs(corpus: EncodedCorpus | None, folder: Path) -> str | None:
    """The hash of the training pairs in memory. Raises `InputError` if the run in a folder has begun with others."""
    record, pairs = RunRecord.read(folder), corpus.hash() if corpus is not None else None
    if record.pairs not in (None, pairs):
        kept = {"commit": (record.commit or "").split(THEN)[-1]} | record.versions
        others = [f"{name} {kept[name]}" for name in ("commit", "residual_hf", "tokenizers") if kept.get(name)]
        advice = f"continue with {', '.join(others) or 'the version of residual_hf that began it'}, or start again"
        raise InputError(f"--resume: {folder} was trained with other pairs, made from the same text; {advice}")
    return pairs


def has_finished(recipe: Recipe, texts: Corpora, folder: Path) -> bool:
    """Whether a run has its final model, scores and card, and was made with exactly this recipe and test text."""
    record = RunRecord.read(folder)
    of_run = from_mapping(Recipe, read_recipe(folder), f"{folder / 'recipe.yaml'}: ").as_dict()  # of older versions
    before, now = (_without_places(values, names=True) for values in (of_run, recipe.as_dict()))
    if record.finished is None or record.out_of_time or before != now:
        return False
    tested, given = (
        [(c.name, *c.sha256.values()) for c in each] for each in (record.data.test, texts.get("test", ()))
    )
    if tested != given:
        return False
    written = all((folder / name).is_file() for name in ("metrics.json", "model/README.md"))
    if written and lacks_metrics(read_json(folder / "metrics.json"), recipe):
        return False
    if damage := find_damage(folder / "model"):
        logger.warning("%s; the model is made again from the checkpoints", damage)
        return False
    return written and any((folder / "model" / name).is_file() for name in WEIGHT_FILES)


def check_checkpoints(folder: Path) -> None:
    """Raise `InputError` for a finished run without its last checkpoint, which would train again."""
    record, made = RunRecord.read(folder), numbered_folders(folder / "checkpoints", "checkpoint")
    if record.finished and record.updates and (not made or number_of(made[-1]) < record.updates):
        raise InputError(
            f"--resume: {folder} has finished, but has no checkpoint of update {record.updates}, and would train "
            f"again. To train on from its model, set model.from: {folder} and another output_dir"
        )


def lacks_metrics(metrics: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether a metric of the recipe is missing in scores, because it failed."""
    wanted = {*recipe.evaluation.metrics} - {*recipe.chosen_task.scores}
    reports = [metrics[split] for split in ("valid", "test") if split in metrics]
    each = [one for report in reports for one in report.get("corpora", {"": report}).values()]
    return any(wanted - report.get("metrics", {}).keys() for report in each)


def tokenizer_hashes(folder: Path) -> dict[str, str]:
    return {path.name: file_hash(path) for path in sorted((folder / "tokenizer").glob("*")) if path.is_file()}


def _without_places(values: Mapping[str, Any], *, names: bool = False) -> dict[str, Any]:
    """A recipe without the folder of the run and the places of its corpora, with or without their names."""
    places = {*MOVABLE} - ({"name"} if names else set())
    values = {name: value for name, value in values.items() if name != "output_dir"}
    values["data"] = dict(values["data"])
    for split in SPLITS:
        specs = values["data"].get(split) or []
        specs = specs if isinstance(specs, list) else [specs]
        values["data"][split] = [{n: v for n, v in spec.items() if n not in places} for spec in specs]
    return values


def _fingerprints(data: DataRecord, split: str, streamed: bool) -> list[list[Any]]:
    corpora = getattr(data, split)
    if not streamed:
        return [list(corpus.sha256.values()) for corpus in corpora]
    return [[*corpus.bytes.values(), *corpus.sampled_sha256.values()] for corpus in corpora]
