# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Training batches of corpora that do not fit in memory: read, cleaned, tokenized and shuffled block by block."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from residual_hf.data.background import BackgroundCall
from residual_hf.data.batching import TokenBudgetSampler
from residual_hf.data.cleaning import reasons
from residual_hf.data.corpus import check_files
from residual_hf.data.pair_reader import Cursor, PairReader
from residual_hf.data.records import Pair
from residual_hf.data.settings import CleaningSettings, CorpusSpec
from residual_hf.errors import InputError

CHUNK = 2000  # pairs tokenized at a time
FIRST_BLOCK = 8000  # pairs; the blocks after it double up to the size asked for, so that training begins soon
HISTORY = 64  # blocks whose beginnings are remembered
Ids = list[list[int]]
Feature = dict[str, np.ndarray]
Encode = Callable[[list[str], list[str]], tuple[Ids, Ids]]


def encoder_of(tokenizer: Any) -> Encode:
    """The `encode` of `StreamedBatches` that a tokenizer of Transformers gives."""

    def encode(sources: list[str], targets: list[str]) -> tuple[Ids, Ids]:
        encoded = tokenizer(sources, text_target=targets, return_attention_mask=False)
        return encoded["input_ids"], encoded["labels"]

    return encode


@dataclass(frozen=True)
class _Block:
    """The features of the pairs of one block, the indices of each batch, and where the corpora stand behind it."""

    features: list[Feature]
    batches: list[list[int]]
    places: list[Cursor]


class StreamedBatches(IterableDataset):
    """Endless batches of pairs from one or several corpora, of which only two blocks are in memory at any time.

    A block of `block` pairs is read in the order of the files, drawn from the corpora by `probabilities`, cut into
    batches by `TokenBudgetSampler` (seeded by `seed` and the number of the block) and yielded in random order, while
    a thread makes the next block. So `block` is how far pairs are shuffled: a corpus sorted by topic should be
    shuffled beforehand. Each corpus begins again at its end. Batches are lists of features `{"input_ids", "labels"}`
    (int32 arrays): use `DataLoader(stream, batch_size=None, collate_fn=collator)`, without workers and not
    prepared by accelerate, which would distribute the batches once more.

    Every process goes over the same batches and yields those whose number, modulo `world_size`, is its `rank`.

    `state` says how to go on after some batches; `start_from` makes the next iteration begin there. `left_out` counts
    pairs that were read but not used, by reason, every pass anew, since the iteration began.

    Args:
        corpora: where they lie; see `CorpusSpec`.
        encode: from sources and targets to their token ids, `</s>` included; one for all corpora or one for each;
            called in a thread.
        max_tokens: budget of a batch, in padded tokens of the longer side.
        probabilities: the share of each corpus, see `mixing_probabilities`; may be left away for one corpus.
        block: pairs read at a time, over all corpora; the first blocks are smaller.
        max_length: pairs with a longer side are left out, as are those longer than `max_tokens`.
        cleaning: what else is left out; `duplicates` is refused, since it would remember every pair.
        multiple: rows of a batch are a multiple of this number where the budget allows.
        order: how pairs of a block are sorted, see `TokenBudgetSampler`.
        rank, world_size: which process this is, and of how many.

    Raises:
        InputError: arguments that cannot be used, or a missing file, at once; a line that cannot be used, when the
            iteration reaches its block; corpora of which no pair is left over.
    """

    def __init__(
        self,
        corpora: Sequence[CorpusSpec],
        encode: Encode | Sequence[Encode],
        max_tokens: int,
        *,
        probabilities: Sequence[float] | None = None,
        block: int = 100_000,
        seed: int = 1,
        max_length: int | None = None,
        cleaning: CleaningSettings | None = None,
        multiple: int = 8,
        order: str = "length_bucketed",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value in (("max_tokens", max_tokens), ("block", block), ("max_length", max_length)):
            if value is not None and value < 1:
                raise InputError(f"{name}: {value} given, must be at least 1")
        if seed < 0:
            raise InputError(f"seed: {seed} given, must be at least 0")
        if not 0 <= rank < world_size:
            raise InputError(f"rank: {rank} given, must be from 0 to {world_size - 1} (world_size - 1)")
        if cleaning is not None and cleaning.duplicates is not None:
            raise InputError(
                f"cleaning.duplicates: {cleaning.duplicates!r} given, but a stream would have to remember every pair; "
                "remove duplicates from the files beforehand"
            )
        if not corpora:
            raise InputError("corpora: empty, there must be at least one")
        check_files(corpora)
        self.corpora = tuple(corpora)
        self.probabilities = _checked(probabilities, len(self.corpora))
        self.encode = [encode] * len(self.corpora) if callable(encode) else list(encode)
        if len(self.encode) != len(self.corpora):
            raise InputError(
                f"encode: {len(self.encode)} given for {len(self.corpora)} corpora, must be one or as many"
            )
        self.max_tokens = max_tokens
        self.block = block
        self.seed = seed
        self.max_length = max_length
        self.cleaning = cleaning
        self._why_not = reasons(cleaning or CleaningSettings())
        self.multiple = multiple
        self.order = order
        self.rank = rank
        self.world_size = world_size
        self.left_out: Counter[str] = Counter()
        self._block_starts: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._begin_with({"batches": 0, "block": 0, "skip": 0, "corpora": [asdict(Cursor()) for _ in self.corpora]})

    def __iter__(self) -> Iterator[list[Feature]]:
        if get_worker_info() is not None:
            raise InputError("num_workers: a stream has a thread of its own, must be 0")
        begin, number = self._begin["batches"], self._begin["block"]
        first = begin - self._begin["skip"]
        places = useful = [Cursor(**place) for place in self._begin["corpora"]]
        readers = [PairReader(spec, place) for spec, place in zip(self.corpora, places, strict=True)]
        self._begin_with(self._begin)
        coming = BackgroundCall(partial(self._make_block, readers, number))
        try:
            while True:
                block = coming.result()
                number += 1
                coming = BackgroundCall(partial(self._make_block, readers, number))
                behind = first + len(block.batches)
                self._block_starts.append(
                    {"batches": behind, "block": number, "corpora": [asdict(place) for place in block.places]}
                )
                for index, rows in enumerate(block.batches, start=first):
                    if index >= begin and index % self.world_size == self.rank:
                        yield [block.features[row] for row in rows]
                first = behind
                if block.batches:
                    useful = block.places
                elif all(now.passes >= then.passes + 2 for now, then in zip(block.places, useful, strict=True)):
                    names = ", ".join(spec.title for spec in self.corpora)
                    raise InputError(f"{names}: no pair is left over; left out: {dict(self.left_out)}")
        finally:
            coming.give_up()

    def state(self, batches: int) -> dict[str, Any]:
        """How to go on after the first `batches` batches of all processes, counted from the beginning of the stream.

        It can be written as JSON and is the same in every process. `InputError` if `batches` is not near the batch
        that was yielded last.
        """
        first, last = self._block_starts[0]["batches"], self._block_starts[-1]["batches"]
        last = max(last, self._begin["batches"]) + self.world_size - 1  # others may be in the next block already
        if not first <= batches <= last:
            raise InputError(f"batches: {batches} given, must be near those yielded last, from {first} to {last}")
        start = next(start for start in reversed(self._block_starts) if start["batches"] <= batches)
        return start | {"batches": batches, "skip": batches - start["batches"], "settings": self._settings()}

    def start_from(self, state: dict[str, Any]) -> None:
        """Have the next iteration begin with the batch that follows `state`, in any number of processes.

        It reads and encodes one block at most before. `InputError` if the stream is another one than that of `state`.
        """
        missing = [key for key in (*self._begin, "settings") if key not in state]
        if missing:
            raise InputError(f"state: no key {missing[0]!r}; allowed is what StreamedBatches.state returns")
        for key, value in self._settings().items():
            before = state["settings"].get(key)
            if before != value:
                raise InputError(f"{key}: {value} given, but the stream to go on with has {before}")
        self._begin_with({key: state[key] for key in self._begin})

    def _begin_with(self, state: dict[str, Any]) -> None:
        self._begin = state
        self.left_out.clear()
        self._block_starts.clear()
        self._block_starts.append(state | {"batches": state["batches"] - state["skip"]})

    def _settings(self) -> dict[str, Any]:
        """All that decides which batches come, but for the text and `encode`."""
        names = ("probabilities", "max_tokens", "block", "seed", "max_length", "multiple", "order")
        corpora = [
            {
                "name": spec.title,
                "bytes": [path.stat().st_size for path in spec.files],
                "columns": [spec.source_column, spec.target_column, spec.source_lang, spec.target_lang],
                "skip_empty": spec.skip_empty,
                "limit": spec.limit,
            }
            for spec in self.corpora
        ]
        cleaning = None if self.cleaning is None else asdict(self.cleaning)
        return {"corpora": corpora, "cleaning": cleaning} | {name: getattr(self, name) for name in names}

    def _make_block(self, readers: list[PairReader], number: int, check: Callable[[], None]) -> _Block:
        features: list[Feature] = []
        pairs = min(self.block, FIRST_BLOCK * 2 ** min(number, 32))
        shares = np.random.default_rng([self.seed, number]).multinomial(pairs, self.probabilities)
        for reader, encode, share in zip(readers, self.encode, shares.tolist(), strict=True):
            for start in range(0, share, CHUNK):
                check()
                features += self._features(reader.take(min(CHUNK, share - start)), encode)
            self._leave_out("empty", reader.skipped_empty)
            reader.skipped_empty = 0
        batches = []
        if features:
            lengths = ([len(feature[side]) for feature in features] for side in ("input_ids", "labels"))
            options = {"seed": self.seed + number, "multiple": self.multiple, "order": self.order}
            batches = list(TokenBudgetSampler(*lengths, self.max_tokens, **options))
        return _Block(features, batches, [reader.place for reader in readers])

    def _features(self, pairs: list[Pair], encode: Encode) -> list[Feature]:
        """The token ids of those pairs that pass."""
        if self.cleaning is not None:
            found = [self._why_not(*pair) for pair in pairs]
            pairs = [pair for pair, reason in zip(pairs, found, strict=True) if reason is None]
            for reason, count in Counter(filter(None, found)).items():
                self._leave_out(reason, count)
        if not pairs:
            return []
        sources, targets = encode(*map(list, zip(*pairs, strict=True)))
        limit = min(self.max_length or math.inf, self.max_tokens)
        features = [
            {"input_ids": np.array(source, dtype=np.int32), "labels": np.array(target, dtype=np.int32)}
            for source, target in zip(sources, targets, strict=True)
            if len(source) <= limit and len(target) <= limit
        ]
        self._leave_out("too many tokens", len(pairs) - len(features))
        return features

    def _leave_out(self, reason: str, count: int) -> None:
        if count:
            self.left_out[reason] += count


def _checked(probabilities: Sequence[float] | None, corpora: int) -> list[float]:
    if probabilities is None and corpora == 1:
        return [1.0]
    if probabilities is None or len(probabilities) != corpora:
        given = 0 if probabilities is None else len(probabilities)
        raise InputError(f"probabilities: {given} given for {corpora} corpora, must be as many")
    if not math.isclose(math.fsum(probabilities), 1, abs_tol=1e-6) or not min(probabilities) > 0:
        raise InputError(f"probabilities: {list(probabilities)} given, must be more than 0 and sum to 1")
    return [p / math.fsum(probabilities) for p in probabilities]
