"""Random segmentations of words: BPE-dropout and sampling from a unigram language model.

The `tokenizers` library implements both (`BPE.dropout`, `Unigram.alpha`), but its random generator cannot be seeded,
and a resumed run must see the segmentations that it would have seen.
"""

import json
import math
from bisect import bisect
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from random import Random
from typing import Any

from tokenizers import Tokenizer

from residual_hf.base.errors import InputError
from residual_hf.model.options import refusal

from .data_settings import SIDES, SubwordRegularizationSettings
from .tokenizer import backend_of

GROWTH = 1.3
"""Roughly how many times longer sentences become, at the usual rates of both methods."""

Word = tuple[int, ...]
"""The token ids of one segmentation of a word."""

Resegment = Callable[[Word, Random], Word]
"""Draws another segmentation of the word that some token ids spell."""

_CACHED_KEYS = 100_000
_LONGEST_KEY = 40  # tokens; a tokenizer that does not split text into words has sentences for words


def resegmenters(tokenizer: Any, settings: SubwordRegularizationSettings | None) -> dict[str, Resegment]:
    """A function for each side that is sampled, `"source"` and `"target"`; none without sampling.

    Raises `InputError` unless `tokenizer` is fast and has a BPE or unigram model, or is a `ResidualTokenizer` of two.
    """
    if settings is None:
        return {}
    chosen: dict[str, Resegment] = {}
    for side in SIDES[settings.sides]:
        backend = backend_of(tokenizer, side)
        model = type(backend.model if backend else tokenizer).__name__
        kind = {"BPE": "bpe", "Unigram": "unigram", "WordLevel": "pretokenized"}.get(model, model)
        if kind not in settings.tokenizer_kinds:
            raise InputError(refusal("tokenizer.kind", kind, " or ".join(settings.tokenizer_kinds)))
        if settings.bpe_dropout is not None:
            chosen[side] = BpeDropout(backend, settings.bpe_dropout)
        elif settings.unigram_alpha is not None:
            chosen[side] = UnigramSampling(backend, settings.unigram_alpha)
    return {} if settings.bpe_dropout == 0 else chosen


class _Cache(dict):
    """A bounded cache of `compute(key)` for keys of token ids; pickled without its content."""

    def __init__(self, compute: Callable[[Word], Any]) -> None:
        self.compute = compute

    def __missing__(self, key: Word) -> Any:
        value = self.compute(key)
        if len(key) <= _LONGEST_KEY:
            if len(self) >= _CACHED_KEYS:
                self.clear()
            self[key] = value
        return value

    def __reduce__(self) -> tuple:
        return _Cache, (self.compute,)


class _Vocabulary:
    """Spells token ids as characters.

    `untouched`: tokens that are never resegmented: special tokens, language tags and the unknown token.
    """

    def __init__(self, tokenizer: Tokenizer, ids: dict[str, int], unknown: int | None, byte_fallback: bool) -> None:
        self.ids = ids
        self.tokens = {number: token for token, number in ids.items()}
        self.untouched = {*tokenizer.get_added_tokens_decoder(), unknown}
        in_bytes = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)} if byte_fallback else {}
        self.bytes = {ids[token]: byte for token, byte in in_bytes.items() if token in ids}

    def characters(self, word: Word) -> list[tuple[str, Word]] | None:
        """Each character, with its byte tokens if the word spells it in bytes; None for a word that stays as it is."""
        found: list[tuple[str, Word]] = []
        spelled: list[int] = []
        for number in word:
            if number in self.untouched or number not in self.tokens:
                return None
            if number not in self.bytes:
                found.extend((character, ()) for character in self.tokens[number])
                continue
            spelled.append(number)
            with suppress(UnicodeDecodeError):  # of an incomplete character
                found.append((b"".join(self.bytes[one] for one in spelled).decode(), tuple(spelled)))
                spelled = []
        return None if spelled else found

    def spell(self, character: str) -> Word:
        """The byte tokens of a character; none if the vocabulary lacks one of them."""
        spelled = [self.ids.get(f"<0x{byte:02X}>", -1) for byte in character.encode()]
        return tuple(spelled) if self.bytes.keys() >= set(spelled) else ()


class BpeDropout:
    """BPE-dropout (Provilkov et al. 2020): at every step each possible merge is dropped with probability `dropout`.

    The remaining merge of the highest priority is applied, the leftmost of equal ones, until none remains. 0 is plain
    BPE, 1 segments into characters.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(name):
                raise InputError(
                    f"subword_regularization.bpe_dropout: the tokenizer has a {name} {model[name]!r}, must have none"
                )
        ids = model["vocab"]
        self.dropout = dropout
        self._vocabulary = _Vocabulary(tokenizer, ids, ids.get(model["unk_token"]), bool(model["byte_fallback"]))
        self._ranks: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (left, right) in enumerate(model["merges"]):
            self._ranks.setdefault((ids[left], ids[right]), (rank, ids[left + right]))
        self._starts = _Cache(self._start)
        self._merges = _Cache(self._possible_merges)

    def __call__(self, word: Word, random: Random) -> Word:
        word = self._starts[word]
        while merges := self._merges[word]:
            drawn, left_out, bound = random.random(), 0, self.dropout
            while drawn < bound and left_out < len(merges):  # the first n are dropped with probability dropout^n
                left_out += 1
                bound *= self.dropout
            if left_out == len(merges):
                break
            place, merged = merges[left_out]
            word = (*word[:place], merged, *word[place + 2 :])
        return word

    def _start(self, word: Word) -> Word:
        """The characters of the word."""
        characters = self._vocabulary.characters(word)
        if characters is None or any(not spelled and c not in self._vocabulary.ids for c, spelled in characters):
            return word
        return tuple(n for c, spelled in characters for n in spelled or (self._vocabulary.ids[c],))

    def _possible_merges(self, word: Word) -> list[tuple[int, int]]:
        """Position and result of each merge, the highest priority first."""
        pairs = enumerate(zip(word, word[1:], strict=False))
        possible = sorted((self._ranks[pair], place) for place, pair in pairs if pair in self._ranks)
        return [(place, merged) for (_, merged), place in possible]


class UnigramSampling:
    """Subword regularization (Kudo 2018): draws a segmentation x with a probability proportional to P(x)^alpha.

    Draws from all segmentations, by forward filtering and backward sampling. Higher values of `alpha` favour the best
    segmentation; 0 is uniform. A character without an entry becomes bytes, with SentencePiece's score: 10 below the
    lowest one.
    """

    def __init__(self, tokenizer: Tokenizer, alpha: float) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        ids = {piece: number for number, (piece, _) in enumerate(model["vocab"])}
        self.alpha = alpha
        self._vocabulary = _Vocabulary(tokenizer, ids, model["unk_id"], bool(model["byte_fallback"]))
        excluded = self._vocabulary.untouched | set(self._vocabulary.bytes)
        self._scores = {piece: score for number, (piece, score) in enumerate(model["vocab"]) if number not in excluded}
        self._longest = max(map(len, self._scores), default=1)
        self._unknown = min(self._scores.values(), default=0.0) - 10.0
        self._lattices = _Cache(self._lattice)

    def __call__(self, word: Word, random: Random) -> Word:
        lattice = self._lattices[word]
        if lattice is None:
            return word
        end = len(lattice) - 1
        pieces: list[Word] = []
        while end > 0:
            sums, choices = lattice[end]
            end, piece = choices[bisect(sums, random.random() * sums[-1], hi=len(sums) - 1)]
            pieces.append(piece)
        return tuple(number for piece in reversed(pieces) for number in piece)

    def _lattice(self, word: Word) -> list[tuple[list[float], list[tuple[int, Word]]]] | None:
        """For each end position, the cumulative weights of the pieces that end there, and these as (start, ids)."""
        characters = self._vocabulary.characters(word)
        if characters is None:
            return None
        text = [character for character, _ in characters]
        lattice: list[tuple[list[float], list[tuple[int, Word]]]] = [([], [])]
        total = [0.0]  # log of the summed weights of all segmentations of the first characters
        for end, (character, spelled) in enumerate(characters, start=1):
            logs: list[float] = []
            choices: list[tuple[int, Word]] = []
            for start in range(max(0, end - self._longest), end):
                piece = "".join(text[start:end])
                if piece in self._scores and total[start] > -math.inf:
                    logs.append(total[start] + self.alpha * self._scores[piece])
                    choices.append((start, (self._vocabulary.ids[piece],)))
            in_bytes = () if character in self._scores else spelled or self._vocabulary.spell(character)
            if in_bytes and total[end - 1] > -math.inf:
                logs.append(total[end - 1] + self.alpha * self._unknown)
                choices.append((end - 1, in_bytes))
            highest = max(logs, default=-math.inf)
            sums = list(accumulate(math.exp(log - highest) for log in logs))
            total.append(highest + math.log(sums[-1]) if sums else -math.inf)
            lattice.append((sums, choices))
        return lattice
