"""Training batches of corpora larger than memory: read, cleaned, tokenized and shuffled block by block."""

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from residual_hf.base.errors import InputError

from .background import BackgroundCall
from .batching import TokenBudgetSampler
from .cleaning import clean_corpus, pair_filter
from .corpus import ParallelCorpus, mixing_probabilities, numbered
from .data_settings import MOVABLE, SPLITS, DataSettings
from .encoding import CHUNK, EncodedCorpus
from .marked_text import training_edits, with_capitals
from .multilingual import training_pairs
from .pair_reader import Cursor, PairReader, check_files, count_rows

logger = logging.getLogger(__name__)

FIRST_BLOCK = 8000  # pairs; the size of blocks doubles from here, so that training starts soon
HISTORY = 64  # blocks whose starts are kept for `state`


class StreamedBatches(IterableDataset):
    """Endless batches of the training corpora, with at most two blocks of text in memory.

    A block of `data.shuffle_buffer` pairs is read in the order of the files, from each corpus its share (see
    `mixing_probabilities`), and batched by `TokenBudgetSampler`, with the number of the block as the epoch, while a
    thread prepares the next block. Pairs are shuffled, and duplicates found, within a block: shuffle a corpus that is
    sorted by topic beforehand. Corpora that fit into the buffer together, without weights or temperature, make one
    block per pass, with the batches of the same corpora in memory.

    Batches are lists of features `{"input_ids", "labels"}`. Use `DataLoader(stream, batch_size=None,
    collate_fn=collator)` without workers, and do not pass it to `Accelerator.prepare`: every process iterates over the
    same batches and yields those whose number, modulo `world_size`, is its `rank`.

    `state` returns a position from which `start_from` continues. `dropped` counts pairs that were read but not used,
    by reason, in all passes since the iteration began.

    Args:
        data: the training corpora and how to read them.
        encode: tokenizes corpora into one, see `residual_hf.data.encoding.encode`; called in a thread.
        max_tokens, multiple, order: as in `TokenBudgetSampler`. Pairs longer than `max_tokens` are dropped.
        positions: drop pairs with a side of more tokens, which the model cannot read; None for no limit.
        seed: of batches, their order and the mixture.
        rank, world_size: number of this process and number of processes.

    Raises:
        InputError: a missing file, or a data set of unknown size without weights, at once; a line that cannot be used,
            when its block is read; corpora of which no pair is left.
    """

    def __init__(
        self,
        data: DataSettings,
        encode: Callable[[Iterable[ParallelCorpus]], EncodedCorpus],
        max_tokens: int,
        *,
        positions: int | None = None,
        seed: int = 1,
        multiple: int = 8,
        order: str = "length_bucketed",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_files(data.train)
        self.data = data
        self.encode = encode
        self.max_length = min(filter(None, (data.max_length, positions, max_tokens)))
        self.seed = seed
        self.sampling: dict[str, Any] = {"max_tokens": max_tokens, "seed": seed, "multiple": multiple, "order": order}
        self.rank, self.world_size = rank, world_size
        self.dropped: Counter[str] = Counter()
        self._edited = training_edits(data)
        self._pairs = max(1, data.shuffle_buffer // (2 if data.bidirectional else 1))
        self._views = [1 + (data.bidirectional and spec.tag is None) for spec in data.train]  # pairs of each line
        self.probabilities, self._block_is_pass = self._mixture()
        self._block_starts: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._begin_with({"batches": 0, "block": 0, "skip": 0, "corpora": [asdict(Cursor()) for _ in data.train]})

    def _mixture(self) -> tuple[list[float], bool]:
        """The share of each corpus, and whether a block is one pass over all corpora."""
        corpora, temperature = self.data.train, self.data.temperature
        if len(corpora) == 1:
            return [1.0], count_rows(corpora[0], self._pairs) <= self._pairs
        if weights := self.data.weights:
            return mixing_probabilities([1] * len(weights), weights), False
        lines = list(map(count_rows, corpora))
        if math.inf in lines:
            unknown = corpora[lines.index(math.inf)]
            raise InputError(f"corpus.weight: missing for {unknown.title}, a data set of unknown size")
        sizes = [count * views for count, views in zip(lines, self._views, strict=True)]
        return mixing_probabilities(sizes, temperature=temperature), temperature == 1 and sum(lines) <= self._pairs

    def __iter__(self) -> Iterator[list[dict[str, np.ndarray]]]:
        worker = get_worker_info()
        if worker is not None:
            raise InputError(f"num_workers: {worker.num_workers} given, must be 0: a stream has its own thread")
        begin, number = self._begin["batches"], self._begin["block"]
        first = begin - self._begin["skip"]
        cursors = last_useful = [Cursor(**cursor) for cursor in self._begin["corpora"]]
        readers = [PairReader(spec, cursor) for spec, cursor in zip(self.data.train, cursors, strict=True)]
        self._begin_with(self._begin)
        next_block = BackgroundCall(partial(self._make_block, readers, number))
        try:
            while True:
                corpus, batches, after = next_block.result()
                number += 1
                next_block = BackgroundCall(partial(self._make_block, readers, number))
                end = first + len(batches)
                self._block_starts.append({"batches": end, "block": number, "corpora": list(map(asdict, after))})
                for index, rows in enumerate(batches, start=first):
                    if index >= begin and index % self.world_size == self.rank:
                        yield [corpus[row] for row in rows]
                first = end
                if batches:
                    last_useful = after
                elif all(now.passes >= then.passes + 2 for now, then in zip(after, last_useful, strict=True)):
                    names = ", ".join(spec.title for spec in self.data.train)
                    raise InputError(f"{names}: no pair is left; dropped: {dict(+self.dropped)}")
        finally:
            next_block.cancel()

    def state(self, batches: int) -> dict[str, Any]:
        """The position after the first `batches` batches of all processes, counted from the start of the stream.

        The state can be written as JSON and is the same in every process. Raises `InputError` if `batches` is not near
        the batch that was yielded last.
        """
        first, last = self._block_starts[0]["batches"], self._block_starts[-1]["batches"]
        last = max(last, self._begin["batches"]) + self.world_size - 1  # other processes may be in the next block
        if not first <= batches <= last:
            raise InputError(f"batches: {batches} given, must be near those yielded last, from {first} to {last}")
        start = next(start for start in reversed(self._block_starts) if start["batches"] <= batches)
        return start | {"batches": batches, "skip": batches - start["batches"], "settings": self._settings()}

    def start_from(self, state: dict[str, Any]) -> None:
        """Begin the next iteration with the batch after `state`, in any number of processes.

        At most one block is read and encoded again. Raises `InputError` if the state is of another stream.
        """
        settings = dict(state["settings"])
        settings["corpora"] = [{**corpus, "name": None} for corpus in settings.get("corpora", ())]  # of older versions
        for key, value in self._settings().items():
            if (before := settings.get(key)) != value and (before or value):  # a field may be new
                raise InputError(f"{key}: {value} given, but the stream to continue has {before}")
        self._begin_with({key: state[key] for key in self._begin})

    def _begin_with(self, state: dict[str, Any]) -> None:
        self._begin = state
        self.dropped.clear()
        self._block_starts.clear()
        self._block_starts.append(state | {"batches": state["batches"] - state["skip"]})

    def _settings(self) -> dict[str, Any]:
        """Everything that determines the batches, except for the text and `encode`."""
        corpora = [
            asdict(spec) | dict.fromkeys((*MOVABLE, "dataset")) | {"bytes": [f.stat().st_size for f in spec.files]}
            for spec in self.data.train
        ]
        reading = {name: value for name, value in asdict(self.data).items() if name not in (*SPLITS, "glossary")}
        shares = {"probabilities": self.probabilities, "max_length": self.max_length}
        if self.data.weights and self.data.cleaning is not None:
            shares["counts"] = "kept"  # not those that cleaning drops, as in older versions
        return {"corpora": corpora} | reading | shares | self.sampling

    def _make_block(
        self, readers: list[PairReader], number: int, check: Callable[[], None]
    ) -> tuple[EncodedCorpus, list[list[int | None]], list[Cursor]]:
        """The encoded pairs of a block, the indices of each batch, and the positions in the corpora after it."""
        encoded = self.encode(self._texts(readers, number, check))
        corpus = encoded.drop_long(self.max_length)
        self.dropped["too many tokens"] += len(encoded) - len(corpus)
        if number == 0 and self.rank == 0 and self.dropped.total():
            level = logging.WARNING if self.dropped.total() > len(corpus) else logging.INFO
            logger.log(level, "first block: kept %d pairs; dropped: %s", len(corpus), dict(+self.dropped))
        batches: list[list[int | None]] = []
        if len(corpus):
            lengths = corpus.source_lengths, corpus.target_lengths
            sampler = TokenBudgetSampler(*lengths, corpus=corpus, **self.sampling)
            sampler.set_epoch(number)
            batches = list(sampler)
        return corpus, batches, [reader.cursor for reader in readers]

    def _texts(self, readers: list[PairReader], number: int, check: Callable[[], None]) -> Iterator[ParallelCorpus]:
        """The pairs of a block, in chunks."""
        shares: list[float] = [math.inf] * len(readers)
        if not self._block_is_pass:
            pairs = min(self._pairs, FIRST_BLOCK * 2 ** min(number, 32))
            lines = np.divide(self.probabilities, self._views)
            shares = np.random.default_rng([self.seed, number]).multinomial(pairs, lines / lines.sum()).tolist()
        names = numbered([spec.title for spec in self.data.train])
        for name, reader, share in zip(names, readers, shares, strict=True):
            corpus = replace(ParallelCorpus.empty(reader.spec), name=name)
            first, passes, reason_to_drop = reader.cursor.passes, None, None
            kept_in = first
            while share > 0 and not (self._block_is_pass and reader.cursor.passes > first):
                check()
                if self.data.cleaning is not None and passes != reader.cursor.passes:
                    passes, reason_to_drop = reader.cursor.passes, pair_filter(self.data.cleaning)
                chunk = corpus.with_pairs(reader.take(int(min(CHUNK, share))))
                taken = len(chunk)
                if reason_to_drop is not None:
                    chunk, report = clean_corpus(chunk, reason_to_drop)
                    self.dropped.update(report.dropped)
                share -= len(chunk) if self.data.weights else taken  # else corpora are read by their sizes
                kept_in = reader.cursor.passes if len(chunk) else kept_in
                if reader.cursor.passes > kept_in + 1:  # nothing is left of a whole pass
                    break
                chunk = with_capitals(chunk, self.data, self.seed)
                yield training_pairs(chunk, self.data.bidirectional, self.data.language_tags, self._edited)
            self.dropped["empty"] += reader.skipped_empty
            reader.skipped_empty = 0
