# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Settings of corpora, cleaning, subword regularization and tokenizers, as recipes give them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import regex

from residual_hf.errors import InputError

DUPLICATES = ("pair", "source", "target")
SIDES = {"both": ("source", "target"), "source": ("source",), "target": ("target",)}
TAG_SIDES = ("source", "target")
TEXTS = ("raw", "moses")
TOKENIZER_KINDS = ("bpe", "byte_bpe", "unigram", "pretokenized")


@dataclass(frozen=True)
class CorpusSpec:
    """Where a parallel corpus lies; checked when it is made (`InputError` names the field). Give exactly one of:

    - `source` and `target`: two text files of one sentence per line, plain or gzip;
    - `tsv`: one tab-separated file, plain or gzip. Its two columns are source and target; of more than two,
      `source_column` and `target_column` (counted from 1) choose;
    - `jsonl`: one JSON object per line, plain or gzip: `{"translation": {"en": ..., "de": ...}}`, read with
      `source_lang` and `target_lang`, or flat objects, read with the keys `source_column` and `target_column`;
    - `dataset`: a name on the Hub or a local folder for the `datasets` library, with `dataset_config` and `split`;
      its columns are found as in `jsonl`.

    `skip_empty` drops pairs with an empty (or white) side, an error otherwise; `limit` keeps the first pairs. `weight`
    is the share of this corpus among several to train on; `raw_target` names a text file with the targets as they were
    before they were tokenised, one for each, to score against.
    """

    source: str | Path | None = None
    target: str | Path | None = None
    tsv: str | Path | None = None
    jsonl: str | Path | None = None
    dataset: str | Path | None = None
    dataset_config: str | None = None
    split: str = "train"
    source_lang: str | None = None
    target_lang: str | None = None
    source_column: str | int | None = None
    target_column: str | int | None = None
    skip_empty: bool = False
    limit: int | None = None
    name: str | None = None
    weight: float | None = None
    raw_target: str | Path | None = None

    def __post_init__(self) -> None:
        given = [key for key in ("source", "target", "tsv", "jsonl", "dataset") if getattr(self, key) is not None]
        if given not in (["source", "target"], ["tsv"], ["jsonl"], ["dataset"]):
            raise InputError(
                f"corpus: {' and '.join(given) or 'nothing'} given; allowed is one of: source and target; tsv; "
                "jsonl; dataset"
            )
        for key in given:
            if not isinstance(getattr(self, key), (str, Path)) or not str(getattr(self, key)):
                raise InputError(f"corpus.{key}: {getattr(self, key)!r}; allowed is a path")
        for key in ("split", "dataset_config", "source_lang", "target_lang", "name"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise InputError(f"corpus.{key}: {value!r}; allowed is a text")
        if self.split is None:
            raise InputError("corpus.split: null; allowed is the name of a split, such as train")
        if self.dataset_config is not None and self.dataset is None:
            raise InputError(f"corpus.dataset_config: {self.dataset_config!r} given, which only a dataset has")
        if not isinstance(self.skip_empty, bool):
            raise InputError(f"corpus.skip_empty: {self.skip_empty!r}; allowed are true and false")
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise InputError(f"corpus.limit: {self.limit!r}; allowed is a whole number from 1 on")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise InputError(f"corpus.weight: {self.weight!r}; allowed is a number above 0")
        if self.raw_target is not None and self.skip_empty:
            raise InputError(f"corpus.raw_target: {self.raw_target} given beside skip_empty, which breaks its order")
        self._check_columns()

    def _check_columns(self) -> None:
        columns = {"source_column": self.source_column, "target_column": self.target_column}
        given = [key for key, value in columns.items() if value is not None]
        if len(given) == 1:
            raise InputError(f"corpus.{given[0]}: {columns[given[0]]!r} given alone; give both columns or none")
        if given and self.source is not None:
            raise InputError(f"corpus.source_column: {self.source_column!r} given, but two text files have no columns")
        if given and self.source_column == self.target_column:
            raise InputError(f"corpus.target_column: {self.target_column!r} is the source column too")
        for key in given:
            value = columns[key]
            if self.tsv is not None and (type(value) is not int or value < 1):
                raise InputError(f"corpus.{key}: {value!r}; allowed is the number of a TSV column, from 1 on")
            if self.tsv is None and (not isinstance(value, str) or not value):
                raise InputError(f"corpus.{key}: {value!r}; allowed is the name of a key or column")
        by_language = not given and (self.jsonl is not None or self.dataset is not None)
        if by_language and self.source_lang is not None and self.source_lang == self.target_lang:
            raise InputError(f"corpus.target_lang: {self.target_lang!r} is the source language too")

    def check_keys(self) -> None:
        """Raise `InputError` unless the sides of a record can be told from each other."""
        if self.source_column is None and self.tsv is None:
            for key in ("source_lang", "target_lang"):
                if getattr(self, key) is None:
                    raise InputError(
                        f"corpus.{key}: missing; the key `translation` is read by language, as "
                        '{"translation": {"en": ..., "de": ...}}; or give source_column and target_column'
                    )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that reading will open; empty for a data set."""
        return tuple(Path(p).expanduser() for p in (self.source, self.target, self.tsv, self.jsonl) if p is not None)

    @property
    def title(self) -> str:
        """`name`, or else what the corpus is read from."""
        if self.name is not None:
            return self.name
        return f"{self.dataset}[{self.split}]" if self.dataset is not None else "|".join(f.name for f in self.files)


@dataclass(frozen=True)
class CleaningSettings:
    """Which pairs of the training corpus are left out; lengths are in words between spaces, of either side.

    Args:
        max_words: longest side; None is no limit.
        min_words: shortest side.
        max_ratio: longest side over shortest side; None is no limit.
        max_characters_per_word: longest word, which catches text without spaces where there should be some.
        identical: leave out pairs whose sides are the same text.
        duplicates: keep the first of equal `"pair"`s, `"source"`s or `"target"`s; in a stream, those of a block.
        source_script, target_script: Unicode's names of scripts, as `Latin`, `Cyrillic`, `Han`, several joined by `+`;
            a side in which fewer than `script_share` of the letters are of them is left out.
        script_share: between 0 and 1.

    Empty (or white) sides are always left out.
    """

    max_words: int | None = None
    min_words: int = 1
    max_ratio: float | None = None
    max_characters_per_word: int | None = None
    identical: bool = False
    duplicates: str | None = None
    source_script: str | None = None
    target_script: str | None = None
    script_share: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (("max_words", 1), ("min_words", 1), ("max_ratio", 1), ("max_characters_per_word", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"cleaning.{name}: {value} given, must be at least {least}")
        if self.max_words is not None and self.max_words < self.min_words:
            raise InputError(
                f"cleaning.max_words: {self.max_words} given, must be at least min_words {self.min_words}"
            )
        if self.duplicates is not None and self.duplicates not in DUPLICATES:
            raise InputError(f"cleaning.duplicates: {self.duplicates!r} given, must be one of {list(DUPLICATES)}")
        if not 0 <= self.script_share <= 1:
            raise InputError(f"cleaning.script_share: {self.script_share} given, must be between 0 and 1")
        for name in ("source_script", "target_script"):
            try:
                letters_of(getattr(self, name) or "Latin")
            except regex.error:
                raise InputError(
                    f"cleaning.{name}: {getattr(self, name)!r} given, must be Unicode's name of a script, such as "
                    "Latin, Cyrillic, Greek, Arabic, Han or Hiragana+Katakana+Han"
                ) from None


@dataclass(frozen=True)
class SubwordRegularizationSettings:
    """How the training corpus is segmented anew in every epoch. Give exactly one of:

    - `bpe_dropout`: the probability with which a merge is left out, for tokenizers of BPE; 0.1 in the paper
      (Provilkov et al. 2020);
    - `unigram_alpha`: how strongly good segmentations are preferred, for unigram tokenizers; 0.1 to 0.5 is usual
      (Kudo 2018, drawing from all segmentations).

    `sides`: `"both"`, `"source"` or `"target"`.
    """

    bpe_dropout: float | None = None
    unigram_alpha: float | None = None
    sides: str = "both"

    def __post_init__(self) -> None:
        if (self.bpe_dropout is None) == (self.unigram_alpha is None):
            raise InputError("sampling: give either bpe_dropout or unigram_alpha")
        if self.bpe_dropout is not None and not 0 <= self.bpe_dropout <= 1:
            raise InputError(f"sampling.bpe_dropout: {self.bpe_dropout} given, must be at least 0 and at most 1")
        if self.unigram_alpha is not None and not 0 <= self.unigram_alpha < math.inf:
            raise InputError(f"sampling.unigram_alpha: {self.unigram_alpha} given, must be at least 0")
        if self.sides not in SIDES:
            raise InputError(f"sampling.sides: {self.sides!r} given, must be one of {list(SIDES)}")

    def check_kind(self, kind: str) -> None:
        """Refuse a kind of tokenizer, as recipes name them, that cannot be sampled from in this way."""
        if kind == "pretokenized":
            raise InputError("sampling: the text is segmented already (tokenizer.kind 'pretokenized'); leave it out")
        field, allowed = "bpe_dropout", ("bpe", "byte_bpe")
        if self.bpe_dropout is None:
            field, allowed = "unigram_alpha", ("unigram",)
        if kind not in allowed:
            raise InputError(f"sampling.{field}: the tokenizer is of kind {kind!r}, allowed is {' or '.join(allowed)}")


@dataclass
class TokenizerSettings:
    """Which subwords: trained on the training corpus, or read from `path` (a tokenizer folder).

    `pretokenized` takes the text as it is, one token between spaces, with the ids of fairseq's dictionary `path`.
    """

    kind: str = "bpe"
    vocab_size: int = 10000
    joint: bool = True
    path: str | None = None
    min_frequency: int | None = None
    character_coverage: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in TOKENIZER_KINDS:
            raise InputError(f"tokenizer.kind: {self.kind!r} given, must be one of {list(TOKENIZER_KINDS)}")
        if self.vocab_size < 5:
            raise InputError(f"tokenizer.vocab_size: {self.vocab_size} given, must be at least 5")
        if self.kind == "pretokenized" and self.path is None:
            raise InputError("tokenizer.path: must name fairseq's dictionary for kind 'pretokenized'")


@dataclass
class DataSettings:
    """Corpora of a recipe, one or a list of them; training leaves out what `cleaning` says and sides of more than
    `max_length` tokens.

    Several training corpora are mixed in the shares of their `weight`s, or by size to the power 1/`temperature`.
    `bidirectional` adds the reverse of every corpus; `language_tags` put `<2de>` before the `"source"` or the
    `"target"`. `pretokenized: moses` changes how the text is scored (see `Scorer`). `stream` reads training corpora
    in blocks of `shuffle_buffer` pairs, for those larger than memory. `subword_regularization` draws new
    segmentations of the training text in every epoch.
    """

    train: list[CorpusSpec]
    valid: list[CorpusSpec]
    test: list[CorpusSpec] | None = None
    max_length: int | None = None
    cleaning: CleaningSettings | None = None
    temperature: float = 1.0
    bidirectional: bool = False
    language_tags: str | None = None
    pretokenized: str | None = None
    stream: bool = False
    shuffle_buffer: int = 100_000
    subword_regularization: SubwordRegularizationSettings | None = None

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test"):
            if isinstance(getattr(self, name), CorpusSpec):
                setattr(self, name, [getattr(self, name)])
            if getattr(self, name) == []:
                raise InputError(f"data.{name}: an empty list given, must name a corpus")
        for name, allowed in (("language_tags", (None, *TAG_SIDES)), ("pretokenized", (None, "moses"))):
            if getattr(self, name) not in allowed:
                raise InputError(f"data.{name}: {getattr(self, name)!r} given, must be one of {list(allowed)}")
        for name in ("max_length", "temperature", "shuffle_buffer"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"data.{name}: {value} given, must be above 0")
        weights = [spec.weight for spec in self.train]
        if any(weights) and not all(weights):
            raise InputError("data.train: weight given for some corpora only, must be for all or for none")
        if any(weights) and self.temperature != 1:
            raise InputError(f"data.temperature: {self.temperature} given beside weights; choose one of them")


@lru_cache(maxsize=64)
def letters_of(script: str) -> regex.Pattern:
    """A pattern of one letter of the scripts. Raises `regex.error` for a name that Unicode does not have."""
    alternatives = "|".join(rf"\p{{Script={name}}}" for name in script.split("+"))
    return regex.compile(rf"(?=\p{{L}})(?:{alternatives})")
