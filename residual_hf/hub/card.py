"""Model cards, generated from the folder of a training run. Unknown fields are omitted."""

import inspect
import logging
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from jinja2 import Environment, Template

from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import check_output_file, write_atomically
from residual_hf.base.yaml_files import dump_yaml
from residual_hf.checkpoint import SHORTLIST
from residual_hf.data.data_settings import SPLITS
from residual_hf.data.language_names import language_name
from residual_hf.data.tokenizer import ends_text
from residual_hf.evaluation.metrics import has_spaces
from residual_hf.evaluation.sentence_metrics import ERROR_RATES
from residual_hf.model import catalogue as _  # noqa: F401  registers the modes
from residual_hf.model.connections import LN_MODES
from residual_hf.records.learning_curve import learning_curve
from residual_hf.records.markdown import block, code, escaped, file_name, literal, public, text
from residual_hf.records.run_folder import Run, damage_named
from residual_hf.records.run_scores import LABELS, ScoreTable, compare, score_tables

from .citations import bibtex, papers

logger = logging.getLogger(__name__)


def write_card(
    run_folder: str | Path,
    *,
    model_name: str | None = None,
    baseline: str | Path | None = None,
    license: str | None = None,
    data_license: str | None = None,
    datasets: Sequence[str] = (),
    samples: int = 3,
    output: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the card of a finished run and the picture of its learning curve; returns the path of the card.

    The picture needs matplotlib (`pip install 'residual_hf[card]'`). Emissions need a run with
    `report_to: [codecarbon]`.

    Args:
        model_name: None is the name of the folder.
        baseline: folder of another run on the same test set, to compare with by paired bootstrap resampling.
        license: of the weights, an identifier of the Hub such as `apache-2.0`; the Hub checks it when pushing.
        data_license: of the training data, any text.
        datasets: ids of the training data on the Hub; the ids in the recipe are added.
        samples: number of sample translations of the test set.
        output: a Markdown file; None is `model/README.md` of the run. The picture is `training_curve.png` in the same
            folder, or `NAME.png` for another file `NAME.md`.
        overwrite: replace an existing card.

    Raises:
        InputError: a folder that is not a finished run, a card that exists, a baseline that cannot be compared, or an
            invalid name.
    """
    if samples < 0:
        raise InputError(f"samples: {samples} given, must be >= 0")
    run = Run.read(run_folder, finished=True)
    path = run.folder / "model" / "README.md" if output is None else Path(output)
    check_output_file(path, overwrite=overwrite, suffix=".md")
    picture = path.with_name("training_curve.png") if output is None else path.with_suffix(".png")
    if output is not None:
        check_output_file(picture, overwrite=overwrite)
    name = model_name or folder_name(run)
    for field, value in [("name", model_name), *(("datasets", dataset) for dataset in datasets)]:
        if value is not None:
            with input_errors(f"{field}: ", HFValidationError):
                validate_repo_id(value)
    with damage_named(run.folder):
        if not run.directions:
            raise InputError(f"{run.folder}: run.json has no corpus with source_lang and target_lang in data.train")
        other = None if baseline is None else Run.read(baseline, finished=True)
        comparisons = compare(run, other)
        tables = score_tables(run, comparisons)
        curve = learning_curve(run.curve)
        corpora = [corpus for split in SPLITS for corpus in getattr(run.record.data, split)]
        hashes = [item for corpus in corpora for item in corpus.sha256.items()]
        sections = ("tokenizer", "model", "training", "decoding", "evaluation")
        recipe = data_settings(run) | {name: run.recipe[name] for name in sections if name in run.recipe}
        card = render_card(
            card_metadata(run, tables, name, license, datasets),
            run=run,
            name=name,
            config=run.config,
            task=run.task,
            main_score=main_score(run),
            source=run.directions[0][0],
            target=run.directions[0][1],
            license=license,
            data_license=data_license,
            picture=picture.name if curve else None,
            ends_text=has_end(run),
            shortlist=(run.folder / "model" / SHORTLIST).exists(),
            uses_shortlist=any((run.metrics.get(split) or {}).get("shortlist") for split in ("test", "valid")),
            segmented=run.setting("tokenizer", "kind") == "pretokenized",
            start=run.starts_from,
            connections=[describe_mode(mode) for mode in run.ln_modes],
            hashes="\n".join(dict.fromkeys(f"{sha}  {file_name(file)}" for file, sha in hashes)),
            hyperparameters=dump_yaml(public(_without_empty(recipe))),
            labels=LABELS,
            scores=tables,
            samples=sample_translations(run, samples),
            comparisons=comparisons,
            baseline=other,
            citations=_citations(run, other),
        )
    if curve:
        write_atomically(picture, curve)
    write_atomically(path, f"{card}\n")
    return path


@cache
def template() -> Template:
    environment = Environment()
    environment.globals.update(block=block, code=code, escaped=escaped, literal=literal, text=text)
    environment.filters["language"] = lambda code: text(language_name(code))
    return environment.from_string(Path(__file__).with_name("model_card.md.jinja").read_text(encoding="utf-8"))


def render_card(metadata: ModelCardData, /, **values: Any) -> str:
    """The Markdown of a card with these values and the metadata, which `ModelCard` checks.

    Without `run` there are no records, see `plain_card`.
    """
    return str(ModelCard(template().render({**metadata.to_dict(), **values, "card_data": metadata.to_yaml()})))


def folder_name(run: Run) -> str:
    """The name of the folder of a run; if it is `run`, which `residual-hf init` proposes, its languages as `en-de`."""
    name, languages = run.folder.resolve().name, [run.recipe.get(f"{side}_lang") for side in ("source", "target")]
    is_pair = all(languages) and languages[0] != languages[1]
    return "-".join(map(str, languages)) if name == "run" and is_pair else name


def card_metadata(
    run: Run, tables: Sequence[ScoreTable], name: str, license: str | None, datasets: Sequence[str]
) -> ModelCardData:
    """The metadata that the Hub reads."""
    trained_on = (_hub_id(spec.get("dataset"), run.folder) for spec in _specs(run, "train"))
    results = [result for table in tables for result in _results(run, table)]
    emissions = None if run.record.resumed else run.record.emissions
    return ModelCardData(
        language=language_codes(language for pair in run.directions for language in pair),
        license=license,
        library_name="transformers",
        pipeline_tag=run.task.hub_name,
        tags=["residual_hf", *run.ln_modes],
        datasets=list(dict.fromkeys([*datasets, *filter(None, trained_on)])) or None,
        base_model=_hub_id(run.starts_from, run.folder) if "/" in (run.starts_from or "") else None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=name,
        eval_results=results or None,
        co2_eq_emissions=emissions and {"emissions": emissions.grams, "source": "codecarbon"},
    )


def language_codes(languages: Iterable[str]) -> list[str] | None:
    """Language codes for the metadata of the Hub, without languages that it does not accept."""
    codes = (re.fullmatch(r"([a-z]{2,3})([-_].*)?", language) for language in languages)
    return list(dict.fromkeys(found[1] for found in codes if found)) or None


def main_score(run: Run) -> str | None:
    """The score in the first sentence: of speech, CER in languages without spaces between words."""
    first = next(iter(run.task.scores), None)
    return "cer" if first == "wer" and not has_spaces(run.directions[0][1]) else first


def has_end(run: Run) -> bool:
    """Whether the tokenizer of a language model ends texts with `</s>`; a converted one begins them with it."""
    if not run.task.reads_lines or run.starts_from is None:
        return True
    from transformers import AutoTokenizer

    return ends_text(AutoTokenizer.from_pretrained(run.folder / "model"))


def _results(run: Run, table: ScoreTable) -> list[EvalResult]:
    """The scores of a corpus, with its id if it is on the Hub."""
    specs = _specs(run, table.split)
    one = len(specs) == 1 and "corpora" not in run.metrics[table.split]
    spec = specs[0] if one and _hub_id(specs[0].get("dataset"), run.folder) else {}
    one_direction = len(run.directions) == 1 and run.task.has_source_text
    direction = " " + "-".join(run.directions[0]) if one_direction else ""
    return [
        EvalResult(
            task_type=run.task.hub_name,
            task_name=f"{run.task.hub_name.capitalize().replace('-', ' ')}{direction}",
            dataset_type=spec.get("dataset", "local-files"),  # the Hub requires a type
            dataset_name=public(table.corpus),
            dataset_config=spec.get("dataset_config") if spec else public(table.corpus),  # keeps corpora apart
            dataset_split=spec.get("split", {"valid": "validation"}.get(table.split, table.split)),
            metric_type=name,
            metric_value=round(table.figures[name]["value"], 2),
            metric_name=LABELS[name],
            metric_args={"signature": table.figures[name]["signature"]},
        )
        for name in ("bleu", "chrf", "ter", *ERROR_RATES)
        if "signature" in table.figures.get(name, {})
    ]


def _specs(run: Run, split: str) -> list[dict[str, Any]]:
    """The corpora of a split as the recipe declares them."""
    specs = run.setting("data", split) or []
    return [spec for spec in (specs if isinstance(specs, list) else [specs]) if isinstance(spec, dict)]


def data_settings(run: Run) -> dict[str, Any]:
    """The section `data` of the recipe, of the training corpora only what marks and mixes them."""
    data = {name: value for name, value in (run.recipe.get("data") or {}).items() if name not in SPLITS}
    marks = ("tag", "weight", "limit")
    mixture = [{name: spec[name] for name in marks if name in spec} for spec in _specs(run, "train")]
    data |= {"train": mixture} if any(mixture) else {}
    return {"data": data} if data else {}


def _without_empty(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that are null or empty, at every depth."""
    kept = {name: _without_empty(value) if isinstance(value, dict) else value for name, value in settings.items()}
    return {name: value for name, value in kept.items() if value not in (None, [], {})}


def _hub_id(name: str | None, run: Path) -> str | None:
    """The id of a corpus or model on the Hub; None for files and folders here or where the run may have begun."""
    if not name or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name):
        return None
    parents = [*run.absolute().parents]
    found = (path for place in (Path.cwd(), *parents) if (path := place / name).exists())
    return None if any(path not in parents for path in found) else name


def sample_translations(run: Run, count: int) -> list[tuple[str, str, str]]:
    """The first sources, translations and references of the test set, or of the validation set without one."""
    try:
        return run.samples(run.split, count)
    except InputError as error:
        logger.warning("the card has no sample translations: %s", error)
        return []


def describe_mode(name: str) -> dict[str, str]:
    """Summary, equation and source of a mode; only the name of a mode that is not imported."""
    own = vars(LN_MODES[name]) if name in LN_MODES else {}
    summary = inspect.cleandoc(own.get("__doc__") or "").partition("\n")[0]
    return {"name": name, "summary": summary, "equation": own.get("equation", ""), "source": own.get("source", "")}


def _citations(run: Run, baseline: Run | None) -> str:
    entries = [entry for name in run.ln_modes if name in LN_MODES for entry in bibtex(name)]
    entries.append(papers()[run.task.words["citation"]])
    if baseline is not None:
        entries.append(papers()["koehn2004statistical"])
    return "\n\n".join(dict.fromkeys(entries))
