# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""From the corpora of a recipe to token ids, in memory or as a stream."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from residual_hf.base.errors import InputError
from residual_hf.base.files import atomic_folder, write_json
from residual_hf.base.names import check_repository
from residual_hf.checkpoint import model_folder
from residual_hf.checkpoint_checks import load_tokenizer
from residual_hf.model.tokenization_residual import ResidualTokenizer

from .cleaning import CleaningReport, clean_corpus, pair_filter
from .corpus import ParallelCorpus, numbered, read_parallel
from .data_settings import CleaningSettings, DataSettings, TokenizerSettings
from .encoding import EncodedCorpus, encode, encode_corpus
from .language_modeling import encode_chunks, encode_texts, pack
from .language_names import adds_codes, set_languages
from .marked_text import marked, marking_tokens, training_edits, with_capitals
from .mixture import mixed_indices, mixing_probabilities
from .multilingual import concatenate, directions, language_tag, tag_corpus, training_pairs
from .pair_reader import PairReader, locate_pair
from .streaming import StreamedBatches
from .subword_regularization import resegmenters
from .text_warnings import (
    warn_about_faults,
    warn_about_overlap,
    warn_about_rare_placeholders,
    warn_about_unknown_tokens,
)
from .tokenizer import ends_text, join_subwords, pretokenized_tokenizer, reads_segmented_text
from .tokenizer_training import train_tokenizer

logger = logging.getLogger(__name__)

Corpora = dict[str, list[ParallelCorpus]]
"""The corpora of `train`, `valid` and `test`."""

SAMPLE = 200_000
"""Pairs of a stream, over all corpora, that a tokenizer is trained on."""


@dataclass
class PreparedData:
    """The data of a run.

    `encoded`: the splits as token ids, without a `train` that is streamed. `references`: the corpora of `valid` and
    `test`, in every direction and without tags. `longest`: for each training pair, the tokens of its longer side; of a
    stream the maximum only.
    """

    tokenizer: PreTrainedTokenizerBase
    encoded: dict[str, EncodedCorpus]
    references: Corpora
    longest: np.ndarray


def read_corpora(data: DataSettings) -> Corpora:
    """Read all corpora into memory, except a `train` that is streamed."""
    splits = {"train": [] if data.stream else data.train, "valid": data.valid, "test": data.test}
    return {name: [read_parallel(spec) for spec in specs] for name, specs in splits.items() if specs}


def prepare(
    texts: Corpora,
    data: DataSettings,
    tokenizer_settings: TokenizerSettings,
    folder: Path,
    *,
    target_languages: Iterable[str],
    positions: int,
    max_tokens: int | None,
    seed: int,
    context_window: int = 0,
) -> PreparedData:
    """Clean and tokenize the corpora of a run; writes `tokenizer/`, `cache/` and `cleaning.json`.

    Args:
        texts: the result of `read_corpora`.
        data, tokenizer_settings: sections of the recipe.
        target_languages: the languages that get a tag if `data.language_tags`.
        positions: most tokens that the model reads. Longer training pairs are dropped.
        max_tokens: budget of a training batch; None if it is not known yet.
        seed: of mixing and of subword regularization.
        context_window: of the blocks of `valid` and `test` of a language model, see `pack`.
    """
    processes, cache = PartialState(), folder / "cache"
    train = texts.get("train", [])
    if data.cleaning is not None and not data.stream:
        train = clean(train, data.cleaning, folder / "cleaning.json" if processes.is_main_process else None)
    train = [with_capitals(corpus, data, seed) for corpus in train]
    held_out = {name: corpora for name, corpora in texts.items() if name != "train"}
    references = {
        name: [direction for corpus in corpora for direction in directions(corpus, data.bidirectional)]
        for name, corpora in held_out.items()
    }
    max_length = min(data.max_length or positions, positions, max_tokens or positions)
    longest = np.array([max_length])
    with processes.main_process_first():
        languages = [language_tag(language) for language in target_languages] if data.language_tags else []
        tags = languages + sorted({spec.tag for spec in data.train if spec.tag is not None}) + marking_tokens(data)
        sample = (with_capitals(corpus, data, seed) for corpus in first_pairs(data)) if data.stream else train
        if processes.is_main_process and not (folder / "tokenizer").exists():  # at the first start of a run
            sample = list(sample)
            if not data.is_text:  # of which many lines are blank or short
                warn_about_overlap(sample, held_out)
                before_cleaning = texts.get("train") or sample
                warn_about_faults({"train": before_cleaning, **held_out}, expected_in(data, tokenizer_settings))
        tokenizer = get_tokenizer(tokenizer_settings, data, sample, tags, positions, folder / "tokenizer")
        encoded = {}
        for name, corpora in references.items():
            if data.is_text:
                packing = packing_of(data, max_length, context_window)
                parts = encode_texts(corpora, tokenizer, packing, name=name, cache_dir=cache)
                encoded[name] = EncodedCorpus.joined(parts)
            else:
                encoded[name] = encode_references(corpora, data, tokenizer, name, positions, cache)
        if not data.stream:
            if data.is_text:
                parts = encode_texts(train, tokenizer, packing_of(data, max_length), name="train", cache_dir=cache)
                encoded["train"] = mix(EncodedCorpus.joined(parts), [len(part) for part in parts], data, seed)
            else:
                options: dict[str, Any] = {"cache_dir": cache, "seed": seed, "max_length": positions}
                encoded["train"] = encode_training(train, data, tokenizer, max_length, **options)
            longest = np.maximum(encoded["train"].source_lengths, encoded["train"].target_lengths)
    if processes.is_main_process:
        warn_about_unknown_tokens(encoded, tokenizer)
        if data.placeholders and "train" in encoded:
            warn_about_rare_placeholders(encoded["train"], tokenizer)
    if reads_segmented_text(tokenizer):
        references = {name: [joined(corpus) for corpus in corpora] for name, corpora in references.items()}
    return PreparedData(tokenizer, encoded, references, longest)


def expected_in(data: DataSettings, tokenizer: TokenizerSettings) -> set[str]:
    """What `faults_of` finds in the text of a recipe that is as the recipe says."""
    expected = {
        "moses": tokenizer.kind == "pretokenized" or data.pretokenized is not None,
        "subwords": tokenizer.path is not None,  # a tokenizer of segmented text, it may be
        "copies": data.cleaning is not None and data.cleaning.identical,
    }
    return {name for name, is_expected in expected.items() if is_expected}


def packing_of(data: DataSettings, max_length: int, context: int = 0) -> Callable[[EncodedCorpus], EncodedCorpus]:
    """A function that packs the lines of a language model into examples of at most `max_length` tokens."""
    return partial(pack, block_size=data.block_size or max_length, break_mode=data.sample_break_mode, context=context)


def joined(corpus: ParallelCorpus) -> ParallelCorpus:
    """The corpus with subwords joined to words, like translations."""
    sides = [[join_subwords(text) for text in side] for side in (corpus.sources, corpus.targets)]
    return replace(corpus, sources=sides[0], targets=sides[1])


def encode_references(
    corpora: Sequence[ParallelCorpus],
    data: DataSettings,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    positions: int,
    cache_dir: Path,
) -> EncodedCorpus:
    """The corpora of `valid` or `test` as one. Raises `InputError` for a text with more tokens than `positions`."""
    edited = [marked(corpus, placeholders=data.placeholders) for corpus in corpora]
    tagged = [tag_corpus(corpus, data.language_tags) for corpus in edited]
    encoded = encode_corpus(concatenate(tagged, name), tokenizer, name=name, cache_dir=cache_dir)
    for side, lengths in enumerate((encoded.source_lengths, encoded.target_lengths)):
        longest = int(lengths.argmax())
        if lengths[longest] > positions:
            starts = np.cumsum([0, *map(len, corpora)])
            number = int(np.searchsorted(starts, longest, side="right")) - 1
            spec, back = divmod(number, 1 + data.bidirectional)
            where = locate_pair(getattr(data, name)[spec], longest - int(starts[number]), side ^ back)
            raise InputError(
                f"data.{name}: {where} has {lengths[longest]} tokens, but the model reads at most {positions} "
                "(max_position_embeddings)"
            )
    return encoded


def encode_training(
    corpora: Sequence[ParallelCorpus],
    data: DataSettings,
    tokenizer: PreTrainedTokenizerBase,
    longest: int,
    *,
    seed: int,
    **options: Any,
) -> EncodedCorpus:
    """The cleaned training corpora as one epoch, without pairs that have a side of more than `longest` tokens.

    `options`: as in `encode_corpus`.
    """
    edits = training_edits(data)
    pairs = [training_pairs(corpus, data.bidirectional, data.language_tags, edits) for corpus in corpora]
    resegment = resegmenters(tokenizer, data.subword_regularization)
    whole = encode_corpus(concatenate(pairs, "train"), tokenizer, resegment, name="train", seed=seed, **options)
    encoded = mix(whole, [len(corpus) for corpus in pairs], data, seed)
    kept = encoded.drop_long(longest)
    if not len(kept):
        raise InputError(
            f"data.max_length, training.max_tokens: no training pair has at most {longest} tokens on both sides"
        )
    if dropped := len(encoded) - len(kept):
        level = logging.WARNING if dropped > len(kept) else logging.INFO
        logger.log(level, "dropped %d of %d training pairs, longer than %d tokens", dropped, len(encoded), longest)
    return kept


def open_stream(
    data: DataSettings, tokenizer: Any, max_tokens: int, *, positions: int, seed: int, **options: Any
) -> StreamedBatches:
    """The training batches of a stream; `options` as in `StreamedBatches`."""
    tokenizer = copy.deepcopy(tokenizer)  # a thread encodes; tokenizers keep truncation and padding as state
    if data.is_text:
        packing = packing_of(data, min(positions, max_tokens))
        encode_text: Callable[..., EncodedCorpus] = partial(encode_chunks, tokenizer=tokenizer, packing=packing)
    else:
        resegment = resegmenters(tokenizer, data.subword_regularization)
        encode_text = partial(encode, tokenizer=tokenizer, resegment=resegment, seed=seed, max_length=positions)
    stream = StreamedBatches(data, encode_text, max_tokens, positions=positions, seed=seed, **options)
    log_shares("streaming", [spec.title for spec in data.train], stream.probabilities)
    return stream


def clean(
    corpora: Sequence[ParallelCorpus], settings: CleaningSettings, report_file: Path | None
) -> list[ParallelCorpus]:
    """Clean each training corpus and write the report to `report_file`, if given."""
    cleaned, reports = [], {}
    for name, corpus in zip(numbered([corpus.name for corpus in corpora]), corpora, strict=True):
        report = reports[name] = CleaningReport()
        cleaned.append(clean_corpus(corpus, pair_filter(settings), report))
        logger.info("%s: cleaning: %s", name, report)
        report.warn_if_most_is_gone(name)
        if not report.kept:
            raise InputError(f"data.cleaning: no pair of {name} is left: {report}")
    if report_file is not None:
        content = {name: vars(report) for name, report in reports.items()}
        write_json(report_file, content if len(content) > 1 else next(iter(content.values())))
    return cleaned


def first_pairs(data: DataSettings) -> Iterator[ParallelCorpus]:
    """The first pairs of every training corpus, cleaned, to train the tokenizer of a stream."""
    for spec in data.train:
        corpus = ParallelCorpus.empty(spec).with_pairs(PairReader(spec).take(SAMPLE // len(data.train)))
        if data.cleaning is not None:
            report = CleaningReport()
            corpus = clean_corpus(corpus, pair_filter(data.cleaning), report)
            report.warn_if_most_is_gone(f"the first pairs of {corpus.name}")
        yield corpus


def get_tokenizer(
    settings: TokenizerSettings,
    data: DataSettings,
    corpora: Iterable[ParallelCorpus],
    tags: Sequence[str],
    positions: int,
    folder: Path,
) -> PreTrainedTokenizerBase:
    """The tokenizer in `folder`, if there is one; else one as `settings` say, trained on `corpora`, saved there.

    It has an entry for each of `tags`.
    """
    if folder.exists():
        return AutoTokenizer.from_pretrained(folder)
    train = partial(train_tokenizer, settings=settings, language_tags=tags)
    if settings.path is not None:
        tokenizer = given_tokenizer(settings.path, settings.kind, data)
    elif settings.joint:
        tokenizer = train([line for corpus in corpora for line in corpus.sentences])
    else:
        text = concatenate(list(corpora), "train")
        tokenizer = ResidualTokenizer.from_pair(train(text.sources), train(text.targets))
    missing = [tag for tag in tags if tag not in tokenizer.get_vocab()]
    tokenizer.add_tokens([AddedToken(tag, normalized=True) for tag in missing])
    for tag in missing:
        if tokenizer.convert_tokens_to_ids(tag) == tokenizer.unk_token_id:
            raise InputError(f"tokenizer.path: {settings.path} has no entry {tag}, and none can be added")
    if not data.is_text and not ends_text(tokenizer, "text_target"):
        given = f"{settings.path} does not end a text with {tokenizer.eos_token}"
        raise InputError(f"tokenizer.path: {given}, from which a model learns where its texts end")
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    with atomic_folder(folder) as temporary:
        tokenizer.save_pretrained(temporary)
    return tokenizer


def given_tokenizer(path: str | Path, kind: str, data: DataSettings | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer at `tokenizer.path` of a recipe, which adds the codes of the languages of `data` if it adds any.

    Raises `InputError` for one that cannot be loaded, and see `set_languages`.
    """
    if kind == "pretokenized":
        try:
            return pretokenized_tokenizer(path)
        except Exception as error:
            raise InputError(f"tokenizer.path: {path} cannot be loaded: {error}") from error
    check_repository(str(path), f"tokenizer.path: {path} cannot be loaded")
    tokenizer = load_tokenizer(model_folder(path), f"tokenizer.path: {path}", trust_remote_code=False)
    if data is not None and adds_codes(tokenizer):
        set_languages(tokenizer, data, f"tokenizer.path: {path}")
    return tokenizer


def mix(encoded: EncodedCorpus, sizes: Sequence[int], data: DataSettings, seed: int) -> EncodedCorpus:
    """An epoch of concatenated corpora of these sizes, sampled by their weights or by temperature."""
    if len(sizes) == 1 or (data.temperature == 1 and not data.weights):
        return encoded
    shares = mixing_probabilities(sizes, data.weights or None, data.temperature)
    log_shares("mixing", [spec.title for spec in data.train], shares)
    for spec, size, share in zip(data.train, sizes, shares, strict=True):
        if (used := round(share * sum(sizes))) < size:
            logger.warning(
                f"{spec.title}: only {used} of {size} training examples are used, the same in every epoch, because of "
                "weight or temperature; with data.stream: true, all are read in turn"
            )
    return encoded.select(mixed_indices(sizes, shares, seed))


def log_shares(what: str, names: Sequence[str], shares: Sequence[float]) -> None:
    logger.info("%s %s", what, ", ".join(f"{name} {share:.1%}" for name, share in zip(names, shares, strict=True)))
