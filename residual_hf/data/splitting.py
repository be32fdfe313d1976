"""Splitting a corpus into training, validation and test sets that share no sentence."""

import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import IO, Any

import numpy as np
import regex

from residual_hf.base.errors import InputError
from residual_hf.base.files import atomic_file

from .data_settings import SPLITS, CorpusSpec
from .pair_reader import Pair, PairReader

SHUFFLED_TOGETHER = 500_000
"""Pairs, some 100 MB, which are in memory together."""
LONGEST_HELD_OUT = 1000
"""Bytes of a sentence: in usual text fewer than the 512 tokens that models of `residual-hf init` read."""


@dataclass(frozen=True)
class SplitReport:
    """How many pairs are in each split, and how many were left out.

    `empty`: pairs with an empty side; `shared`: pairs that have a sentence of a held-out pair on either side.
    """

    train: int
    valid: int
    test: int
    empty: int
    shared: int

    @property
    def pairs(self) -> int:
        """All pairs without an empty side."""
        return self.train + self.valid + self.test + self.shared

    def __str__(self) -> str:
        text = f"{self.train:,} training, {self.valid:,} validation and {self.test:,} test pairs"
        left_out = {"with an empty side": self.empty, "that share a sentence with the held-out pairs": self.shared}
        return text + "".join(f"; left out: {count:,} {why}" for why, count in left_out.items() if count)


def held_out_sizes(pairs: int) -> tuple[int, int]:
    """Sizes of the validation and test set for a corpus: 1,000 and 2,000 pairs, at most a twentieth each."""
    return max(1, min(1000, pairs // 20)), max(1, min(2000, pairs // 20))


def split_corpus(spec: CorpusSpec, folder: Path, seed: int = 1, *, more: Sequence[CorpusSpec] = ()) -> SplitReport:
    """Write `train`, `valid` and `test` of a corpus to a folder, each as text files such as `train.en` and `train.de`.

    `spec`: with its languages and with `skip_empty`; `more`: others of the same languages, whose pairs are added.

    Sentences are compared without case, punctuation and spaces, on both sides. Held-out pairs are drawn at random from
    those whose sentences occur only once and have at most `LONGEST_HELD_OUT` bytes, as far as there are enough;
    training pairs with a sentence of a held-out pair are left out. Memory: 40 bytes per pair, and some 200 MB.

    Raises `InputError` for files that cannot be read or differ in their lines, and for less than 10 different pairs.
    """
    readers = [PairReader(each) for each in (spec, *more)]
    hashes = (
        (*(hash(sentence_key(text)) for text in pair), max(len(text.encode()) for text in pair) <= LONGEST_HELD_OUT)
        for pair in all_pairs(readers)
    )
    *keys, fits = np.fromiter(hashes, dtype=np.dtype((np.int64, 3))).T
    random = np.random.default_rng(seed)
    held_out = choose_held_out(keys, fits > 0, random)
    split = np.zeros(len(fits), dtype=np.int8)
    for number, rows in enumerate(held_out, start=1):
        split[rows] = number
    shared = np.zeros(len(split), dtype=bool)
    for side in keys:
        shared |= np.isin(side, side[split > 0])
    split[shared & (split == 0)] = -1
    languages = spec.source_lang, spec.target_lang
    write_splits(all_pairs(map(PairReader, (spec, *more))), split, folder, languages, random)
    shared_pairs, train, valid, test = (int((split == number).sum()) for number in range(-1, 3))
    return SplitReport(train, valid, test, sum(reader.skipped_empty for reader in readers), shared_pairs)


def all_pairs(readers: Iterable[PairReader]) -> Iterator[Pair]:
    return (pair for reader in readers for pair in reader.one_pass())


def choose_held_out(
    keys: Sequence[np.ndarray], fits: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the validation and the test set; no two of them share a sentence.

    `keys`: hashes of the sentences of each side; `fits`: pairs that are not too long.
    """
    first = once = np.ones(len(fits), dtype=bool)  # the first, or the only pair with its sentences
    for side in keys:
        _, start, inverse, counts = np.unique(side, return_index=True, return_inverse=True, return_counts=True)
        once = once & (counts[inverse] == 1)
        first = first & (start[inverse] == np.arange(len(side)))
    if (different := int(first.sum())) < 10:
        raise InputError(f"{different} different sentence pairs, must be at least 10")
    valid, test = held_out_sizes(different)
    candidates = next(rows for rows in (once & fits, first & fits, first) if rows.sum() >= valid + test)
    rows = random.choice(np.flatnonzero(candidates), valid + test, replace=False)
    return np.sort(rows[:valid]), np.sort(rows[valid:])


def sentence_key(text: str) -> str:
    """The sentence without case, punctuation and spaces; as to a tokenizer, é has one form, and ６ is 6."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return regex.sub(r"[^\p{L}\p{M}\p{N}]+", "", text) or text


def write_splits(
    pairs: Iterator[Pair],
    split: np.ndarray,
    folder: Path,
    languages: Sequence[str | None],
    random: np.random.Generator,
) -> None:
    """Training pairs get a random order: a stream shuffles so many at a time only, and a tokenizer reads the first."""
    with ExitStack() as stack:
        files: dict[tuple[int, int], IO[str]] = {}
        for number, side in product(range(len(SPLITS)), range(2)):
            file = stack.enter_context(atomic_file(folder / f"{SPLITS[number]}.{languages[side]}"))
            files[number, side] = stack.enter_context(file.open("w", encoding="utf-8", newline="\n"))
        as_text: Any = {"mode": "w+", "encoding": "utf-8", "newline": "\n", "dir": folder}
        count = -(-len(split) // SHUFFLED_TOGETHER)
        parts = [stack.enter_context(tempfile.TemporaryFile(**as_text)) for _ in range(count)]
        for number, part, pair in zip(split, random.integers(count, size=len(split)), pairs, strict=True):
            lines = [side.replace("\n", " ") + "\n" for side in pair]  # JSON has line breaks in texts
            if number == 0:
                parts[part].writelines(lines)
            elif number > 0:
                for side, line in enumerate(lines):
                    files[number, side].write(line)
        for file in parts:
            file.seek(0)
            lines = list(file)
            for row in random.permutation(len(lines) // 2):
                for side in range(2):
                    files[0, side].write(lines[2 * row + side])
