"""Sentence pairs as token ids, in compact arrays that are cached on disk."""

import hashlib
import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from residual_hf.base.errors import InputError, is_panic
from residual_hf.base.files import atomic_file
from residual_hf.model.checksums import CHECKSUMS, is_recorded, write_checksums
from residual_hf.model.options import shortened
from residual_hf.model.translation_inputs import target_reader

from .corpus import ParallelCorpus
from .subword_regularization import Resegment
from .text_files import in_batches

logger = logging.getLogger(__name__)

Lengths = Sequence[int] | np.ndarray
IGNORED = -100  # label of positions without a loss
LOADED = {"is_local", "local_files_only"}  # fields of a tokenizer that was loaded, not trained
CHUNK = 2000  # sentence pairs tokenized at a time
SELECTED = 1_000_000  # pairs that are copied at a time
ARGUMENTS = {"source": "text", "target": "text_target"}  # of the tokenizer, for each side


class EncodedCorpus(Dataset):
    """Pairs of token ids, `{"input_ids": [...], "labels": [...]}`, both ending in `</s>`.

    Stored as flat arrays with offsets, 4 bytes a token, which are cheap to send to data-loader workers.

    With `resegment` the words of a sentence are segmented anew in every epoch (`set_epoch`). A row then depends only
    on `seed`, the epoch and its index: not on the process that reads it, nor on the order, so that a resumed run sees
    the same rows. `source_lengths` and `target_lengths`, which batches are made of, are those of the plain
    segmentation.

    Args:
        arrays: for each side, as `source_ids` and `source_offsets` (one more than sentences) and, if the side is
            resegmented, `source_starts`: whether a token begins a word. Without a target side, the labels are the
            sources.
        resegment: for each side to resegment, a function that draws a segmentation of a word.
        max_length: a row that would become longer keeps its plain segmentation; None for no limit.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        resegment: Mapping[str, Resegment] | None = None,
        *,
        seed: int = 1,
        max_length: int | None = None,
    ):
        self.arrays = arrays
        self.resegment = dict(resegment or {})
        self.seed = seed
        self.max_length = max_length
        self.epoch = 0
        self.sides = tuple(side for side in ARGUMENTS if f"{side}_ids" in arrays)
        self.source_lengths = np.diff(arrays[f"{self.sides[0]}_offsets"])
        self.target_lengths = np.diff(arrays[f"{self.sides[-1]}_offsets"])

    @classmethod
    def from_ids(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> "EncodedCorpus":
        """A corpus of two lists of id lists."""
        arrays = {}
        for side, rows in (("source", sources), ("target", targets)):
            arrays[f"{side}_offsets"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
            arrays[f"{side}_ids"] = np.fromiter(chain.from_iterable(rows), dtype=np.int32)
        return cls(arrays)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def hash(self) -> str:
        """The SHA-256 of the lengths of all sources and the tokens of all pairs, in their order."""
        found = hashlib.sha256(np.ascontiguousarray(self.source_lengths).data)
        for name in sorted(self.arrays):
            found.update(np.ascontiguousarray(self.arrays[name]).data)
        return found.hexdigest()

    def set_epoch(self, epoch: int) -> None:
        """Select the segmentations of an epoch, counted from 0. A `TokenBudgetSampler` does this."""
        self.epoch = epoch

    def __getitem__(self, index: int | None) -> dict[str, np.ndarray]:
        """A pair; for None a row without labels, which contributes nothing to the loss."""
        if index is None:
            row = self._row("source", 0)
            return {"input_ids": row, "labels": np.full_like(row, IGNORED)}
        random = Random(((self.seed << 32 | self.epoch) << 32) | int(index)) if self.resegment else None
        return {"input_ids": self._row("source", index, random), "labels": self._row(self.sides[-1], index, random)}

    def _row(self, side: str, index: int, random: Random | None = None) -> np.ndarray:
        start, stop = self.arrays[f"{side}_offsets"][index : index + 2]
        plain = self.arrays[f"{side}_ids"][start:stop]
        if random is None or side not in self.resegment:
            return plain
        words = np.flatnonzero(self.arrays[f"{side}_starts"][start:stop]).tolist()
        resegment, ids = self.resegment[side], plain.tolist()
        row: list[int] = []
        for first, end in zip(words, [*words[1:], len(ids)], strict=True):
            row.extend(resegment(tuple(ids[first:end]), random))
        if self.max_length is not None and len(row) > self.max_length:
            return plain
        return np.array(row, dtype=plain.dtype)

    def source(self, index: int) -> np.ndarray:
        """The tokens or frames that the model reads of a pair, without random changes."""
        return self._row("source", index)

    def select(self, indices: Sequence[int] | np.ndarray) -> "EncodedCorpus":
        """The pairs at `indices`, in that order; segmentations are drawn by their new indices."""
        return EncodedCorpus(self.selected(indices), self.resegment, seed=self.seed, max_length=self.max_length)

    def selected(self, indices: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of the pairs at `indices`."""
        arrays = {}
        for side in self.sides:
            offsets = self.arrays[f"{side}_offsets"]
            lengths = np.diff(offsets)[indices]
            arrays[f"{side}_offsets"] = new = np.concatenate([[0], np.cumsum(lengths)])
            shifts = offsets[:-1][indices] - new[:-1]
            names = [name for name in (f"{side}_ids", f"{side}_starts") if name in self.arrays]
            arrays |= {name: np.empty(new[-1], self.arrays[name].dtype) for name in names}
            for start in range(0, len(lengths), SELECTED):  # the numbers of tokens are many times larger
                part = slice(start, start + SELECTED)
                first, last = new[start], new[min(start + SELECTED, len(lengths))]
                tokens = np.arange(first, last) + np.repeat(shifts[part], lengths[part])
                for name in names:
                    arrays[name][first:last] = self.arrays[name][tokens]
        return arrays

    @classmethod
    def joined(cls, parts: "Sequence[EncodedCorpus]") -> "EncodedCorpus":
        """Corpora with the same sides, one after the other."""
        arrays = {}
        for side in parts[0].sides:
            lengths = np.concatenate([np.diff(part.arrays[f"{side}_offsets"]) for part in parts])
            arrays[f"{side}_offsets"] = np.concatenate([[0], np.cumsum(lengths)])
            arrays[f"{side}_ids"] = np.concatenate([part.arrays[f"{side}_ids"] for part in parts])
        return cls(arrays)

    @property
    def longest(self) -> np.ndarray:
        """The tokens of the longer side of each pair, (pairs,)."""
        return np.maximum(self.source_lengths, self.target_lengths)

    def drop_long(self, limit: int) -> "EncodedCorpus":
        """The pairs without a side of more than `limit` tokens."""
        kept = np.flatnonzero(self.longest <= limit)
        return self if len(kept) == len(self) else self.select(kept)


def encode(
    corpora: Iterable[ParallelCorpus],
    tokenizer: Any,
    resegment: Mapping[str, Resegment] | None = None,
    *,
    sides: Sequence[str] = tuple(ARGUMENTS),
    **options: Any,
) -> EncodedCorpus:
    """Tokenize corpora, each in one call of the tokenizer, into one. `options`: see `EncodedCorpus`."""
    in_words = [side for side in sides if side in (resegment or ())]
    lengths: dict[str, list[int]] = {side: [0] for side in sides}
    parts: dict[str, list[np.ndarray]] = {f"{side}_ids": [np.empty(0, dtype=np.int32)] for side in sides}
    parts |= {f"{side}_starts": [np.empty(0, dtype=bool)] for side in in_words}
    for corpus in corpora:
        for side in sides:
            for texts in in_batches(corpus.sources if side == "source" else corpus.targets):
                encoded = _call(tokenizer, side, texts)
                lengths[side].extend(map(len, encoded["input_ids"]))
                parts[f"{side}_ids"].append(np.fromiter(chain.from_iterable(encoded["input_ids"]), dtype=np.int32))
                if side in in_words:
                    parts[f"{side}_starts"].extend(_word_starts(row.word_ids) for row in encoded.encodings)
    arrays = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    arrays |= {f"{side}_offsets": np.cumsum(lengths[side], dtype=np.int64) for side in sides}
    return EncodedCorpus(arrays, resegment, **options)


def encode_corpus(
    corpus: ParallelCorpus,
    tokenizer: Any,
    resegment: Mapping[str, Resegment] | None = None,
    *,
    name: str = "corpus",
    cache_dir: Path | None = None,
    sides: Sequence[str] = tuple(ARGUMENTS),
    **options: Any,
) -> EncodedCorpus:
    """As `encode`, in chunks with a progress bar, or from the cache.

    Args:
        corpus: the text; the target side is passed as `text_target`, for tokenizers with separate vocabularies.
        name: of the progress bar and the cache file.
        cache_dir: folder of cached arrays, keyed by the text and the tokenizer; None for no cache.
    """
    path = None
    if cache_dir is not None:
        path = Path(cache_dir) / f"{name}-{_fingerprint(corpus, tokenizer, resegment or ())}.safetensors"
        if is_cached(path):
            return EncodedCorpus(load_file(path), resegment, **options)
    logger.info("tokenizing %s: %d pairs", name, len(corpus))
    bar: dict[str, Any] = {"unit_scale": CHUNK, "unit": " pairs", "leave": False, "disable": None}
    starts = tqdm(range(0, len(corpus), CHUNK), f"tokenizing {name}", **bar)
    result = encode((corpus[start : start + CHUNK] for start in starts), tokenizer, resegment, sides=sides, **options)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            save_file(result.arrays, temporary)
        write_checksums(path.parent, [path.name])
    return result


def is_cached(*paths: Path) -> bool:
    """Whether files of a cache exist and are as they were recorded; a warning names one that is not."""
    if not all(path.exists() for path in paths):
        return False
    damaged = [path for path in paths if not is_recorded(path)]
    for path in damaged:
        logger.warning("%s is damaged: it is not the file recorded in %s; it is made again", path, CHECKSUMS)
    return not damaged


def _call(tokenizer: Any, side: str, texts: list[str]) -> Any:
    """The tokens of texts. Raises `InputError` with the text on which the tokenizer fails."""
    reader = target_reader(tokenizer) if side == "target" else tokenizer
    try:
        return reader(**{ARGUMENTS[side]: texts}, return_attention_mask=False, verbose=False)
    except BaseException as error:
        if not is_panic(error):
            raise
        if len(texts) == 1:
            raise InputError(f"tokenizer: fails on the {side} {shortened(repr(texts[0]))}: {error}") from error
        for text in texts:
            _call(tokenizer, side, [text])
        raise


def _word_starts(words: Sequence[int | None]) -> np.ndarray:
    """Whether each token begins a word; a token that the tokenizer added (None) is a word by itself."""
    numbers = [-1 - place if word is None else word for place, word in enumerate(words)]
    return np.diff(np.array(numbers), prepend=-len(numbers) - 1) != 0


def _fingerprint(corpus: ParallelCorpus, tokenizer: Any, sides_with_words: Iterable[str]) -> str:
    """A hash of the text of a corpus, the files of a tokenizer and the sides whose words are recorded."""
    digest = hashlib.sha256(" ".join(sorted(sides_with_words)).encode())
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).glob("*.json")):
            values = json.loads(file.read_bytes())
            digest.update(json.dumps({name: values[name] for name in values if name not in LOADED}).encode())
    for side in (corpus.sources, corpus.targets):
        for line in side:
            digest.update(f"{line}\n".encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]
