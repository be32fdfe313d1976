"""Scores of a model on one or several test sets: `residual-hf evaluate`."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from residual_hf.base.environment import command, commit, device_name, now, versions
from residual_hf.base.errors import InputError
from residual_hf.base.files import atomic_folder, write_atomically, write_json
from residual_hf.data.corpus import ParallelCorpus, read_parallel
from residual_hf.data.data_settings import CorpusSpec
from residual_hf.data.sample_checks import faults_of
from residual_hf.data.text_files import iter_lines, one_line, uncompressed_name
from residual_hf.data.tokenizer import reads_segmented_text
from residual_hf.generation.generation_settings import SearchRequest
from residual_hf.generation.long_text import LongLines
from residual_hf.generation.stream import check_lengths
from residual_hf.generation.translator import Translator
from residual_hf.model.translation_inputs import languages_of

from .metrics import EvaluationSettings, check_lines
from .scorer import by_corpus, make_scorers, mean_of_reports

SCORES = "scores.json"
logger = logging.getLogger(__name__)


def read_test_sets(sources: Sequence[Path], references: Sequence[Path]) -> list[ParallelCorpus]:
    """The n-th sources with the n-th references, each test set named by the file of its references."""
    if len(sources) != len(references):
        raise InputError(f"--reference: {len(references)} files given for {len(sources)} of --source, must be as many")
    corpora = [read_parallel(CorpusSpec(source=s, target=r)) for s, r in zip(sources, references, strict=True)]
    names = [uncompressed_name(path.name).rpartition(".")[0] or path.name for path in references]
    if len(set(names)) < len(names):
        names = [f"{number}_{name}" for number, name in enumerate(names, start=1)]
    return [replace(corpus, name=name) for corpus, name in zip(corpora, names, strict=True)]


def read_baseline(file: Path, test_sets: Sequence[ParallelCorpus]) -> list[str]:
    """The translations of another system. Raises `InputError` unless they are of the only test set."""
    if len(test_sets) > 1:
        raise InputError(f"--baseline: {file} is a file, must be a model if there are several test sets")
    lines = list(iter_lines(file))
    check_lines(f"--baseline: {file}", lines, test_sets[0].targets)
    return lines


def evaluate_model(
    translator: Translator,
    test_sets: Sequence[ParallelCorpus],
    settings: EvaluationSettings,
    request: SearchRequest,
    *,
    pretokenized: str | None = None,
    lowercase: bool = False,
    baseline: Translator | Sequence[str] | None = None,
    output_dir: Path | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Translate test sets and score the translations.

    Returns the report of `Scorer.report` with the number of `sentences` and the `seconds` that translating them took;
    for several test sets the means, and the report of each below `corpora`.

    Args:
        request: its languages and its treatment of long sentences.
        pretokenized: "moses" if Moses has tokenized the test sets and what the model translates, see `Scorer`.
        baseline: another model, or its translations of all test sets in order, to compare with by paired bootstrap.
        output_dir: folder for `NAME.translations.txt` of each test set and `scores.json`, which also has the command,
            the search parameters, versions and device.
    """
    source, target = languages_of(translator.model.config, translator.tokenizer)
    source, target = request.source_lang or source, request.target_lang or target
    corpora = [replace(corpus, source_lang=source, target_lang=target) for corpus in test_sets]
    languages, long = {"source_lang": request.source_lang, "target_lang": request.target_lang}, request.long
    options: dict[str, Any] = {**languages, "long": long, "progress": progress}
    scorers = make_scorers(corpora, pretokenized, settings, lowercase=lowercase)
    names = [next(iter(corpus.sha256), corpus.name) for corpus in corpora]  # the file of the sources
    is_segmented = reads_segmented_text(translator.tokenizer)
    expected = {"moses"} if pretokenized else {"subwords", "moses"} if is_segmented else set()
    for corpus, name in zip(corpora, names, strict=True):
        for fault in faults_of(corpus, expected):
            logger.warning("%s: %s", name, fault)
    for model in (model for model in (translator, baseline) if isinstance(model, Translator)):
        for corpus, name in zip(corpora, names, strict=True):
            check_lengths(model, corpus.sources, long, name, *languages.values())
    if isinstance(baseline, Translator):
        baseline = baseline.translate([line for corpus in corpora for line in corpus.sources], **options)
    others: list[Any] = [None] * len(scorers)
    if baseline is not None:
        others = [lines for _, lines in by_corpus(scorers, cast(Sequence[str], baseline))]
    translations: dict[str, list[str]] = {}
    reports: dict[str, dict[str, Any]] = {}
    for scorer, other, name in zip(scorers, others, names, strict=True):
        started = time.perf_counter()
        long_lines = LongLines(translator.inputs.positions, long, name)
        lines = translator.translate(scorer.corpus.sources, on_long=partial(long_lines.add, 1), **options)
        timing = {"sentences": len(lines), "seconds": round(time.perf_counter() - started, 3)}
        if long_lines.count:
            logger.warning("%s: %s", name, long_lines)
        translations[scorer.corpus.name] = lines
        reports[scorer.corpus.name] = scorer.report(lines, baseline=other) | timing
    report = mean_of_reports(reports)
    if output_dir is not None:
        with atomic_folder(output_dir) as new:
            for name, lines in translations.items():
                write_atomically(new / f"{name}.translations.txt", "".join(one_line(line) + "\n" for line in lines))
            write_scores(new, report, corpora, decoding=asdict(translator.settings))
    return report


def write_scores(folder: Path, report: dict[str, Any], corpora: Sequence[ParallelCorpus], **settings: Any) -> None:
    """Write `scores.json`: a report, the settings that it depends on, and how it was made."""
    record = {
        "command": command(),
        "finished": now(),
        "commit": commit(),
        "versions": versions(),
        "device": device_name(),
        **settings,
        "sha256": {file: sha for corpus in corpora for file, sha in corpus.sha256.items()},
        "scores": report,
    }
    write_json(folder / SCORES, record)
