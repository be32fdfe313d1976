# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Beam search for translations that have given phrases, by dynamic beam allocation (Post and Vilar 2018).

The beam of a sentence is shared among hypotheses with no token, one token, two tokens ... of its phrases. Each
hypothesis may go on with its most probable tokens or with a token of a phrase that it does not have yet; one that has
all of them may end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .search import IMPOSSIBLE, Array, BeamSearch, Decoder, SearchSettings, is_any_of, processed_scores

Phrase = Sequence[Sequence[int]]
"""Alternatives of a phrase as token ids, one of which a translation must have."""
Candidate = tuple[float, int, int]
"""Total score, parent and token."""
NOTHING: Candidate = (-np.inf, 0, 0)
LettersAdded = Callable[[int, int], int]
"""The number of letters by which the second token lengthens a word that ends with the first."""
ENDING = 2
"""Most letters of an ending that a phrase may have in addition."""
MISSING = -1.0e5
"""Added to the score of a hypothesis at the limit of its length for each token that it lacks and a better one has."""


class PhraseState(NamedTuple):
    """The part of its phrases that a hypothesis contains.

    Attributes:
        phrases: those of its sentence.
        missing: the numbers of those that it does not have.
        letters: tells where words end.
        begun: phrases that its last tokens begin, as number, alternative and length.
        ended: the phrase that its last tokens complete, and letters that follow it: those of an ending, or the
            hypothesis has another word in the place of the phrase.
        last: its last token.
    """

    phrases: Sequence[Phrase]
    missing: tuple[int, ...]
    letters: LettersAdded
    begun: frozenset[tuple[int, int, int]] = frozenset()
    ended: tuple[int, int] | None = None
    last: int | None = None

    @classmethod
    def of(cls, phrases: Sequence[Phrase], letters: LettersAdded) -> "PhraseState":
        return cls(phrases, tuple(range(len(phrases))), letters)

    @property
    def lacking(self) -> int:
        """Number of tokens that are missing at most."""
        begun = max((length for number, _, length in self.begun if number in self.missing), default=0)
        return sum(length_of(self.phrases[number]) for number in self.missing) - begun

    def needed(self) -> set[int]:
        """The tokens that begin or continue a missing phrase."""
        first = {alternative[0] for number in self.missing for alternative in self.phrases[number]}
        begun = (place for place in self.begun if place[0] in self.missing)
        return first | {self.phrases[number][which][length] for number, which, length in begun}

    def after(self, token: int) -> "PhraseState":
        """The progress of the hypothesis with another token."""
        missing, ended = self.missing, None
        if self.ended is not None and self.last is not None and (added := self.letters(self.last, token)):
            number, before = self.ended
            ended = number, before + added
            if before + added > ENDING:
                missing, ended = tuple(sorted((*missing, number))), None
        places = {(n, which, 0) for n in missing for which in range(len(self.phrases[n]))} | self.begun
        begun = {(n, which, length + 1) for n, which, length in places if self.phrases[n][which][length] == token}
        if self.last is not None and any(length == 1 for *_, length in begun) and self.letters(self.last, token):
            begun = {place for place in begun if place[2] > 1}  # a phrase begins where a word does
        complete = [n for n, which, length in sorted(begun) if length == len(self.phrases[n][which]) and n in missing]
        if complete:
            missing, ended = tuple(n for n in missing if n != complete[0]), (complete[0], 0)
            begun = {place for place in begun if place[0] == complete[0]}  # it may begin a longer alternative
        begun = {(n, which, length) for n, which, length in begun if length < len(self.phrases[n][which])}
        return self._replace(missing=missing, begun=frozenset(begun), ended=ended, last=token)


def length_of(phrase: Phrase) -> int:
    return max(map(len, phrase))


def tokens_of(phrases: Sequence[Phrase]) -> Array:
    """The tokens of all alternatives of phrases, int32."""
    return np.array([token for phrase in phrases for form in phrase for token in form], np.int32)


def beams_for(phrases: Sequence[Phrase]) -> int:
    """Beams that give each number of tokens of the phrases at least one, in steps of 4, so that batches are few."""
    return 4 + sum(map(length_of, phrases)) // 4 * 4


class ConstrainedSearch(BeamSearch):
    """`BeamSearch` for hypotheses with phrases, from the `PhraseState` of each sentence."""

    def __init__(self, prompt: Tensor, settings: SearchSettings, progress: Sequence[PhraseState]):
        super().__init__(prompt, settings)
        self.progress = [[own] * settings.num_beams for own in progress]

    def next_tokens(self, decoder: Decoder, recorded: list[Tensor]) -> tuple[Array, Array]:
        """Log-probabilities and ids of the best tokens of each row and of those that it needs, (rows, candidates)."""
        _, scores = processed_scores(decoder, self.sequences, self.settings, recorded)
        best, tokens = decoder.top_k(scores, self.settings.candidates)
        needed = [sorted(progress.needed()) for row in self.progress for progress in row]
        added = np.zeros((len(tokens), max(map(len, needed))), np.int64)
        values = np.full(added.shape, -np.inf, np.float32)
        for row, ids in enumerate(needed):
            new = [token for token in ids if token not in tokens[row]]
            added[row, : len(new)] = new
            values[row, : len(new)] = scores[row, new]
        return np.concatenate((best, values), axis=1), np.concatenate((tokens, added), axis=1)

    def step(self, values: Array, tokens: Array) -> Array:
        rows = super().step(values, tokens)
        parents = rows % self.settings.num_beams
        newest = self.beams.paths[:, :, 0, -1]
        for number, before in enumerate(self.progress):
            chosen = zip(parents[number].tolist(), newest[number].tolist(), strict=True)
            self.progress[number] = [before[parent].after(token) for parent, token in chosen]
        return rows

    def keep(self, sentences: Array) -> None:
        super().keep(sentences)
        self.progress = [row for row, kept in zip(self.progress, sentences, strict=True) if kept]

    def _best_continuations(self, values: Array, tokens: Array) -> tuple[Array, Array, Array]:
        """First those that end, if there are any, then as many that go on, of each sentence."""
        beams = self.settings.num_beams
        totals = values.reshape(len(self.progress), beams, -1) + self.beams.scores[:, :, None]
        ids = tokens.reshape(totals.shape)
        found = [self._allocated(number, totals[number], ids[number]) for number in range(len(self.progress))]
        ending, running = zip(*found, strict=True)
        sides = [ending, running] if any(ending) else [running]
        filled = [[(*own, *[NOTHING] * (beams - len(own))) for own in side] for side in sides]
        columns = np.concatenate([np.array(side, dtype=object) for side in filled], axis=1)
        best, parents, chosen = (columns[:, :, field] for field in range(3))
        rows = parents.astype(np.int64) + beams * np.arange(len(parents))[:, None]
        return rows, chosen.astype(np.int64), best.astype(np.float32)

    def _allocated(self, sentence: int, totals: Array, ids: Array) -> tuple[list[Candidate], list[Candidate]]:
        """The candidates of a sentence that end and those that go on, best first, at most `num_beams` each."""
        beams, progress = self.settings.num_beams, self.progress[sentence]
        is_last = self.length + 1 >= self.beams.limits[sentence]
        wanted = np.array([np.isin(row, list(each.needed())) for row, each in zip(ids, progress, strict=True)])
        wanted[:, 0] = True
        wanted.flat[np.argsort(-totals, axis=None, kind="stable")[: self.settings.candidates]] = True
        ends = is_any_of(ids, self.settings.eos_token_ids) | is_last
        ending: set[Candidate] = set()
        banks: dict[int, list[Candidate]] = {}
        for parent, place in np.argwhere(wanted & (totals > IMPOSSIBLE / 2)).tolist():
            token = int(ids[parent, place])
            lacking = progress[parent].after(token).lacking
            candidate = (float(totals[parent, place]), parent, token)
            if ends[parent, place] and (not lacking or is_last):
                ending.add(candidate)
            if candidate in ending or not ends[parent, place]:
                banks.setdefault(lacking, []).append(candidate)
        if is_last:
            least = 0 if self.hypotheses.lengths[sentence].any() else min(banks, default=0)
            found = [(own[0] + MISSING * (n - least), *own[1:]) for n, bank in banks.items() for own in bank]
            return sorted(found, reverse=True)[:beams], []
        running = {lacking: [each for each in found if each not in ending] for lacking, found in banks.items()}
        return [each for each in shared(banks, beams) if each in ending], shared(running, beams)


def shared(banks: Mapping[int, list[Candidate]], beams: int) -> list[Candidate]:
    """The best candidates of each bank, which get equally many of the beams as far as they can use them."""
    left = {lacking: sorted(found, reverse=True) for lacking, found in sorted(banks.items()) if found}
    chosen: list[Candidate] = []
    while left and len(chosen) < beams:
        for lacking in list(left)[: beams - len(chosen)]:
            chosen.append(left[lacking].pop(0))
            if not left[lacking]:
                del left[lacking]
    return sorted(chosen, reverse=True)


def first_progress(
    phrases: Sequence[Sequence[Phrase]], sentences: int, letters: LettersAdded | None
) -> Sequence[PhraseState]:
    """Raise `ValueError` unless there is a list of phrases for each sentence, none of them empty."""
    if len(phrases) != sentences:
        raise ValueError(f"phrases: {len(phrases)} lists given for {sentences} sentences")
    if not all(phrase and all(phrase) for own in phrases for phrase in own):
        raise ValueError("phrases: an empty phrase given")
    return [PhraseState.of(own, letters or (lambda last, token: 0)) for own in phrases]
