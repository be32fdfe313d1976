"""Parallel corpora in memory, and mixtures of several: the share of each, and an epoch of all."""

import hashlib
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from residual_hf.base.errors import InputError
from residual_hf.model.checksums import file_hash

from .data_settings import CorpusSpec
from .pair_reader import Pair, PairReader
from .text_files import iter_lines

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ParallelCorpus(Sequence):
    """A sequence of (source, target) pairs, stored as two lists of equal length.

    `sha256`: for each file read, the hash of its bytes on disk; for a data set, the hash of its pairs as lines
    "source<TAB>target". `raw_targets`: the targets before tokenization, for pretokenized text. `tag`: the token that
    marks its sources in training, see `CorpusSpec`.
    """

    sources: list[str]
    targets: list[str]
    name: str
    source_lang: str | None = None
    target_lang: str | None = None
    sha256: dict[str, str] = field(default_factory=dict)
    raw_targets: list[str] | None = None
    tag: str | None = None

    @classmethod
    def empty(cls, spec: CorpusSpec) -> "ParallelCorpus":
        """A corpus without pairs, with the name, languages and tag of `spec`."""
        return cls([], [], spec.title, spec.source_lang, spec.target_lang, tag=spec.tag)

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise InputError(f"{self.name}: {len(self.sources)} sources, but {len(self.targets)} targets")

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def sentences(self) -> list[str]:
        """Sources and targets; once if they are the same, as those of a language model are."""
        return self.sources if self.sources == self.targets else [*self.sources, *self.targets]

    def __getitem__(self, index: int | slice) -> Any:
        """A pair, or for a slice a `ParallelCorpus`."""
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        return self.sources[index], self.targets[index]

    def __iter__(self) -> Iterator[Pair]:
        return iter(zip(self.sources, self.targets, strict=True))

    def select(self, rows: Iterable[int]) -> "ParallelCorpus":
        """The pairs at `rows`, in that order."""
        rows = list(rows)
        raw = None if self.raw_targets is None else [self.raw_targets[row] for row in rows]
        return replace(self.with_pairs(self[row] for row in rows), raw_targets=raw)

    def with_pairs(self, pairs: Iterable[Pair]) -> "ParallelCorpus":
        """The same corpus with other pairs, without raw targets."""
        sources, targets = [], []
        for source, target in pairs:
            sources.append(source)
            targets.append(target)
        return replace(self, sources=sources, targets=targets, raw_targets=None)


def numbered(names: Sequence[str]) -> list[str]:
    """The names of corpora, with a number after those that occurred before."""
    earlier = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name} ({count + 1})" if count else name for name, count in zip(names, earlier, strict=True)]


def describe_corpus(spec: CorpusSpec) -> ParallelCorpus:
    """A corpus with the hashes of its files, without its text; reads every file once."""
    return replace(ParallelCorpus.empty(spec), sha256={str(path): file_hash(path) for path in spec.files})


def read_parallel(spec: CorpusSpec) -> ParallelCorpus:
    """Read a corpus into memory. Raises `InputError` naming file and line of what cannot be used."""
    reader = PairReader(spec, streaming=False)
    corpus = describe_corpus(spec).with_pairs(reader.take())
    if reader.skipped_empty:
        logger.warning("%s: skipped %d pairs with an empty side", spec.title, reader.skipped_empty)
    if not spec.files:
        digest = hashlib.sha256()
        for pair in corpus:
            digest.update("{}\t{}\n".format(*pair).encode())
        corpus = replace(corpus, sha256={spec.title: digest.hexdigest()})
    if spec.raw_references is None:
        return corpus
    raw_targets = list(iter_lines(spec.raw_references))[: spec.limit]
    if len(raw_targets) != len(corpus):
        raise InputError(f"corpus.raw_target: {spec.raw_target} has {len(raw_targets)} lines for {len(corpus)} pairs")
    hashes = corpus.sha256 | {str(spec.raw_target): file_hash(spec.raw_references)}
    return replace(corpus, raw_targets=raw_targets, sha256=hashes)


def mixing_probabilities(
    sizes: Sequence[float], weights: Sequence[float] | None = None, temperature: float = 1.0
) -> list[float]:
    """The share of each corpus among the training pairs: n_i^(1/T) / sum_j n_j^(1/T), or the normalized `weights`.

    T = 1 keeps the proportions; higher temperatures draw small corpora more often, up to equal shares (Arivazhagan et
    al. 2019). Sizes are above 0.
    """
    if weights is None:
        largest = max(sizes)
        weights = [(size / largest) ** (1 / temperature) for size in sizes]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def mixed_indices(sizes: Sequence[int], probabilities: Sequence[float], seed: int) -> np.ndarray:
    """An epoch of sum(sizes) pairs: ascending int64 indices into the concatenated corpora.

    Every pair of corpus i occurs floor(p_i * N / n_i) times or once more; `seed` selects those that occur once more.
    """
    rng = np.random.default_rng(seed)
    exact = np.asarray(probabilities) * sum(sizes)
    shares = np.floor(exact).astype(np.int64)
    largest_fractions = np.argsort(shares - exact, kind="stable")
    shares[largest_fractions[: sum(sizes) - shares.sum()]] += 1
    times = []
    for size, pairs in zip(sizes, shares.tolist(), strict=True):
        every, more = divmod(pairs, size)
        corpus = np.full(size, every)
        corpus[rng.choice(size, more, replace=False)] += 1
        times.append(corpus)
    return np.repeat(np.arange(sum(sizes)), np.concatenate(times))
