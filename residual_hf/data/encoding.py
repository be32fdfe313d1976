# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Sentence pairs as token ids: a compact data set of integers, cached on disk."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from residual_hf.files import atomic_file

IGNORED = -100  # a label that does not count
BLOCK = 2000  # sentences tokenized at a time


class EncodedCorpus(Dataset):
    """Pairs of token ids, `{"input_ids": [...], "labels": [...]}`, both ending in `</s>`.

    Held as two flat arrays with offsets, 4 bytes a token, so that millions of pairs fit in memory and pickling to
    data-loader workers is cheap.
    """

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = arrays
        self.source_lengths = np.diff(arrays["source_offsets"])
        self.target_lengths = np.diff(arrays["target_offsets"])

    @classmethod
    def from_ids(cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> EncodedCorpus:
        """From two lists of id lists."""
        arrays = {}
        for side, rows in (("source", sources), ("target", targets)):
            arrays[f"{side}_offsets"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
            arrays[f"{side}_ids"] = np.fromiter((t for row in rows for t in row), dtype=np.int32)
        return cls(arrays)

    def __len__(self) -> int:
        return len(self.source_lengths)

    def _row(self, side: str, index: int) -> np.ndarray:
        start, stop = self.arrays[f"{side}_offsets"][index : index + 2]
        return self.arrays[f"{side}_ids"][start:stop]

    def __getitem__(self, index: int | None) -> dict[str, np.ndarray]:
        """One pair; for None one without labels, which nothing is learned from."""
        if index is None:
            first = self._row("source", 0)
            return {"input_ids": first, "labels": np.full(1, IGNORED, dtype=np.int32)}
        return {"input_ids": self._row("source", index), "labels": self._row("target", index)}

    def select(self, indices: Sequence[int]) -> EncodedCorpus:
        """The pairs at `indices`, in that order."""
        return self.from_ids([self._row("source", i) for i in indices], [self._row("target", i) for i in indices])


def encode_corpus(
    corpus: Any, tokenizer: Any, *, name: str = "corpus", cache_dir: Path | None = None
) -> EncodedCorpus:
    """Token ids of a `ParallelCorpus`, with a progress bar, from the cache where the same text was encoded before.

    The cache is keyed by the tokenizer and the text, so it is never stale. The target side goes through
    `text_target=`, which separate vocabularies need.
    """
    path = None if cache_dir is None else Path(cache_dir) / f"{name}-{fingerprint(corpus, tokenizer)}.safetensors"
    if path is not None and path.exists():
        return EncodedCorpus(load_file(path))
    sources: list[list[int]] = []
    targets: list[list[int]] = []
    with tqdm(total=len(corpus), desc=f"tokenizing {name}", unit=" pairs") as bar:
        for start in range(0, len(corpus), BLOCK):
            block = slice(start, start + BLOCK)
            encoded = tokenizer(corpus.sources[block], text_target=corpus.targets[block], return_attention_mask=False)
            sources.extend(encoded["input_ids"])
            targets.extend(encoded["labels"])
            bar.update(len(corpus.sources[block]))
    result = EncodedCorpus.from_ids(sources, targets)
    if path is not None:
        save_atomically(result.arrays, path)
    return result


def fingerprint(corpus: Any, tokenizer: Any) -> str:
    """A hash of the text of a `ParallelCorpus` and of the files of a tokenizer."""
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).glob("*.json")):
            digest.update(file.read_bytes())
    for side in (corpus.sources, corpus.targets):
        for line in side:
            digest.update(line.encode())
            digest.update(b"\n")
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def save_atomically(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Write arrays as safetensors, so that the file is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        save_file(arrays, temporary)
