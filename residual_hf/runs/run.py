"""From a recipe to a folder with a trained model: read, prepare, build, fit, finish."""

import logging
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import set_seed

from residual_hf.base.errors import InputError
from residual_hf.base.files import read_json, write_atomically, writing
from residual_hf.base.processes import this_process
from residual_hf.base.yaml_files import dump_yaml
from residual_hf.data.cleaning import cleaned_pairs
from residual_hf.data.language_names import code_given, spoken_in
from residual_hf.data.pair_reader import check_files
from residual_hf.data.pipeline import Corpora, read_corpora
from residual_hf.data.sample_checks import overlaps
from residual_hf.records.recording import begin_record, describe_data, modes_of_user
from residual_hf.records.run_record import RunRecord
from residual_hf.training.checkpoints import STATE
from residual_hf.training.launch import check_launch, keep_freed_memory

from .building import build_model, check_training, load_start_of
from .final_model import check_scoring, finish
from .fitting import build_trainer, fit
from .preparation import check_preparation, prepare_data
from .reading import TerminalHandler, check_folder, log_to, run_folder
from .recipe import Recipe
from .resuming import (
    check_checkpoints,
    check_same_run,
    has_finished,
    hash_of_pairs,
    warn_about_modes,
    warn_about_rounding,
    warn_about_scores,
)
from .trial import resolve_batch_size
from .warm_start import Start

logger = logging.getLogger(__name__)


def train(
    recipe: Recipe, *, overwrite: bool = False, resume: bool = False, inputs: Iterable[Path] = ()
) -> dict[str, Any]:
    """Run a recipe and return its metrics.

    `recipe.output_dir` receives:

    - `model/`: the final model with its card, see `save_checkpoint`.
    - `metrics.json`: scores with signatures; `metrics.jsonl`: all log entries; `train.log`: the log.
    - `run.json`: command, commit, versions, seed, hashes of the data and speed, see `RunRecord`; `recipe.yaml`.
    - `valid.sources.txt`, `valid.hypotheses.txt` and `valid.references.txt`, as they were scored, and those of `test`.
    - `cleaning.json`: what cleaning removed from the training corpus.
    - `tokenizer/`, `checkpoints/` and `cache/`.
    - `diagnostics.jsonl` and `spikes/`: with `training.diagnostics`, see `DiagnosticsCallback`.

    Args:
        overwrite: replace the earlier run in the folder; its files are deleted after the first update, see
            `check_output_folder`.
        resume: continue the run in the folder, see `check_same_run`; one that `has_finished` stays as it is.
        inputs: files to keep in addition to those of the recipe, such as the recipe itself.

    Raises:
        InputError: before training starts, for input that cannot be used, such as an output folder that is not empty
            without `overwrite` or `resume`, or that another process trains in.
        Interrupted: after Ctrl-C.
        TrainingDivergedError: see `DivergenceGuard`.
    """
    with log_to(TerminalHandler()) if this_process().is_main_process else nullcontext():
        start = check_stages(recipe, resume=resume)
        folder, processes = check_folder(recipe, overwrite=overwrite, resume=resume, inputs=inputs), this_process()
        logger.info("reading the corpora")
        texts = read_corpora(recipe.data)
        warnings: list[str] = []
        if recipe.data.stream and not resume and this_process().is_main_process:
            logger.info("checking the training text")
            warnings = check_stream(recipe, texts)
        if resume:
            check_same_run(recipe, texts, folder)
            if has_finished(recipe, texts, folder):
                logger.info("%s has finished, and the recipe is the same: nothing to do", folder)
                return read_json(folder / "metrics.json")
            check_checkpoints(folder)
            warn_about_rounding(folder)
            warn_about_scores(recipe, folder)
            warn_about_modes(recipe, folder)
        processes.wait_for_everyone()  # all have checked the folder before the first one writes to it
        with run_folder(folder, resume=resume, overwrite=overwrite) if processes.is_main_process else nullcontext():
            processes.wait_for_everyone()
            for warning in warnings:  # now there is a log
                logger.warning(warning)
            with writing(folder, lambda: "; continue with --resume" * any(folder.glob(f"checkpoints/*/{STATE}"))):
                return train_on(recipe, texts, folder, start=start, resume=resume)


def check_languages(recipe: Recipe) -> None:
    """Raise `InputError` for a language that is given by its name, and warn of the code of a country."""
    for name in ("source_lang", "target_lang"):
        for language in dict.fromkeys(getattr(spec, name) for spec in recipe.data.corpora):
            field = name if recipe.chosen_task.translates else "language"
            if (likely := spoken_in(language or "")) and not (field == "language" and name == "target_lang"):
                logger.warning("%s: %s is a country, whose language is known as %s", field, language, likely)
            if len(language or "") > 3 and (code := code_given(language)) != language:
                raise InputError(f"{field}: {language!r} given, must be a code, here {code!r}")


def check_stages(recipe: Recipe, *, resume: bool) -> Start | None:
    """Each stage checks its settings before the first one works; returns the model to start from, if there is one."""
    if not resume:
        check_languages(recipe)
    check_launch(recipe.training)
    check_scoring(recipe)
    check_files(recipe.data.corpora)
    start = load_start_of(recipe)
    check_training(recipe, start)
    check_preparation(recipe, resume=resume)  # of a tokenizer that may be that of the model
    return start


def check_stream(recipe: Recipe, texts: Corpora) -> list[str]:
    """Read the corpora of files once, so that `InputError` for one of their lines ends no training that has begun.

    Returns warnings of pairs of `valid` and `test` among them.
    """
    cleaning = recipe.data.cleaning and replace(recipe.data.cleaning, duplicates=None)  # which would be kept in memory
    passes = (cleaned_pairs(spec, cleaning) for spec in recipe.data.train if spec.files)
    return overlaps(passes, {} if recipe.chosen_task.reads_lines else texts)


def train_on(
    recipe: Recipe, texts: Corpora, folder: Path, *, start: Start | None = None, resume: bool = False
) -> dict[str, Any]:
    """Run a recipe on corpora in memory (`train`, which is taken out, `valid` and optionally `test`), see `train`."""
    started = time.time() - (RunRecord.read(folder).seconds or 0.0 if resume else 0.0)
    keep_freed_memory()
    set_seed(recipe.training.seed)
    is_main = this_process().is_main_process
    if is_main and not resume:
        record_start(recipe, texts, folder)
    data = prepare_data(recipe, texts, folder, start)
    pairs = hash_of_pairs(data.encoded.get("train"), folder)
    if is_main:
        if resume:
            record_start(recipe, texts, folder)
        RunRecord.update(folder, pairs=pairs)
    texts.pop("train", None)  # which needs more memory than its tokens
    model = build_model(recipe, data.tokenizer, start)
    settings = resolve_batch_size(recipe, model, data.longest, folder)
    trainer = build_trainer(recipe, settings, data, model, folder)
    fit(trainer, folder, started, resume=resume)
    return finish(trainer, recipe, data, folder, started)


def record_start(recipe: Recipe, texts: Corpora, folder: Path) -> None:
    data, modes = describe_data(recipe.data, texts), modes_of_user(recipe.model)
    begin_record(folder, recipe.training.seed, this_process().num_processes, data, modes)
    write_atomically(folder / "recipe.yaml", dump_yaml(recipe.as_dict()))
