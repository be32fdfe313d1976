"""Verbs that use a trained model."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputError, requires
from residual_hf.base.files import RECORD
from residual_hf.base.launched import in_group, is_first
from residual_hf.base.names import as_typed, model_folder, similar_path
from residual_hf.data.data_settings import DataSettings
from residual_hf.data.text_files import uncompressed_name
from residual_hf.documents import ARCHIVES, BINARY, DOCUMENTS, REFUSED
from residual_hf.evaluation.metrics import EvaluationSettings
from residual_hf.generation.generation_settings import DecodingSettings, SearchRequest, StreamSettings
from residual_hf.serving.server_settings import ServerSettings

from .arguments import (
    SAMPLING,
    SEARCH,
    Verb,
    add_field,
    add_fields,
    add_json,
    add_loading,
    add_overwrite,
    add_search,
    arguments_of,
    given_fields,
    integer,
    load_translator,
    made_with,
    print_scores,
    refuse,
    stream_settings,
)

OF_CATALOGUES = ("fill", "mark_fuzzy")
LANGUAGES = ("source_lang", "target_lang")
OF_TRANSLATIONS = (
    *("baseline", "metric", "pretokenized", "tokenize", "lowercase", "long", "glossary"),
    *LANGUAGES,
    *SEARCH,
)
OF_TEXT = ("block_size", "sample_break_mode", "context_window")
"""Options of `evaluate` that only one kind of model has."""


def add_translate(translate: argparse.ArgumentParser) -> None:
    translate.add_argument("model", help="folder of a model or a run, or a name on the Hub")
    formats = ", ".join(DOCUMENTS)
    source = translate.add_mutually_exclusive_group()
    source.add_argument(
        "file", type=Path, nargs="?", help=f"file with lines of text (default: standard input), or document: {formats}"
    )
    source.add_argument("--input", type=Path, help="the same as `file`")
    translate.add_argument("--output", type=Path, help="file for the translations (default: standard output)")
    translate.add_argument("--resume", action="store_true", help="continue an interrupted translation to --output")
    translate.add_argument("--devices", type=integer, default=1, metavar="N", help="number of GPUs or processes")
    add_fields(translate, StreamSettings, "scores", "alignments", "word_scores", "flags", "review")
    add_fields(translate, StreamSettings, "split_sentences", "window", *OF_CATALOGUES, *LANGUAGES, "long", *SAMPLING)
    add_search(translate)
    add_overwrite(translate)


def run_translate(options: argparse.Namespace) -> int:
    from residual_hf.generation.devices import run_on_devices
    from residual_hf.generation.stream import translate_file

    source = options.input if options.file is None else options.file
    if source is not None and not os.path.exists(source):  # False for a name that is too long
        raise InputError(f"no such file: {source}{similar_path(source)}")
    if os.path.isfile(options.model):
        raise InputError(f"model: {options.model} is a file, must be a folder or a name on the Hub, before the text")
    if source is None and options.model.lower().endswith(DOCUMENTS) and not Path(options.model).exists():
        file = Path(options.model)
        raise InputError(f"no such file: {file}{similar_path(file)}; the model must be before the text")
    translate: Callable[..., None] = translate_file
    if source is not None and source.suffix.lower() in DOCUMENTS:
        if options.devices > 1:
            raise InputError(f"--devices: {options.devices} given, must be 1 for a document")
        with requires("documents"):
            from residual_hf.documents.translation import translate_document
        translate = translate_document
    else:
        check_lines_of_text(filter(None, [source]))
        if options.output is not None and options.output.name.lower().endswith((*chain(*BINARY.values()), *ARCHIVES)):
            raise InputError(f"--output: {options.output} given, must be a text file, as the input is")
        refuse(options, OF_CATALOGUES, "given, but there is no catalogue such as a .po file")
    if options.devices > 1 and (options.device or "").startswith("cuda:"):
        raise InputError(f"--device: {options.device} given, must be cuda with --devices {options.devices}")
    if options.devices > 1 and not in_group():
        return run_on_devices(options.devices, options.arguments)
    translate(
        lambda: load_translator(options, options.model),
        stream_settings(options),
        source=source,
        output=options.output,
        made_with=made_with(options, options.model) if options.output is not None and is_first() else None,
        resume=options.resume,
        overwrite=options.overwrite,
        inputs=[model_folder(options.model), *filter(None, [options.glossary])],
    )
    return 0


def check_lines_of_text(files: Iterable[Path]) -> None:
    """Raise `InputError` for names of files that hold something else than lines of text."""
    others = {"export its sentences, one in a line": DOCUMENTS} | REFUSED
    for file in files:
        name = uncompressed_name(file.name.lower())
        if file.suffix.lower() not in DOCUMENTS and name.endswith(DOCUMENTS):
            raise InputError(f"{file}: is a compressed document, must be unpacked")
        advice = next((advice for advice, names in others.items() if name.endswith(names)), None)
        if advice is not None:
            raise InputError(f"{file}: has no lines of text: {advice}")


def add_transcribe(transcribe: argparse.ArgumentParser) -> None:
    transcribe.add_argument("model", help="folder of a speech model or its run, or a name on the Hub")
    transcribe.add_argument("files", type=Path, nargs="+", metavar="file", help="audio files at 16 kHz")
    transcribe.add_argument("--longest", type=float, metavar="S", help="seconds after which recordings are cut (30)")
    transcribe.add_argument("--times", action="store_true", help="a line for each part: file, begin, end, text")
    for name in ("num_beams", "length_penalty", "dtype"):
        add_field(transcribe, DecodingSettings, name, default="that of the model")
    add_loading(transcribe)


def run_transcribe(options: argparse.Namespace) -> None:
    from residual_hf.generation.transcription import transcribe

    given = arguments_of(transcribe, options) | arguments_of(DecodingSettings, options)
    for file, parts in zip(options.files, transcribe(options.model, **given), strict=True):
        lines = [f"{file}\t{part.begin:.2f}\t{part.end:.2f}\t{part.text}" for part in parts]
        print("\n".join(lines) if options.times else " ".join(part.text for part in parts), flush=True)


def add_score(score: argparse.ArgumentParser) -> None:
    score.add_argument("model", help="folder of a model or a run, or a name on the Hub")
    score.add_argument(
        "file", type=Path, nargs="?", help="lines of a source, a tab and a translation (default: standard input)"
    )
    score.add_argument("more", type=Path, nargs="*", help=argparse.SUPPRESS)
    score.add_argument("--source", type=Path, help="sources, with --translation in the place of `file`")
    score.add_argument("--translation", type=Path, help="translations, one for each line of --source")
    score.add_argument(
        "--skip-long", action="store_true", help="write nan and 0 for a pair that is longer than the model reads"
    )
    add_fields(score, StreamSettings, *LANGUAGES)
    add_field(score, DecodingSettings, "max_tokens", flag="--batch-tokens")
    score.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="on a GPU; on a CPU, models of this package score in float32"
    )
    add_loading(score)


def run_score(options: argparse.Namespace) -> None:
    if options.more:
        source, translation = as_typed(str(options.file)), as_typed(str(options.more[0]))
        raise InputError(
            f"file: {1 + len(options.more)} files given, must be one with both sides; of two files use "
            f"--source {source} --translation {translation}"
        )
    files = (options.source, options.translation)
    if (None in files) != (files == (None, None)) or (None not in files and options.file is not None):
        raise InputError("--source, --translation: both must be given, or a file with both sides in their place")
    is_table = options.file is not None and uncompressed_name(options.file.name.lower()).endswith(".tsv")
    check_lines_of_text(filter(None, (*files, None if is_table else options.file)))
    translator = load_translator(options, options.model)
    from residual_hf.generation.scoring import read_pairs, scored

    given = {name: getattr(options, name) for name in (*LANGUAGES, "skip_long")}
    for line in scored(translator, read_pairs(options.file, *files), **given):
        print(line)


def add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("models", nargs="+", metavar="model", help="folders of models or runs, or names on the Hub")
    add_fields(serve, ServerSettings, *(field.name for field in fields(ServerSettings)))
    serve.add_argument(
        "--source-lang",
        action="append",
        default=[],
        metavar="CODE",
        help="source language of models whose config has none; repeatable",
    )
    serve.add_argument("--target-lang", metavar="CODE", help="target language of models whose config has none")
    add_search(serve, batch_tokens=4000)


def run_serve(options: argparse.Namespace) -> None:
    with requires("serve"):
        from residual_hf.serving.app import serve

    serve(partial(load_languages, options), given_fields(ServerSettings, options))


def load_languages(options: argparse.Namespace) -> Any:
    from residual_hf.base.modes import import_modes
    from residual_hf.serving.languages import Languages

    for path in options.imports:  # of which a worker does not know the modes yet
        import_modes(path)
    translators = {model: load_translator(options, model) for model in options.models}
    return Languages(translators, options.source_lang, options.target_lang)


def score_of_text(options: argparse.Namespace) -> dict[str, Any]:
    from residual_hf.checkpoint import load_checkpoint
    from residual_hf.evaluation.perplexity import evaluate_text
    from residual_hf.model.modeling_single_stack import ResidualForCausalLM

    refuse(options, OF_TRANSLATIONS, "given with --text, which is scored by perplexity")
    if (run := run_of(options.model)) is not None:
        options.block_size = options.block_size or run.block_size
        options.sample_break_mode = options.sample_break_mode or run.setting("data", "sample_break_mode")
    options.model, options.tokenizer = load_checkpoint(
        options.model, trust_remote_code=options.trust_remote_code, classes=(ResidualForCausalLM,)
    )
    options.files, options.break_mode = options.text, options.sample_break_mode
    options.max_tokens = options.batch_tokens
    return evaluate_text(**arguments_of(evaluate_text, options), progress=sys.stderr.isatty())


def run_of(model: str) -> Any:
    """The `Run` that a model is from, or None. It says in which examples text was read, and positions were trained."""
    from residual_hf.records.run_folder import Run

    folders = Path(model_folder(model)).absolute().parents[:2]
    folder = next((each for each in folders if (each / RECORD).is_file()), None)
    return None if folder is None else Run.read(folder)


def add_evaluate(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument("model", help="folder of a model or a run, or a name on the Hub")
    evaluate.add_argument("--source", type=Path, action="append", default=[], help="text to translate; repeatable")
    evaluate.add_argument(
        "--reference", type=Path, action="append", default=[], help="references; one file for each --source"
    )
    evaluate.add_argument(
        "--text", type=Path, action="append", default=[], help="language models: text to score; repeatable"
    )
    add_fields(evaluate, DataSettings, *OF_TEXT[:2], "pretokenized")
    evaluate.add_argument("--lowercase", action="store_true", help="lowercase translations and references")
    add_fields(evaluate, EvaluationSettings, "tokenize", "context_window")
    add_field(evaluate, EvaluationSettings, "metrics", flag="--metric")
    evaluate.add_argument("--baseline", metavar="OTHER", help="model, or file of its translations, to compare with")
    evaluate.add_argument("--output-dir", type=Path, help="folder for scores and translations")
    add_fields(evaluate, SearchRequest, *LANGUAGES, "long")
    add_search(evaluate)
    add_json(evaluate)
    add_overwrite(evaluate)


def run_evaluate(options: argparse.Namespace) -> None:
    from residual_hf.base.files import check_output_folder
    from residual_hf.evaluation.model_scores import SCORES

    pairs = [*options.source, *options.reference]
    if bool(options.text) == bool(pairs):
        raise InputError("--text: must be given for a language model, --source and --reference for other models")
    if options.output_dir is not None:
        check_output_folder(
            options.output_dir,
            overwrite=options.overwrite,
            holds=[SCORES],
            inputs=[*pairs, *options.text, options.model, options.baseline, options.glossary],
            field="--output-dir",
        )
    check_lines_of_text(pairs)
    with nullcontext() if options.output_dir is None else lock_of(options.output_dir):
        report = score_of_text(options) if options.text else scores_of_translations(options)
        print_scores(report, options)


def lock_of(folder: Path) -> Any:
    """A lock beside an output folder; none where it cannot be, such as that of a mount."""
    from residual_hf.base.lock import Lock

    place = folder.resolve()
    parent = next(path for path in place.parents if path.exists())
    if not os.access(parent, os.W_OK):
        return nullcontext()
    return Lock(place.with_name(f".{place.name}.lock"), f"--output-dir: {folder}")


def scores_of_translations(options: argparse.Namespace) -> dict[str, Any]:
    from residual_hf.base.files import expanded
    from residual_hf.evaluation.model_scores import evaluate_model, read_baseline, read_test_sets
    from residual_hf.evaluation.translation_metric import load_metric

    refuse(options, OF_TEXT, "only with --text")
    settings = EvaluationSettings(tokenize=options.tokenize, metrics=tuple(options.metric or ()))
    for name in settings.metrics:
        load_metric(name)
    test_sets = read_test_sets(options.source, options.reference)
    if options.baseline is not None and expanded(options.baseline).is_file():
        options.baseline = read_baseline(expanded(options.baseline), test_sets)
    translator = load_translator(options, options.model)
    if isinstance(options.baseline, str):
        options.baseline = load_translator(options, options.baseline)
    chosen = {name: getattr(options, name) for name in ("pretokenized", "lowercase", "baseline", "output_dir")}
    request, bar = given_fields(SearchRequest, options), sys.stderr.isatty()
    return evaluate_model(translator, test_sets, settings, request, **chosen, progress=bar)


VERBS = {
    "translate": Verb("translate lines of text, or a document", add_translate, run_translate),
    "transcribe": Verb("transcribe recordings of speech", add_transcribe, run_transcribe),
    "evaluate": Verb("score a model on test sets: BLEU, chrF, TER, COMET, perplexity", add_evaluate, run_evaluate),
    "score": Verb("log-probabilities of given translations", add_score, run_score, loads=False),
    "serve": Verb("serve models with LibreTranslate's HTTP API and a web page", add_serve, run_serve),
}
