"""Lexical shortlists: the target tokens that are likely in the translation of a source sentence.

Probabilities are those of IBM Model 1 (Brown et al., 1993, The Mathematics of Statistical Machine Translation); the
`</s>` of a source is its empty word. As in Marian, the output layer then computes these tokens only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers.utils import cached_file

from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import atomic_file
from residual_hf.base.names import model_folder
from residual_hf.checkpoint import SHORTLIST

from .encoding import EncodedCorpus

BEST, FREQUENT = 50, 100
ITERATIONS = 5
MOST_LINKS = 30_000_000  # pairs of a source and a target token of a sentence, which take 5 bytes each and time
LINKS_TOGETHER = 1_000_000


@dataclass(frozen=True)
class Shortlist:
    """Candidates for translations.

    Attributes:
        candidates: for each source token its likely translations, most probable first, then -1; int32 (source
            vocabulary, best).
        frequent: tokens that every translation may have, int32, in ascending order.
    """

    candidates: np.ndarray
    frequent: np.ndarray

    def tokens_for(self, source: Sequence[int] | np.ndarray) -> np.ndarray:
        """The target tokens for a source sentence, in ascending order."""
        likely = self.candidates[np.asarray(source)]
        return np.union1d(self.frequent, likely[likely >= 0])

    def save(self, folder: Path) -> None:
        """Write `shortlist.safetensors` to a model folder."""
        with atomic_file(folder / SHORTLIST) as temporary:
            save_file(asdict(self), temporary)


def load_shortlist(name: str | Path, config: Any) -> Shortlist | None:
    """The shortlist of a model: a folder of a model or a run, or a name on the Hub. None if it has none.

    Raises `InputError` for one that is damaged or not of the vocabularies of `config`.
    """
    path = cached_file(str(model_folder(name)), SHORTLIST, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return None
    with input_errors(f"shortlist: {path} cannot be read: ", SafetensorError, OSError, TypeError):
        found = Shortlist(**load_file(path))
    fits = (found.candidates.ndim, found.frequent.ndim) == (2, 1) and len(found.candidates) == config.vocab_size
    for table, least in ((found.candidates, -1), (found.frequent, 0)):
        is_inside = not table.size or least <= table.min() <= table.max() < config.decoder_vocab_size
        fits = fits and table.dtype == np.int32 and is_inside
    if not fits:
        sizes = f"{config.vocab_size:,} and {config.decoder_vocab_size:,} tokens"
        raise InputError(f"{path}: is not of the vocabularies of the model, with {sizes}")
    return found


def build_shortlist(
    corpus: EncodedCorpus,
    vocabulary: int,
    *,
    always: Iterable[int],
    joint: bool,
    best: int = BEST,
    frequent: int = FREQUENT,
) -> Shortlist:
    """The shortlist of a parallel corpus, or of evenly spaced sentences of a large one.

    Args:
        vocabulary: number of source tokens.
        always: target tokens to allow everywhere: those that end a translation, and others that are special.
        joint: both sides have the same tokens, and a source token may be copied.
        best: number of target tokens for each source token.
        frequent: number of the most frequent target tokens, which are allowed everywhere.
    """
    counts = np.bincount(corpus.arrays["target_ids"])
    most = (-counts).argsort(kind="stable")[:frequent]
    common = np.union1d(most[counts[most] > 0], np.fromiter(always, np.int64))
    source, target, probabilities = translation_probabilities(corpus)
    order = np.lexsort((-probabilities, source))
    order = order[~np.isin(target[order], common)]
    source, target = source[order], target[order]
    rank = np.arange(len(source)) - np.searchsorted(source, source)
    kept = rank < best
    candidates = np.full((vocabulary, best), -1, np.int32)
    candidates[source[kept], rank[kept]] = target[kept]
    if joint:
        same = np.arange(vocabulary, dtype=np.int32)
        absent = (candidates != same[:, None]).all(axis=1) & ~np.isin(same, common)
        candidates[absent, -1] = same[absent]
    return Shortlist(candidates, common.astype(np.int32))


class Links(NamedTuple):
    """All pairs of a source and a target token in some sentences.

    Attributes:
        pairs: different pairs, as source token << 32 | target token, or their places among all pairs.
        pair: of each link, target token by target token, its place in `pairs`.
        per_target: number of links of each target token, the length of its source sentence.
    """

    pairs: np.ndarray
    pair: np.ndarray
    per_target: np.ndarray


def translation_probabilities(corpus: EncodedCorpus) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source tokens, target tokens and p(target | source) of all pairs that occur in a sentence, (pairs,) each."""
    parts = list(links_of(corpus))
    pairs = np.unique(np.concatenate([part.pairs for part in parts]))
    parts = [part._replace(pairs=np.searchsorted(pairs, part.pairs)) for part in parts]
    source, target = pairs >> 32, pairs & 0xFFFFFFFF
    probabilities = np.ones(len(pairs))
    for _ in range(ITERATIONS):
        counts = np.zeros(len(pairs))
        for part in parts:
            shares = probabilities[part.pairs][part.pair]
            starts = np.cumsum(part.per_target) - part.per_target
            shares /= np.repeat(np.add.reduceat(shares, starts), part.per_target)
            counts[part.pairs] += np.bincount(part.pair, shares, len(part.pairs))
        probabilities = counts / np.bincount(source, counts)[source]
    return source, target, probabilities


def links_of(corpus: EncodedCorpus) -> Iterator[Links]:
    """The links of a corpus, or of evenly spaced sentences of it with about `MOST_LINKS`, some sentences at a time."""
    links = corpus.source_lengths.astype(np.int64) * corpus.target_lengths
    rows = links.nonzero()[0]
    rows = rows[:: -(-int(links.sum()) // MOST_LINKS)]
    bounds = np.cumsum(links[rows])
    groups = np.searchsorted(bounds, np.arange(LINKS_TOGETHER, bounds[-1], LINKS_TOGETHER))
    for part in np.split(rows, groups):
        if not len(part):
            continue
        chosen = corpus.select(part)
        per_target = np.repeat(chosen.source_lengths, chosen.target_lengths)
        first = np.repeat(chosen.arrays["source_offsets"][:-1], chosen.target_lengths)
        places = np.arange(per_target.sum()) + np.repeat(first - (np.cumsum(per_target) - per_target), per_target)
        sources = chosen.arrays["source_ids"][places].astype(np.int64)
        targets = np.repeat(chosen.arrays["target_ids"], per_target)
        pairs, pair = np.unique(sources << 32 | targets, return_inverse=True)
        yield Links(pairs, pair.astype(np.int32), per_target)
