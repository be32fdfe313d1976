"""Batches of sentence pairs by a budget of padded tokens, and their tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from residual_hf.base.errors import InputError, InputSettings
from residual_hf.model.embeddings import shift_tokens_right
from residual_hf.model.options import option

from .encoding import IGNORED, EncodedCorpus, Lengths


def _length_bucketed(sources: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    longer = np.maximum(sources, targets)
    return longer, np.where(longer % 2, sources - targets, targets - sources)


BATCH_ORDERS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "fairseq": lambda sources, targets: (sources, targets),
    "length_bucketed": _length_bucketed,
}
"""How pairs are sorted before they are split into batches: source and target lengths to first and second sort key."""


class TokenBudgetSampler:
    """Batch sampler whose batches hold at most `max_tokens` padded tokens on their longer side, as fairseq counts.

    The cost of a batch is `rows * max(longest source, longest target)`. Pairs are put in random order, sorted by
    length (ties stay random) and split greedily into batches, once; an epoch only changes their order. Two orders of
    sorting:

    - `"fairseq"`: by source, then target length. With the same lengths, `max_tokens` and `seed` the batches and their
      order in every epoch are those of fairseq's translation task (which counts epochs from 1, `set_epoch` from 0).
    - `"length_bucketed"`: by the longer side, then by how much longer the source is, alternately rising and falling,
      so that neighbors are similar on both sides. A tenth fewer batches with half the padding (Multi30k: 118 instead
      of 129 batches of 4,096, 3.1 % instead of 6.5 % padding).

    Pass it to a `DataLoader` as `batch_sampler`; `batch_size`, `drop_last` and `sampler` are there for accelerate.
    Processes of a distributed run take batches in turn. With `processes` an epoch is filled up to a multiple of them
    by batches `[None]`, for which an `EncodedCorpus` has a row without labels, so that all processes have equally many
    batches and no sentence counts twice.

    Args:
        source_lengths, target_lengths: tokens of every sentence, including `</s>`.
        max_tokens: budget of one batch, in padded tokens of the longer side.
        shuffle: False keeps ties and batches in sorted order, for evaluation.
        seed: of the ties and, together with the epoch, of the order of batches.
        multiple: rows of a batch are a multiple of this number if the budget allows as many, which suits tensor
            cores (fairseq's `required_batch_size_multiple`).
        corpus: an `EncodedCorpus` whose epoch is set together with that of the sampler.

    Raises `InputError` for a sentence longer than `max_tokens`.
    """

    batch_size = None
    drop_last = False

    def __init__(
        self,
        source_lengths: Lengths,
        target_lengths: Lengths,
        max_tokens: int,
        *,
        shuffle: bool = True,
        seed: int = 1,
        multiple: int = 8,
        corpus: EncodedCorpus | None = None,
        order: str = "fairseq",
        processes: int = 1,
    ) -> None:
        sources = np.asarray(source_lengths, dtype=np.int64)
        targets = np.asarray(target_lengths, dtype=np.int64)
        longest = int(np.maximum(sources, targets).argmax())
        side, length = max(("source", sources[longest]), ("target", targets[longest]), key=lambda pair: pair[1])
        if length > max_tokens:
            raise InputError(
                f"max_tokens: {max_tokens} given, but the {side} of sentence {longest} (counted from 0) has {length} "
                f"tokens; raise max_tokens to {length} or more, or drop long sentences"
            )
        self.sampler = self
        self.shuffle = shuffle
        self.seed = seed
        self.processes = processes
        self.epoch = 0
        self._corpus = corpus
        self._lengths = {"source": sources, "target": targets}
        pairs = np.random.RandomState(seed).permutation(len(sources)) if shuffle else np.arange(len(sources))
        first, second = BATCH_ORDERS[order](sources[pairs], targets[pairs])
        pairs = pairs[np.lexsort([second, first])]
        self._batches: list[np.ndarray] = []
        longer_side = np.maximum(sources[pairs], targets[pairs]).clip(min=1)
        while len(pairs):
            width = np.maximum.accumulate(longer_side[: max_tokens // int(longer_side[0])])
            rows = int(np.searchsorted(width * np.arange(1, len(width) + 1), max_tokens, side="right"))
            if rows > multiple:
                rows -= rows % multiple
            self._batches.append(pairs[:rows])
            pairs, longer_side = pairs[rows:], longer_side[rows:]

    def set_epoch(self, epoch: int) -> None:
        """Select the order of batches of an epoch, counted from 0."""
        self.epoch = epoch
        if self._corpus is not None:
            self._corpus.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._batches) + -len(self._batches) % self.processes

    def __iter__(self) -> Iterator[list[int | None]]:
        order = list(range(len(self._batches)))
        if self.shuffle:
            np.random.RandomState((self.seed + self.epoch + 1) % 2**32).shuffle(order)
        for index in order:
            yield self._batches[index].tolist()
        for _ in range(-len(self._batches) % self.processes):
            yield [None]

    def statistics(self, pad_to_multiple_of: int | None = None) -> dict[str, float]:
        """The sizes of the batches of an epoch.

        Args:
            pad_to_multiple_of: of the `Seq2SeqCollator`.

        Returns:
            `batches`, their number; `sentences_per_batch` and `target_tokens_per_batch`, means without padding;
            `source_padding` and `target_padding`, the padded fraction of the tensors.
        """
        count = len(self._batches)
        statistics = {"batches": count, "sentences_per_batch": len(self._lengths["source"]) / count}
        statistics["target_tokens_per_batch"] = int(self._lengths["target"].sum()) / count
        for side, lengths in self._lengths.items():
            widths = (int(lengths[batch].max()) for batch in self._batches)
            padded = (width + -width % (pad_to_multiple_of or 1) for width in widths)
            cells = sum(len(batch) * width for batch, width in zip(self._batches, padded, strict=True))
            statistics[f"{side}_padding"] = 1 - int(lengths.sum()) / cells
        return statistics


def evaluation_batches(corpus: EncodedCorpus, max_tokens: int) -> list[list[int | None]]:
    """The rows of each batch of a corpus; the budget is raised to the longest row, so that none is dropped."""
    budget = max(max_tokens, int(corpus.longest.max()))
    return list(TokenBudgetSampler(corpus.source_lengths, corpus.target_lengths, budget, shuffle=False))


@dataclass(frozen=True)
class Seq2SeqCollator(InputSettings):
    """Turns features `{"input_ids": [...], "labels": [...]}` into the tensors of a model.

    Returns int64 tensors, padded on the right to the longest row of the batch: `input_ids` and `attention_mask`
    [rows, source length] (of speech, with `input_features` [frames, bins] in the place of `input_ids`, these in
    float32, padded with 0), `labels`, padded with -100, and `decoder_input_ids`, the labels shifted right,
    [rows, target length]. Features without `labels` give the source tensors only. For a decoder alone there are no
    `decoder_input_ids`, and the first label of a row is -100, because it is not predicted.

    Args:
        pad_token_id: padding of `input_ids` and `decoder_input_ids`.
        decoder_start_token_id: first decoder input of every row, `</s>` in fairseq's convention; None for a decoder
            alone.
        pad_to_multiple_of: round lengths up to a multiple of this number.
        max_length: do not pad beyond this length, the positions of the model.
        max_frames: the same for `input_features`.

    Raises `InputError` for `labels` in some features only.
    """

    pad_token_id: int = option(minimum=0)
    decoder_start_token_id: int | None = option(minimum=0)
    pad_to_multiple_of: int | None = option(None, minimum=1)
    max_length: int | None = None
    max_frames: int | None = None

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        labelled = sum("labels" in feature for feature in features)
        if labelled not in (0, len(features)):
            raise InputError(f"labels: in {labelled} of {len(features)} features, must be in all of them or in none")
        name, fill, most = "input_ids", self.pad_token_id, self.max_length
        if name not in features[0]:
            name, fill, most = "input_features", 0, self.max_frames
        source, is_token = self._pad([feature[name] for feature in features], fill, most)
        batch = {name: source, "attention_mask": is_token.long()}
        if labelled:
            labels, _ = self._pad([feature["labels"] for feature in features], IGNORED, self.max_length)
            batch["labels"], start = labels, self.decoder_start_token_id
            if start is None:
                labels[:, 0] = IGNORED
            else:
                batch["decoder_input_ids"] = shift_tokens_right(labels, self.pad_token_id, start)
        return batch

    def _pad(self, rows: Sequence[Sequence[int]], fill: int, most: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows as a tensor [rows, longest] and a mask of its tokens."""
        lengths = np.array([len(row) for row in rows])
        width = int(lengths.max())
        if self.pad_to_multiple_of is not None:
            rounded = width + -width % self.pad_to_multiple_of
            width = max(width, rounded if most is None else min(rounded, most))
        is_token = np.arange(width) < lengths[:, None]
        arrays = [np.asarray(row) for row in rows]
        dtype = np.float32 if arrays[0].ndim == 2 else np.int64
        padded = np.full((len(rows), width, *arrays[0].shape[1:]), fill, dtype=dtype)
        padded[is_token] = np.concatenate(arrays, dtype=dtype, casting="unsafe")
        return torch.from_numpy(padded), torch.from_numpy(is_token)
