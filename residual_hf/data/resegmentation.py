# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Random segmentations of a word: BPE-dropout and sampling from a unigram language model.

The `tokenizers` library has both (`BPE.dropout`, `Unigram.alpha`), but draws from a generator that cannot be seeded,
and a run that is resumed has to see the segmentations that it would have seen.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any

from tokenizers import Tokenizer

from residual_hf.errors import InputError

Word = tuple[int, ...]
"""The token ids of one segmentation of a word."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_MOST_REMEMBERED = 100_000  # keys
_LONGEST_REMEMBERED = 40  # tokens of a key; tokenizers that do not split text into words have sentences for words


class _Memory(dict):
    """What `compute(key)` returned for keys of token ids; bounded, and not pickled."""

    def __init__(self, compute: Callable[[Word], Any]) -> None:
        self.compute = compute

    def __missing__(self, key: Word) -> Any:
        value = self.compute(key)
        if len(key) <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[key] = value
        return value

    def __reduce__(self) -> tuple:
        return _Memory, (self.compute,)


class _Vocabulary:
    """Reads ids as characters.

    `untouched`: tokens that no other tokens may stand for: special tokens, language tags, the unknown token.
    """

    def __init__(self, tokenizer: Tokenizer, ids: dict[str, int], unknown: int | None, byte_fallback: bool) -> None:
        self.ids = ids
        self.tokens = {number: token for token, number in ids.items()}
        self.untouched = {*tokenizer.get_added_tokens_decoder(), unknown}
        self.bytes = {}
        if byte_fallback:
            for token, number in ids.items():
                if match := _BYTE.fullmatch(token):
                    self.bytes[number] = bytes.fromhex(match[1])

    def characters(self, word: Word) -> list[tuple[str, Word]] | None:
        """Each character with the byte tokens that the word has for it, or no ids; None for a word left as it is."""
        found: list[tuple[str, Word]] = []
        spelled: list[int] = []
        for number in word:
            if number in self.untouched or number not in self.tokens:
                return None
            if number not in self.bytes:
                found.extend((character, ()) for character in self.tokens[number])
                continue
            spelled.append(number)
            try:
                character = b"".join(self.bytes[one] for one in spelled).decode()
            except UnicodeDecodeError:
                continue  # the bytes that are still to come complete it
            found.append((character, tuple(spelled)))
            spelled = []
        return None if spelled else found

    def spell(self, character: str) -> Word:
        """The byte tokens of a character, none where one is missing."""
        spelled = [self.ids.get(f"<0x{byte:02X}>") for byte in character.encode()]
        return tuple(spelled) if self.bytes.keys() >= set(spelled) else ()


class BpeDropout:
    """BPE-dropout (Provilkov et al. 2020): in every step each merge that is possible is left out at random.

    Of the remaining merges that of the highest priority is made, the leftmost of equal ones; when none remains, the
    word is segmented. With `dropout` 0 this is plain BPE, with 1 the word is cut into characters.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            if model.get(name):
                raise InputError(f"sampling.bpe_dropout: the tokenizer has a {name}, {model[name]!r}; allowed is none")
        ids = model["vocab"]
        self.dropout = dropout
        self._vocabulary = _Vocabulary(tokenizer, ids, ids.get(model["unk_token"]), bool(model["byte_fallback"]))
        self._ranks: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (left, right) in enumerate(model["merges"]):
            self._ranks.setdefault((ids[left], ids[right]), (rank, ids[left + right]))
        self._starts = _Memory(self._start)
        self._merges = _Memory(self._possible_merges)

    def __call__(self, word: Word, random: Random) -> Word:
        """Another segmentation of the word that these ids spell."""
        word = self._starts[word]
        while merges := self._merges[word]:
            drawn, left_out, bound = random.random(), 0, self.dropout
            while drawn < bound and left_out < len(merges):  # the first n are left out with probability dropout^n
                left_out += 1
                bound *= self.dropout
            if left_out == len(merges):
                break
            place, merged = merges[left_out]
            word = (*word[:place], merged, *word[place + 2 :])
        return word

    def _start(self, word: Word) -> Word:
        """The word in characters."""
        characters = self._vocabulary.characters(word)
        if characters is None or any(not spelled and c not in self._vocabulary.ids for c, spelled in characters):
            return word
        return tuple(n for c, spelled in characters for n in spelled or (self._vocabulary.ids[c],))

    def _possible_merges(self, word: Word) -> list[tuple[int, int]]:
        """Place and result of each merge, the most important first."""
        possible = []
        for place, pair in enumerate(zip(word, word[1:], strict=False)):
            if pair in self._ranks:
                rank, merged = self._ranks[pair]
                possible.append((rank, place, merged))
        return [(place, merged) for _, place, merged in sorted(possible)]


class UnigramSampling:
    """Subword regularisation (Kudo 2018): a segmentation x is drawn with a probability proportional to P(x)^alpha.

    From all segmentations, by forward filtering and backward sampling. The greater `alpha`, the more often the best
    one comes; with 0 all are alike. A character without an entry has the score that SentencePiece gives it, 10 below
    the lowest, and becomes bytes.
    """

    def __init__(self, tokenizer: Tokenizer, alpha: float) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        ids = {piece: number for number, (piece, _) in enumerate(model["vocab"])}
        self.alpha = alpha
        self._vocabulary = _Vocabulary(tokenizer, ids, model["unk_id"], bool(model["byte_fallback"]))
        barred = self._vocabulary.untouched | set(self._vocabulary.bytes)
        self._scores = {piece: score for number, (piece, score) in enumerate(model["vocab"]) if number not in barred}
        self._longest = max(map(len, self._scores), default=1)
        self._unknown = min(self._scores.values(), default=0.0) - 10.0
        self._lattices = _Memory(self._lattice)

    def __call__(self, word: Word, random: Random) -> Word:
        """Another segmentation of the word that these ids spell."""
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
        """For each end the pieces that may stand before it, (start, ids), and the running sums of their weights."""
        characters = self._vocabulary.characters(word)
        if characters is None:
            return None
        text = [character for character, _ in characters]
        lattice: list[tuple[list[float], list[tuple[int, Word]]]] = [([], [])]
        total = [0.0]  # log of the summed weights of all segmentations of the first characters
        for end, (character, spelled) in enumerate(characters, start=1):
            logs, choices = [], []
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
