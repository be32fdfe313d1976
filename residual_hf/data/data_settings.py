"""Settings of corpora, cleaning, subword regularization and tokenizers: the `data` and `tokenizer` of a recipe."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputSettings
from residual_hf.base.files import expanded
from residual_hf.model.options import option

from .scripts import is_script
from .text_files import uncompressed_name

SPLITS = ("train", "valid", "test")
SIDES = {"both": ("source", "target"), "source": ("source",), "target": ("target",)}
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, as in fairseq's dictionaries
TMX, PO = ".tmx", (".po", ".pot")
OF_TOOLS = (".sdlxliff", ".mqxliff", ".mxliff", ".txlf")
"""The XLIFF 1.2 of Trados, memoQ, Memsource and Wordfast, with elements of their own."""
XLIFF = (".xlf", ".xliff", *OF_TOOLS)
UNITS = (TMX, *XLIFF, PO[0])
TABLES = (".csv", ".tsv", ".xlsx")
PAIR_FILES = (*(each for each in UNITS if each not in OF_TOOLS), *TABLES, ".jsonl", ".parquet", *OF_TOOLS)
AUDIO_FILES = (".flac", ".wav", ".ogg", ".mp3")
SPEC_AUGMENT = {"lb": (1, 27, 1, 100), "ld": (2, 27, 2, 100)}
"""Policies of SpecAugment: bands and their largest width, stretches and their largest length in frames."""
TOKENIZER_KINDS = ("bpe", "byte_bpe", "unigram", "pretokenized")
COLUMN = "number of a column of a table, from 1, or its name, or a key"


def movable(help: str) -> Any:
    """A field for a file or folder that may be another one in a resumed run, if its content is the same."""
    return option(None, may_change=True, help=help)


@dataclass(frozen=True)
class CorpusSpec(InputSettings):
    """Location and format of a corpus.

    Set `source` and `target`, or one of `file`, `tsv`, `jsonl` and `dataset`. For a language model, set `text`, or
    `jsonl` or `dataset` with `text_column`. For speech recognition, sources are audio files, whose paths start from
    the folder of the manifest, or the `Audio` column of a data set; or set `audio_folder`. All files but PO, Excel,
    parquet and audio may be compressed: gzip, bzip2, xz, Zstandard.
    """

    also_called = {
        "src": "source",
        "tgt": "target",
        "path": "file",
        "files": "file",
        "data_files": "file",
        "json": "jsonl",
        **{name.removeprefix("."): "file" for name in PAIR_FILES if name not in (".tsv", ".jsonl")},
    }

    text: str | Path | None = movable("language models: text file, in which a blank line ends a document")
    text_column: str | None = option(
        None, help="language models: key of the text in `jsonl` or `dataset`, whose line breaks become spaces"
    )
    source: str | Path | None = movable("text file with one sentence per line")
    target: str | Path | None = movable("text file with the translation of each line of `source`")
    file: str | Path | None = movable(
        f"file of pairs in the format that its name ends in: {', '.join(PAIR_FILES)}; see above"
    )
    tsv: str | Path | None = movable(
        "tab-separated file with columns source and target; for more columns set `source_column`"
    )
    jsonl: str | Path | None = movable(
        'one object per line: `{"en": ..., "de": ...}`, or these in `{"translation": ...}`, or with the keys '
        "`source_column` and `target_column`"
    )
    audio_folder: str | Path | None = movable(
        "speech recognition: folder of audio files with their texts, in LibriSpeech's `*.trans.txt`, or in "
        "`x.txt` beside `x.wav`"
    )
    dataset: str | Path | None = option(
        None, help="name on the Hub or local folder of a data set of the `datasets` library; columns as in `jsonl`"
    )
    dataset_config: str | None = option(None, help="configuration of the dataset")
    split: str = option("train", help="split of the dataset")
    source_lang: str | None = option(None, help="source language; default: that of the recipe")
    target_lang: str | None = option(None, help="target language; default: that of the recipe")
    source_column: str | int | None = option(None, minimum=1, help=COLUMN)
    target_column: str | int | None = option(None, minimum=1, help=COLUMN)
    skip_empty: bool = option(False, help="drop pairs with an empty side; by default they are an error")
    limit: int | None = option(None, minimum=1, help="read only the first pairs")
    name: str | None = option(None, may_change=True, help="name in logs, metrics and cards; default: the file names")
    tag: str | None = option(
        None, help="token such as `<BT>` before every source of this training corpus, to mark synthetic text"
    )
    weight: float | None = option(
        None, above=0, help="relative share of the training pairs; set it for all training corpora or for none"
    )
    raw_target: str | Path | None = movable("text file with the references before tokenization, for sacreBLEU")

    def check(self) -> None:
        single = ("tsv", "jsonl", "dataset", "text", "file", "audio_folder")
        given = [key for key in ("source", "target", *single) if getattr(self, key) is not None]
        if given not in (["source", "target"], *([key] for key in single)):
            name, state = (", ".join(given), "given") if given else ("source", "missing")
            raise self.error(f"{name}: {state}, must be source and target, or one of {', '.join(single)}")
        self.require(self.file is None or self.file_format in PAIR_FILES, "file", f"*{', *'.join(PAIR_FILES)}")
        in_rows = self.is_jsonl or self.dataset is not None or self.file_format == ".parquet"
        if self.is_text:
            self.require(in_rows or self.text_column is None, "text_column", "null without jsonl or dataset")
            for name in ("source_column", "target_column", "tag", "raw_target"):
                self.require(getattr(self, name) is None, name, "null for the text of a language model")
            has_documents = "false for the text of a language model, which has documents"
            self.require(not self.skip_empty, "skip_empty", has_documents)
        self.require(self.dataset_config is None or self.dataset, "dataset_config", "null without a dataset")
        self.require(self.split == "train" or self.dataset, "split", "train without a dataset")
        self.require(self.raw_target is None or not self.skip_empty, "skip_empty", "false with raw_target")
        usable = self.tag is None or (re.fullmatch(r"<(?!2|0x)[^\s<>]+>", self.tag) and self.tag not in SPECIAL_TOKENS)
        self.require(usable, "tag", "such as <BT>, and no special token, language tag or byte")
        columns = ("source_column", "target_column")
        for name, other in (columns, columns[::-1]):
            value = getattr(self, name)
            self.require(value is not None or getattr(self, other) is None, name, f"given with {other}")
            self.require(value is None or self.source is None, name, "null for two text files")
            self.require(value is None or self.file_format not in UNITS, name, f"null for a {self.file_format} file")
            kind: Any = str if self.tsv is None else int
            allowed = "a key or column name" if self.tsv is None else "the number of a TSV column"
            if self.file_format in TABLES:
                kind, allowed = (int, str), "the number or the name of a column"
            self.require(value is None or isinstance(value, kind), name, allowed)
        same = self.source_column is not None and self.source_column == self.target_column
        self.require(not same, "target_column", "another than the source's")
        read_by_language = in_rows and self.source_column is None and not self.is_text
        same = self.source_lang is not None and self.source_lang == self.target_lang
        self.require(not (read_by_language and same), "target_lang", "another language than source_lang")

    @property
    def is_text(self) -> bool:
        """Whether this is the text of a language model, whose lines are read as pairs of equal sides."""
        return self.text is not None or self.text_column is not None

    def check_keys(self) -> None:
        """Raise `InputError` unless the columns or languages of the two sides are known."""
        found = self.source or self.source_column or self.tsv or self.audio_folder or self.is_text
        if not found:
            for name in ("source_lang", "target_lang"):
                self.require(getattr(self, name), name, "given to find the texts, or set source_column")

    @property
    def files(self) -> tuple[Path, ...]:
        """The files to read; empty for a dataset."""
        named = (self.source, self.target, self.file, self.tsv, self.jsonl, self.text)
        return tuple(expanded(path) for path in named if path is not None)

    @property
    def file_format(self) -> str:
        """The end of the name of `file`, without that of a compression, such as `.tmx`; empty without `file`."""
        return "" if self.file is None else Path(uncompressed_name(str(self.file).lower())).suffix

    @property
    def is_jsonl(self) -> bool:
        return self.jsonl is not None or self.file_format == ".jsonl"

    @property
    def raw_references(self) -> Path | None:
        """The file `raw_target`."""
        return None if self.raw_target is None else expanded(self.raw_target)

    @property
    def title(self) -> str:
        """`name`, or what the corpus is read from."""
        if self.name is not None:
            return self.name
        if self.audio_folder is not None:
            return Path(self.audio_folder).name
        return f"{self.dataset}[{self.split}]" if self.dataset is not None else "|".join(f.name for f in self.files)


MOVABLE = tuple(f.name for f in fields(CorpusSpec) if f.metadata["may_change"])
"""Fields of a corpus that may differ if the text is the same."""


@dataclass(frozen=True)
class CleaningSettings(InputSettings):
    """Which training pairs to drop. Empty sides are always dropped.

    Lengths are in words, see `residual_hf.data.scripts.words`.
    """

    max_words: int | None = option(None, minimum=1, help="maximum words of a side")
    min_words: int = option(1, minimum=1, help="minimum words of a side")
    max_ratio: float | None = option(None, minimum=1, help="maximum ratio of the longer to the shorter side")
    max_characters_per_word: int | None = option(None, minimum=1, help="maximum length of a word")
    identical: bool = option(False, help="drop pairs whose sides are the same text")
    duplicates: str | None = option(
        None,
        choices=("pair", "source", "target"),
        help="keep only the first of equal pairs, sources or targets of a corpus; in a stream, of its block",
    )
    source_script: str | None = option(
        None, help="Unicode script of the source: `Latin`, `Cyrillic`, `Han+Hiragana+Katakana`, ..."
    )
    target_script: str | None = option(None, help="Unicode script of the target")
    script_share: float = option(0.5, minimum=0, maximum=1, help="minimum share of letters in that script")

    def check(self) -> None:
        self.require(self.max_words is None or self.max_words >= self.min_words, "max_words", ">= min_words")
        for name in ("source_script", "target_script"):
            known = is_script(getattr(self, name) or "Latin")
            self.require(known, name, "Unicode scripts, such as Latin or Han+Hiragana")


@dataclass(frozen=True)
class SubwordRegularizationSettings(InputSettings):
    """Random segmentation of the training text, new in every epoch. Set one of `bpe_dropout` and `unigram_alpha`."""

    bpe_dropout: float | None = option(
        None, minimum=0, maximum=1, help="probability of skipping a BPE merge; 0.1 in Provilkov et al. 2020"
    )
    unigram_alpha: float | None = option(
        None, minimum=0, help="smoothing of unigram sampling, usually 0.1 to 0.5; lower is more random (Kudo 2018)"
    )
    sides: str = option("both", choices=SIDES, help="sides to segment at random")

    def check(self) -> None:
        bpe, unigram = self.bpe_dropout is not None, self.unigram_alpha is not None
        self.require(bpe or unigram, "bpe_dropout", "given unless unigram_alpha is")
        self.require(not (bpe and unigram), "unigram_alpha", "null with bpe_dropout")

    @property
    def tokenizer_kinds(self) -> tuple[str, ...]:
        """The kinds of tokenizers that support this regularization."""
        return ("bpe", "byte_bpe") if self.unigram_alpha is None else ("unigram",)


@dataclass(frozen=True)
class TokenizerSettings(InputSettings):
    """The tokenizer of a run: trained on the training corpora, or read from `path`."""

    also_called = {"type": "kind", "model_type": "kind", "num_merges": "vocab_size", "size": "vocab_size"}

    kind: str = option(
        "bpe",
        choices=TOKENIZER_KINDS,
        help="`pretokenized`: tokens are separated by spaces and have the ids of the fairseq dictionary `path`",
    )
    vocab_size: int = option(
        10_000,
        above=260,
        maximum=1_000_000,
        help="vocabulary size, including 4 special tokens, 256 bytes and language tags",
    )
    joint: bool = option(True, help="one vocabulary for both languages")
    path: str | Path | None = option(
        None,
        help="folder of an existing tokenizer to use instead of training one; other fields are then not used. With "
        "`kind: pretokenized`, a `dict.txt`",
    )
    min_frequency: int | None = option(
        None, minimum=1, help="minimum occurrences of a BPE merge in the text; default: 2"
    )
    max_token_length: int | None = option(
        None,
        minimum=1,
        help="maximum characters of an entry (`byte_bpe`: bytes); default: 16 for `unigram`, else unlimited",
    )
    character_coverage: float = option(
        1.0, above=0, maximum=1, help="share of the characters of the text that get an entry; the rarest become bytes"
    )

    def check(self) -> None:
        self.require(self.path or self.kind != "pretokenized", "path", "a fairseq dictionary for kind 'pretokenized'")
        self.require(self.min_frequency is None or self.kind != "unigram", "min_frequency", "null for kind 'unigram'")
        longest = self.max_token_length or 1
        self.require(longest <= 512 or self.kind != "unigram", "max_token_length", "<= 512 for kind 'unigram'")
        covered = self.character_coverage == 1 or self.kind != "byte_bpe"
        self.require(covered, "character_coverage", "1 for kind 'byte_bpe', which covers all characters")


@dataclass(frozen=True)
class DataSettings(InputSettings):
    """The corpora of a recipe and how training reads them."""

    train: tuple[CorpusSpec, ...] = option(help="a training corpus or a list of them, see below")
    valid: tuple[CorpusSpec, ...] = option(help="validation corpora, which select the best checkpoint")
    test: tuple[CorpusSpec, ...] | None = option(None, may_change=True, help="test corpora, scored once at the end")
    max_length: int | None = option(
        None,
        minimum=1,
        help="maximum tokens per side of a training pair, or frames of a recording; longer ones are dropped; default: "
        "that of the model",
    )
    cleaning: CleaningSettings | None = option(None, help="which training pairs to drop, see below")
    temperature: float = option(
        1.0, above=0, help="sample training corpora in proportion to `size ** (1 / temperature)`"
    )
    bidirectional: bool = option(False, help="also train and evaluate from target to source")
    language_tags: str | None = option(
        None,
        choices=("source", "target"),
        help="add a tag of the target language, such as `<2de>`, before this side; required for several target "
        "languages",
    )
    pretokenized: str | None = option(
        None,
        choices=("moses",),
        help="`moses`: the text is tokenized by Moses; report tokenized BLEU, and detokenize for sacreBLEU",
    )
    placeholders: bool = option(
        False,
        help="replace placeholders, tags, addresses and numbers that both sides have by tokens, so that they come "
        "through a translation unchanged",
    )
    upper_case: float = option(
        0.0, minimum=0, maximum=1, help="share of the training pairs to add as copies in capitals, such as 0.05"
    )
    title_case: float = option(
        0.0,
        minimum=0,
        maximum=1,
        help="share of the training pairs of which there is a copy with a capital at the beginning of each word",
    )
    glossary: str | Path | None = option(
        None,
        help="file of lines `term<TAB>translation`, or CSV, with which the model learns to translate terms as its "
        "source says",
    )
    block_size: int | None = option(
        None,
        minimum=2,
        help="language models: tokens of an example, of which the first is only context; default: what the model "
        "reads, in `evaluate --text` as in its run",
    )
    sample_break_mode: str = option(
        "none",
        choices=("none", "complete", "complete_doc", "eos"),
        help="language models: what an example contains, as in fairseq. `none`: as many tokens as fit; `complete`: "
        "complete lines; `complete_doc`: complete lines of one document; `eos`: one line",
    )
    stream: bool = option(
        False,
        help="read training corpora that do not fit into memory from disk; requires `training.max_updates`. Shuffle a "
        "corpus that is sorted by topic before (`init` does); the tokenizer reads the first 200,000 pairs",
    )
    shuffle_buffer: int = option(100_000, minimum=1, help="number of pairs of a stream to read and shuffle together")
    subword_regularization: SubwordRegularizationSettings | None = option(
        None, help="random segmentation of the training text, see below"
    )

    spec_augment: str | None = option(
        None,
        choices=SPEC_AUGMENT,
        help="speech recognition: mask random frequencies and times of training recordings by a policy of "
        "SpecAugment, as in fairseq: `lb` one band and one stretch, `ld` two of each",
    )
    features: str | Path | None = movable(
        "speech recognition: folder of the features that were computed, which runs can share; default: `cache` "
        "in the folder of the run"
    )

    def check(self) -> None:
        for name in SPLITS:
            self.require(getattr(self, name) != (), name, "a corpus or a list of corpora")
        if self.weights:
            if None in (weights := [spec.weight for spec in self.train]):
                first = weights.index(None)
                raise self.error(f"train[{first}].weight: missing, must be given for all training corpora or none")
            self.require(self.temperature == 1, "temperature", "1 with weights")
        specs = {f"{n}[{i}]": spec for n in SPLITS for i, spec in enumerate(getattr(self, n) or ())}
        for name, spec in specs.items():
            if spec.is_text != self.train[0].is_text:
                raise self.error(f"{name}: text and sentence pairs given, must be one or the other")
        if self.rewrites_text:
            allowed = "null with placeholders, glossary, upper_case or title_case"
            self.require(self.pretokenized is None, "pretokenized", allowed)
        self.require(not (self.glossary and self.bidirectional), "bidirectional", "false with glossary")
        for name, spec in specs.items():
            for field in ("tag", "weight"):
                if (value := getattr(spec, field)) is not None and not name.startswith("train"):
                    raise self.error(f"{name}.{field}: {value!r} given, must be null outside of train")

    @property
    def is_mixed(self) -> bool:
        """Whether corpora have other shares of the training pairs than by their sizes."""
        return self.temperature != 1 or bool(self.weights)

    @property
    def weights(self) -> list[float]:
        """The weights of the training corpora: of all of them or of none."""
        return [spec.weight for spec in self.train if spec.weight is not None]

    @property
    def rewrites_text(self) -> bool:
        """Whether the model reads text, or copies of it, that is not as in the corpora."""
        return bool(self.placeholders or self.glossary is not None or self.upper_case or self.title_case)

    @property
    def corpora(self) -> tuple[CorpusSpec, ...]:
        """The training, validation and test corpora."""
        return (*self.train, *self.valid, *(self.test or ()))

    @property
    def target_languages(self) -> list[str]:
        """The languages that the model translates into, in alphabetical order."""
        languages = [spec.target_lang for spec in self.corpora]
        languages += [spec.source_lang for spec in self.corpora if self.bidirectional]
        return sorted({language for language in languages if language})
