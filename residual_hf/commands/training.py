"""Verbs that train models."""

import argparse
import sys
from pathlib import Path

from residual_hf.base.errors import DIVERGED, FAILED, INTERRUPTED, InputError
from residual_hf.base.launched import is_first
from residual_hf.base.names import as_typed
from residual_hf.base.yaml_files import read_yaml
from residual_hf.data.data_settings import PAIR_FILES
from residual_hf.generation.generation_settings import StreamSettings
from residual_hf.runs.first_corpora import check_trial, first_corpora

from . import load_package
from .arguments import (
    SAMPLING,
    Verb,
    add_fields,
    add_json,
    add_overrides,
    add_overwrite,
    add_search,
    arguments_of,
    integer,
    load_translator,
    made_with,
    parse_overrides,
    print_scores,
    stream_settings,
)


def add_train(train: argparse.ArgumentParser) -> None:
    train.add_argument("recipe", type=Path, help="YAML file, see docs/recipe.md")
    train.add_argument("--output-dir", help="override output_dir of the recipe")
    add_overrides(train)
    add_json(train)
    existing = train.add_mutually_exclusive_group()
    add_overwrite(existing)
    existing.add_argument("--resume", action="store_true", help="continue the run in the output folder")


def run_train(options: argparse.Namespace) -> int:
    overrides = parse_overrides(options.set)
    read_yaml(options.recipe, "recipe.yaml")  # a file that is missing or not YAML is named before PyTorch is loaded
    if is_first():
        print(f"residual-hf train: {options.recipe}: loading PyTorch and Transformers", file=sys.stderr, flush=True)
    load_package()
    from residual_hf.base.processes import this_process
    from residual_hf.runs.fitting import Interrupted
    from residual_hf.runs.recipe import load_recipe
    from residual_hf.runs.run import train
    from residual_hf.training.divergence import TrainingDivergedError

    if options.output_dir is not None:
        overrides["output_dir"] = options.output_dir
    recipe = load_recipe(options.recipe, overrides)
    try:
        inputs = [options.recipe, *options.imports]
        metrics = train(recipe, overwrite=options.overwrite, resume=options.resume, inputs=inputs)
    except (Interrupted, TrainingDivergedError) as ending:
        print(f"residual-hf train: {ending}", file=sys.stderr)
        return INTERRUPTED if isinstance(ending, Interrupted) else DIVERGED
    if this_process().is_main_process:
        print_scores(metrics, options)
    return 0


def add_init(init: argparse.ArgumentParser) -> None:
    formats = ", ".join(PAIR_FILES)
    init.add_argument("source", type=Path, help=f"text file with one sentence per line, or file of pairs: {formats}")
    init.add_argument("target", type=Path, nargs="?", help="text file with the translation of each line")
    init.add_argument("more", type=Path, nargs="*", help="further files of pairs, of the same languages")
    init.add_argument(
        "--output-dir", dest="folder", type=Path, help="folder for recipe and splits (default: such as en-de)"
    )
    for side in ("source", "target"):
        init.add_argument(f"--{side}-lang", metavar="CODE", help="default: what the file or its name says")
        init.add_argument(
            f"--{side}-column",
            type=lambda name: int(name) if name.isdecimal() else name,
            metavar="NAME",
            help="file of pairs: name of a column, or its number from 1",
        )
    init.add_argument(
        "--from", dest="start", metavar="MODEL", help="train on from this model: a folder, a run, or a name on the Hub"
    )
    init.add_argument(
        "--trial", dest="trial_seconds", type=float, metavar="SECONDS", help="time to measure speed (default: 10)"
    )
    add_overwrite(init)


def run_init(options: argparse.Namespace) -> None:
    check_trial(options.trial_seconds)  # before PyTorch is loaded, as what follows
    options.corpora, options.folder = first_corpora(**arguments_of(first_corpora, options))
    load_package()
    from residual_hf.runs.first_recipe import write_first_recipe

    print(write_first_recipe(**arguments_of(write_first_recipe, options)))


def add_check(check: argparse.ArgumentParser) -> None:
    check.add_argument("recipe", type=Path, help="YAML file, see docs/recipe.md")
    add_overrides(check)
    check.add_argument("--seconds", type=float, default=60.0, help="duration of the measurements (default: 60)")
    check.add_argument("--modes", nargs="+", default=[], help="modes to compare with (default: the best of all modes)")


def run_check(options: argparse.Namespace) -> None:
    from residual_hf.native import report
    from residual_hf.runs.check import check
    from residual_hf.runs.recipe import load_recipe

    print(check(load_recipe(options.recipe, parse_overrides(options.set)), options.seconds, options.modes))
    print(report())


def add_average(average: argparse.ArgumentParser) -> None:
    average.add_argument("folder", type=Path, help="output folder of `residual-hf train`")
    which = average.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=integer, metavar="N", help="average the last N")
    which.add_argument("--best", type=integer, metavar="N", help="average the best N by the metric of the recipe")
    average.add_argument("--output-dir", type=Path, required=True, help="model folder to write")
    add_overwrite(average)


def run_average(options: argparse.Namespace) -> None:
    from residual_hf.runs.final_model import average_run

    of = "last" if options.best is None else "best"
    chosen = average_run(options.folder, options.output_dir, getattr(options, of), of=of, overwrite=options.overwrite)
    print(f"{options.output_dir}: the average of {', '.join(path.name for path in chosen)}")


def add_distill(distill: argparse.ArgumentParser) -> None:
    distill.add_argument("teacher", help="folder of a run or of a model, or a name on the Hub")
    distill.add_argument("--recipe", type=Path, help="recipe of the training text (default: that of the run)")
    distill.add_argument("--output-dir", type=Path, required=True, help="folder for the text and the student's recipe")
    distill.add_argument("--student", default="6+2", metavar="E+D", help="layers of the student (default: 6+2)")
    distill.add_argument("--closest", action="store_true", help="keep only the translation closest to the reference")
    distill.add_argument("--resume", action="store_true", help="continue an interrupted run of this command")
    add_fields(distill, StreamSettings, "source_lang", "target_lang", *SAMPLING)
    add_search(distill)


def run_distill(options: argparse.Namespace) -> None:
    from residual_hf.runs.distillation import distill
    from residual_hf.runs.recipe import load_recipe

    run = Path(options.teacher)
    if options.recipe is None and not (run / "recipe.yaml").is_file():
        raise InputError(f"--recipe: missing, required because {run} is not the folder of a run")
    tokenizer = next((folder for folder in (run / "tokenizer", run) if folder.is_dir()), None)
    options.long = "skip"
    recipe = load_recipe(options.recipe or run / "recipe.yaml")
    if options.glossary and len(targets := recipe.data.target_languages) > 1:
        raise InputError(f"--glossary: given for {' and '.join(targets)}, must be for one target language")
    path = distill(
        recipe,
        lambda: load_translator(options, options.teacher),
        options.output_dir,
        student=options.student,
        settings=stream_settings(options),
        closest=options.closest,
        tokenizer=tokenizer,
        made_with=made_with(options, options.teacher),
        resume=options.resume,
    )
    print(f"{path}: try residual-hf train {as_typed(str(path))}")


def add_quickstart(quickstart: argparse.ArgumentParser) -> None:
    quickstart.add_argument("--output-dir", type=Path, default=Path("residual_hf_quickstart"), help="folder to write")
    add_overwrite(quickstart)


def run_quickstart(options: argparse.Namespace) -> int:
    from residual_hf.runs.quickstart import quickstart

    return 0 if quickstart(options.output_dir, overwrite=options.overwrite) else FAILED


VERBS = {
    "quickstart": Verb(
        "train, save, reload and use a small model in minutes", add_quickstart, run_quickstart, has_modes=False
    ),
    "init": Verb(
        "write a recipe for a parallel corpus and this machine", add_init, run_init, loads=False, has_modes=False
    ),
    "check": Verb("predict in a minute whether a recipe will train, and compare modes", add_check, run_check),
    "train": Verb("train a model from a recipe", add_train, run_train, loads=False),
    "average": Verb("average checkpoints of a run", add_average, run_average),
    "distill": Verb("translate training text and write the recipe of a student", add_distill, run_distill),
}
