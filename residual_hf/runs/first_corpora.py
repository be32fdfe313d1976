"""The text files, languages and folder of a first recipe, checked without PyTorch."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputError
from residual_hf.base.files import check_output_folder, content_of
from residual_hf.base.names import check_model_files, model_folder
from residual_hf.data.data_settings import PAIR_FILES, SPLITS, CorpusSpec
from residual_hf.data.language_names import code_given
from residual_hf.data.pair_formats import LANGUAGE, languages_in, with_lower_language, without_regions
from residual_hf.data.pair_reader import PairReader, check_paths
from residual_hf.data.pair_rows import HEADERS, same_language
from residual_hf.data.text_files import uncompressed_name

NO_LANGUAGES = {
    *("txt", "out", "inp", "ref", "hyp", "log", "raw", "bpe", "dat", "xml", "sgm", "md"),
    *(suffix.removeprefix(".") for suffix in PAIR_FILES),
    *set().union(*HEADERS),
}
"""Ends of names that look like codes of languages."""
WRITTEN = re.compile(rf"recipe\.yaml|(?:{'|'.join(SPLITS)})\.{LANGUAGE.pattern}|\.DS_Store", re.IGNORECASE)
"""What a folder of a first recipe holds."""


def first_corpora(
    source: Path,
    target: Path | None = None,
    folder: Path | None = None,
    *,
    more: Sequence[Path] = (),
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_column: str | int | None = None,
    target_column: str | int | None = None,
    start: str | None = None,
    overwrite: bool = False,
) -> tuple[list[CorpusSpec], Path]:
    """The corpora of a first recipe and the folder to write: two aligned text files, or files of pairs.

    Args:
        source, target, more: two text files of as many lines, plain or compressed, or one or several files in the
            formats of `CorpusSpec.file`.
        folder: default: the languages, as `en-de`.
        source_lang, target_lang: default: the suffixes of the files, or what the file of pairs names.
        source_column, target_column: of a file of pairs, see `CorpusSpec`.
        start: a model to train on from, whose files are checked.
        overwrite: the folder may have content.

    Raises `InputError` for files that cannot be used, an unknown language, or a folder that is not empty.
    """
    given = [source, *filter(None, [target]), *more]
    check_paths(given)
    in_pairs = [uncompressed_name(path.name.lower()).endswith(PAIR_FILES) for path in given]
    chosen: Any = {"source_column": source_column, "target_column": target_column, "skip_empty": True}
    if len(given) == 1 or all(in_pairs):
        specs = [CorpusSpec(file=path, **chosen) for path in given]
    elif len(given) == 2 and not any(in_pairs):
        specs = [CorpusSpec(source=source, target=target, **chosen)]
    else:
        other = given[in_pairs.index(False)]
        raise InputError(f"source: {other} given among {len(given)} files, must be a file of {', '.join(PAIR_FILES)}")
    languages = languages_of(specs[0], source_lang, target_lang)
    if languages[0] == languages[1]:
        raise InputError(f"--target-lang: {languages[1]!r} given, must differ from the source language")
    folder = folder or Path("-".join(languages))
    check_output_folder(folder, overwrite=overwrite, holds=["recipe.yaml"], inputs=[*given, start])
    for path in content_of(folder) if folder.is_dir() else ():
        if not WRITTEN.fullmatch(path.name):
            raise InputError(f"output_dir: {folder} holds {path.name}, which init did not write: move it elsewhere")
    if start is not None:
        check_model_files(model_folder(start), f"--from: {start}")
    specs = [replace(spec, source_lang=languages[0], target_lang=languages[1]) for spec in specs]
    for spec in specs:
        PairReader(spec).take(1)
    return specs, folder


def check_trial(seconds: float | None) -> None:
    """Raise `InputError` for a duration of a trial that is none."""
    if seconds is not None and not 0 <= seconds < math.inf:
        raise InputError(f"--trial: {seconds} given, must be a number >= 0")


def languages_of(spec: CorpusSpec, source_lang: str | None, target_lang: str | None) -> tuple[str, str]:
    """The languages that are given, or those that the files of a corpus name."""
    named: Sequence[str | None] = (source_lang, target_lang)
    if spec.file is not None and None in named:
        found = languages_in(spec.files[0])
        if not spec.is_jsonl and spec.file_format != ".parquet":  # whose keys are found only as they are
            found = without_regions(found)
        if len(found) > 2:
            flag = "--source-lang" if source_lang is None else "--target-lang"
            raise InputError(f"{flag}: missing, {spec.file} has {', '.join(found)}")
        crossed = zip(found, named[::-1], strict=False)
        is_back = any(given is not None and same_language(own, given) for own, given in crossed)
        named = found[::-1] if is_back else found or named
    return (
        language_of(spec.files[0], "--source-lang", source_lang or named[0]),
        language_of(spec.files[-1], "--target-lang", target_lang or named[1]),
    )


def language_of(path: Path, flag: str, given: str | None = None) -> str:
    """The language that is given, or the one in the name of a file, as in `corpus.de` or `corpus.en-de.de.gz`."""
    if given is not None:
        if not LANGUAGE.fullmatch(code := code_given(given)):
            raise InputError(f"{flag}: {given!r} given, must be a language code such as de or pt_BR")
        return code
    suffix = uncompressed_name(path.name).rpartition(".")[2]
    if not LANGUAGE.fullmatch(suffix) or suffix.lower() in NO_LANGUAGES:
        raise InputError(f"{flag}: missing, {path} does not end in a language code such as .de")
    return with_lower_language(suffix)
