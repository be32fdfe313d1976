"""From the corpora of a recipe to token ids, in memory or as a stream."""

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

from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import atomic_folder, write_json
from residual_hf.base.names import check_repository, model_folder
from residual_hf.checkpoint_checks import load_tokenizer
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.tokenization_residual import ResidualTokenizer
from residual_hf.model.translation_inputs import separate_target_vocabulary

from .cleaning import clean_corpus, pair_filter
from .corpus import ParallelCorpus, mixed_indices, mixing_probabilities, numbered, read_parallel
from .data_settings import CleaningSettings, DataSettings, TokenizerSettings
from .encoding import EncodedCorpus, encode, encode_corpus
from .language_names import adds_codes, set_languages
from .marked_text import marked, marking_tokens, training_edits, with_capitals
from .multilingual import concatenate, directions, language_tag, tag_corpus, training_pairs
from .pair_reader import PairReader, locate_pair
from .sample_checks import (
    overlaps,
    warn_about_faults,
    warn_about_rare_placeholders,
    warn_about_unknown_tokens,
)
from .streaming import StreamedBatches
from .subword_regularization import resegmenters
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


@dataclass(frozen=True)
class Preparation:
    """The texts and settings that the data of a run is prepared from, and what it is prepared for.

    `texts`: the result of `read_corpora`. `data`, `tokenizer`: sections of the recipe. `config`: of the model.
    `max_tokens`: budget of a training batch; None if it is not known yet. `seed`: of mixing and of random
    segmentation. `context_window`: of the blocks of `valid` and `test` of a language model, see `pack`.
    """

    texts: Corpora
    data: DataSettings
    tokenizer: TokenizerSettings
    folder: Path
    config: ResidualConfig
    max_tokens: int | None
    seed: int
    context_window: int = 0


def prepare(given: Preparation) -> PreparedData:
    """Clean and tokenize the sentence pairs of a run; writes `tokenizer/`, `cache/` and `cleaning.json`."""
    texts, data, folder, seed = given.texts, given.data, given.folder, given.seed
    processes, cache, positions = PartialState(), folder / "cache", given.config.max_position_embeddings
    train = texts.get("train", [])
    if data.cleaning is not None and not data.stream:
        train = clean(train, data.cleaning, folder / "cleaning.json" if processes.is_main_process else None)
    train = [with_capitals(corpus, data, seed) for corpus in train]
    held_out = {name: corpora for name, corpora in texts.items() if name != "train"}
    references = {
        name: [direction for corpus in corpora for direction in directions(corpus, data.bidirectional)]
        for name, corpora in held_out.items()
    }
    max_length = min(data.max_length or positions, positions, given.max_tokens or positions)
    longest = np.array([max_length])
    with processes.main_process_first():
        languages = [language_tag(language) for language in data.target_languages] if data.language_tags else []
        tags = languages + sorted({spec.tag for spec in data.train if spec.tag is not None}) + marking_tokens(data)
        sample = first_pairs(data, seed) if data.stream else train
        if processes.is_main_process and not (folder / "tokenizer").exists():  # at the first start of a run
            sample = list(sample)
            checked = sample
            if data.stream:  # whose files `check_stream` reads
                checked = [corpus for spec, corpus in zip(data.train, sample, strict=True) if not spec.files]
            for warning in overlaps(checked, held_out):
                logger.warning(warning)
            before_cleaning = texts.get("train") or sample
            warn_about_faults({"train": before_cleaning, **held_out}, expected_in(data, given.tokenizer))
        tokenizer = get_tokenizer(given, sample, tags)
        encoded = {name: encode_references(given, own, tokenizer, name) for name, own in references.items()}
        if not data.stream:
            options: dict[str, Any] = {"cache_dir": cache, "seed": seed, "max_length": positions}
            encoded["train"] = encode_training(train, data, tokenizer, max_length, **options)
            longest = encoded["train"].longest
    if processes.is_main_process:
        warn_about_unknown_tokens(encoded, tokenizer)
        if data.placeholders and "train" in encoded:
            warn_about_rare_placeholders(encoded["train"], tokenizer)
    return PreparedData(tokenizer, encoded, joined_subwords(references, tokenizer), longest)


def expected_in(data: DataSettings, tokenizer: TokenizerSettings) -> set[str]:
    """The faults that `faults_of` finds in text that is as its recipe says."""
    expected = {
        "moses": tokenizer.kind == "pretokenized" or data.pretokenized is not None,
        "subwords": tokenizer.path is not None,  # a tokenizer of segmented text, it may be
        "copies": data.cleaning is not None and data.cleaning.identical,
    }
    return {name for name, is_expected in expected.items() if is_expected}


def joined_subwords(texts: Corpora, tokenizer: PreTrainedTokenizerBase) -> Corpora:
    """The corpora; with subwords joined to words, like translations, if the tokenizer reads segmented text."""

    def joined(corpus: ParallelCorpus) -> ParallelCorpus:
        sides = [[join_subwords(text) for text in side] for side in (corpus.sources, corpus.targets)]
        return replace(corpus, sources=sides[0], targets=sides[1])

    if not reads_segmented_text(tokenizer):
        return texts
    return {name: [joined(corpus) for corpus in corpora] for name, corpora in texts.items()}


def encode_references(
    given: Preparation, corpora: Sequence[ParallelCorpus], tokenizer: PreTrainedTokenizerBase, name: str
) -> EncodedCorpus:
    """The corpora of `valid` or `test` as one. Raises `InputError` for a text that is too long for the model."""
    data, positions = given.data, given.config.max_position_embeddings
    edited = [marked(corpus, placeholders=data.placeholders) for corpus in corpora]
    tagged = [tag_corpus(corpus, data.language_tags) for corpus in edited]
    encoded = encode_corpus(concatenate(tagged, name), tokenizer, name=name, cache_dir=given.folder / "cache")
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
    ends = np.cumsum([len(corpus) for corpus in pairs])
    sizes = [int(part.sum()) for part in np.split(whole.longest <= longest, ends[:-1])]
    if not all(sizes) if data.is_mixed else not any(sizes):
        where = pairs[sizes.index(0)].name if data.is_mixed else "the training text"
        raise InputError(
            f"data.max_length, training.max_tokens: no pair of {where} has at most {longest} tokens on both sides"
        )
    if dropped := len(whole) - sum(sizes):
        level = logging.WARNING if dropped > sum(sizes) else logging.INFO
        logger.log(level, "dropped %d of %d training pairs, longer than %d tokens", dropped, len(whole), longest)
    return mix(whole.drop_long(longest), sizes, data, seed)


def pair_encoder(
    data: DataSettings, tokenizer: PreTrainedTokenizerBase, *, positions: int, max_tokens: int, seed: int
) -> Callable[[Iterable[ParallelCorpus]], EncodedCorpus]:
    """A function that encodes the pairs of a stream, with at most `positions` tokens a side."""
    resegment = resegmenters(tokenizer, data.subword_regularization)
    return partial(encode, tokenizer=tokenizer, resegment=resegment, seed=seed, max_length=positions)


def open_stream(
    data: DataSettings,
    tokenizer: Any,
    max_tokens: int,
    *,
    positions: int,
    seed: int,
    encoder: Callable[..., Callable[[Iterable[ParallelCorpus]], EncodedCorpus]] = pair_encoder,
    **options: Any,
) -> StreamedBatches:
    """The training batches of a stream; `encoder` is that of the task, `options` as in `StreamedBatches`."""
    tokenizer = copy.deepcopy(tokenizer)  # a thread encodes; tokenizers keep truncation and padding as state
    encode_text = encoder(data, tokenizer, positions=positions, max_tokens=max_tokens, seed=seed)
    stream = StreamedBatches(data, encode_text, max_tokens, positions=positions, seed=seed, **options)
    log_shares("streaming", [spec.title for spec in data.train], stream.probabilities)
    return stream


def clean(
    corpora: Sequence[ParallelCorpus], settings: CleaningSettings, report_file: Path | None
) -> list[ParallelCorpus]:
    """Clean each training corpus and write the report to `report_file`, if given."""
    cleaned, reports = [], {}
    for name, corpus in zip(numbered([corpus.name for corpus in corpora]), corpora, strict=True):
        kept, report = clean_corpus(corpus, pair_filter(settings))
        cleaned.append(kept)
        reports[name] = report
        logger.info("%s: cleaning: %s", name, report)
        report.warn_if_most_is_gone(name)
        if not report.kept:
            raise InputError(f"data.cleaning: no pair of {name} is left: {report}")
    if report_file is not None:
        content = {name: vars(report) for name, report in reports.items()}
        write_json(report_file, content if len(content) > 1 else next(iter(content.values())))
    return cleaned


def first_pairs(data: DataSettings, seed: int) -> Iterator[ParallelCorpus]:
    """The first pairs of every training corpus, cleaned and with those in capitals, for the tokenizer of a stream."""
    for spec in data.train:
        corpus = ParallelCorpus.empty(spec).with_pairs(PairReader(spec).take(SAMPLE // len(data.train)))
        if data.cleaning is not None:
            corpus, report = clean_corpus(corpus, pair_filter(data.cleaning))
            report.warn_if_most_is_gone(f"the first pairs of {corpus.name}")
        yield with_capitals(corpus, data, seed)


def get_tokenizer(
    given: Preparation, corpora: Iterable[ParallelCorpus], tags: Sequence[str] = (), *, ends: bool = True
) -> PreTrainedTokenizerBase:
    """The tokenizer of a run, if there is one; else one as its settings say, trained on `corpora`, saved there.

    It has an entry for each of `tags`, and `ends` every target. Otherwise it is that of a language model, whose texts
    begin with the end of the one before, which `bos_token` says to other programs.
    """
    settings, folder = given.tokenizer, given.folder / "tokenizer"
    if folder.exists():
        return AutoTokenizer.from_pretrained(folder)
    train = partial(train_tokenizer, settings=settings, language_tags=tags)
    if settings.path is not None:
        tokenizer = given_tokenizer(settings.path, settings.kind, given.data)
    elif settings.joint:
        tokenizer = train([line for corpus in corpora for line in corpus.sentences])
    else:
        text = concatenate(list(corpora), "train")
        tokenizer = ResidualTokenizer.from_pair(train(text.sources), train(text.targets))
    known = tokenizer.get_vocab()
    missing = [tag for tag in tags if tag not in known]
    tokenizer.add_tokens([AddedToken(tag, normalized=True) for tag in missing])
    for tag in missing:
        has_none = tokenizer.convert_tokens_to_ids(tag) == tokenizer.unk_token_id
        if has_none or separate_target_vocabulary(tokenizer) is not None:  # or the target has none, or another token
            raise InputError(f"tokenizer.path: {settings.path} has no entry {tag}, and none can be added")
    if ends and not ends_text(tokenizer, "text_target"):
        fault = f"{settings.path} does not end a text with {tokenizer.eos_token}"
        raise InputError(f"tokenizer.path: {fault}, from which a model learns where its texts end")
    if not ends:
        tokenizer.bos_token = tokenizer.eos_token
    tokenizer.model_max_length = min(tokenizer.model_max_length, given.config.max_position_embeddings)
    with atomic_folder(folder) as temporary:
        tokenizer.save_pretrained(temporary)
    return tokenizer


def given_tokenizer(path: str | Path, kind: str, data: DataSettings | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer at `tokenizer.path` of a recipe, which adds the codes of the languages of `data` if it adds any.

    Raises `InputError` for one that cannot be loaded, and see `set_languages`.
    """
    if kind == "pretokenized":
        with input_errors(f"tokenizer.path: {path} cannot be loaded: "):
            return pretokenized_tokenizer(path)
    check_repository(str(path), f"tokenizer.path: {path} cannot be loaded")
    tokenizer = load_tokenizer(model_folder(path), f"tokenizer.path: {path}", trust_remote_code=False)
    if data is not None and adds_codes(tokenizer):
        set_languages(tokenizer, data, f"tokenizer.path: {path}")
    return tokenizer


def mix(encoded: EncodedCorpus, sizes: Sequence[int], data: DataSettings, seed: int) -> EncodedCorpus:
    """An epoch of concatenated corpora of these sizes, sampled by their weights or by temperature."""
    if len(sizes) == 1 or not data.is_mixed:
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
