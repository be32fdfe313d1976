# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Greedy search, sampling and beam search with the results of Transformers' `generate` for a fraction of its work.

Sentences that have finished leave the batch, and every row keeps its best candidates only. The rules (which candidates
finish, when a sentence ends, how scores are normalized) are those of `GenerationMixin._sample` and `_beam_search`.
`native/search.c` has them too, in the same order, and gives the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

IMPOSSIBLE = np.float32(-1.0e9)  # the score of what must not be chosen, as in Transformers
Array = np.ndarray
Processor = Callable[[Tensor, Tensor], Tensor]


class Decoder(Protocol):
    """Decodes one token per row and step.

    At first each sentence has a row; rows that are selected are the beams of the first sentence, of the second, and so
    forth. What a search sees of each step is small, and NumPy takes a fraction of PyTorch's time for small arrays.
    """

    def step(self, tokens: Array) -> Tensor:
        """Feed one token per row, (rows,); returns logits (rows, vocabulary) in float32."""

    def best(self, tokens: Array, count: int) -> tuple[Array, Array]:
        """Feed one token per row; returns log-probabilities and ids of the best next ones, (rows, count) each."""
        return self.top_k(self.log_softmax(self.step(tokens)), count)

    def log_softmax(self, logits: Tensor) -> Tensor:
        """Log-probabilities of logits (rows, vocabulary)."""
        return logits.log_softmax(dim=-1)

    def top_k(self, scores: Tensor, count: int) -> tuple[Array, Array]:
        """The best columns of each row, at most `count`: values in descending order and places."""
        count = min(count, scores.shape[1])
        best = scores.topk(count) if count > 1 else scores.max(dim=1, keepdim=True)  # of equal ones the first
        return best[0].numpy(), best[1].numpy()

    def select(self, rows: Array) -> None:
        """Continue with these rows: beams are reordered, finished sentences leave."""

    def search(self, prompt: Tensor, settings: "SearchSettings") -> "SearchResult | None":
        """The result of a whole search, from a decoder that has one of its own for these settings."""
        return None


@dataclass
class SearchSettings:
    """The rules of a search.

    Args:
        limits: most tokens of each sentence, with its prompt, (sentences,).
        eos_token_ids: tokens that end a hypothesis.
        fill_token_id: what follows the end of a sequence.
        early_stopping: True, False or "never", as in `GenerationConfig`.
        min_length: least tokens with the prompt, before one of `eos_token_ids` may follow.
        processors: functions of sequences (rows, length) and scores (rows, vocabulary), and the lengths at which each
            applies. They treat rows independently, but may count on all of them.
        record_scores: keep the processed scores of every step.
        keep_finished: sentences that have finished stay in the batch, for these scores or for processors.
        do_sample: draw tokens instead of taking the most probable; without beams only.
        prompt_is_read: the decoder has read all of the prompt but its newest tokens.
    """

    limits: Tensor
    eos_token_ids: Sequence[int]
    fill_token_id: int
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    min_length: int = 0
    processors: Sequence[tuple[Processor, range]] = ()
    record_scores: bool = False
    keep_finished: bool = False
    do_sample: bool = False
    prompt_is_read: bool = False

    @property
    def candidates(self) -> int:
        """Continuations to look at: enough that `num_beams` of them are left where all others end."""
        return 1 if self.num_beams == 1 else max(2, 1 + len(self.eos_token_ids)) * self.num_beams


@dataclass
class SearchResult:
    """The sequences that a search has found.

    Attributes:
        sequences: (sentences * num_return_sequences, length), the best of each sentence first.
        sequences_scores: sums of log-probabilities over length ** length_penalty; beam search only.
        beam_indices: the row that each generated token was chosen from, -1 after the end; beam search only.
        log_probs: sums of the log-probabilities of the tokens, before processors, 0 for a token that processors force;
            greedy search only.
        scores: for each step the processed scores of all rows, if recorded.
    """

    sequences: Tensor
    sequences_scores: Tensor | None = None
    beam_indices: Tensor | None = None
    log_probs: Tensor | None = None
    scores: list[Tensor] = field(default_factory=list)


def greedy_search(decoder: Decoder, prompt: Tensor, settings: SearchSettings) -> SearchResult:
    """The most probable token at each step, or one that is drawn, from a prompt (sentences, length)."""
    read_prompt(decoder, prompt, settings)
    result = decoder.search(prompt, settings)
    if result is not None:
        return result
    length, sentence = prompt.shape[1], np.arange(len(prompt))
    found = first_paths(prompt, settings)[:, 0, 0]
    limits, sequences, ended = settings.limits.numpy(), found.copy(), np.zeros(len(prompt), bool)
    totals = np.zeros(len(prompt), np.float32)
    recorded: list[Tensor] = []

    def draw(scores: Tensor) -> Tensor:
        """A token of each row, (rows, 1). Finished sentences use random numbers too, as in Transformers."""
        weights = scores.new_ones(len(prompt), scores.shape[1])
        weights[torch.from_numpy(sentence)] = scores.softmax(dim=-1)
        return torch.multinomial(weights, 1)[torch.from_numpy(sentence)]

    while True:
        given = next_tokens(decoder, sequences[:, :length], settings, recorded, draw if settings.do_sample else None)
        log_probs, candidates = given
        rows, best = np.arange(len(sentence)), log_probs.argmax(axis=1)
        tokens = candidates[rows, best]
        if settings.keep_finished:
            tokens = np.where(ended, settings.fill_token_id, tokens)
        sequences[:, length] = tokens
        totals[sentence] += np.where(ended, np.float32(0), log_probs[rows, best])
        length += 1
        ended = ended | is_any_of(tokens, settings.eos_token_ids) | (length >= limits)
        if not ended.any():
            continue
        found[sentence] = sequences
        if ended.all():
            tensors = torch.from_numpy(found[:, :length]), torch.from_numpy(totals)
            return SearchResult(tensors[0], log_probs=tensors[1], scores=recorded)
        if not settings.keep_finished:
            kept = (~ended).nonzero()[0]
            decoder.select(kept)
            sentence, limits, sequences, ended = sentence[kept], limits[kept], sequences[kept], ended[kept]


def beam_search(
    decoder: Decoder, prompt: Tensor, settings: SearchSettings, search: "BeamSearch | None" = None
) -> SearchResult:
    """The best hypotheses that a beam of `num_beams` finds, from a prompt (sentences, length).

    `search`: chooses among continuations; by default the most probable ones.
    """
    read_prompt(decoder, prompt, settings)
    result = decoder.search(prompt, settings) if search is None else None
    if result is not None:
        return result
    search, closed_hypotheses = search or BeamSearch(prompt, settings), []
    recorded: list[Tensor] = []
    decoder.select(np.arange(len(prompt)).repeat(settings.num_beams))
    while True:
        values, tokens = search.next_tokens(decoder, recorded)
        rows = search.step(values, tokens)
        is_open = search.beams.is_open
        if not is_open.all():
            if not is_open.any():
                break
            if not settings.keep_finished:
                closed_hypotheses.append(search.hypotheses.take(~is_open))
                rows = rows[is_open]
                search.keep(is_open)
        decoder.select(rows.reshape(-1))
    found = Hypotheses.join([*closed_hypotheses, search.hypotheses])
    return found.take(found.sentence.argsort()).result(prompt.shape[1], settings.num_return_sequences, recorded)


def read_prompt(decoder: Decoder, prompt: Tensor, settings: SearchSettings) -> None:
    """Feed all of a prompt but its newest tokens."""
    for token in () if settings.prompt_is_read else prompt.numpy().T[:-1]:
        decoder.step(token)


def first_paths(prompt: Tensor, settings: SearchSettings) -> Array:
    """Paths as in `Hypotheses` before anything is found."""
    paths = np.full((len(prompt), settings.num_beams, 2, int(settings.limits.max())), -1, np.int64)
    paths[:, :, 0] = settings.fill_token_id
    paths[:, :, 0, : prompt.shape[1]] = prompt.numpy()[:, None]
    return paths


def next_tokens(
    decoder: Decoder,
    sequences: Array,
    settings: SearchSettings,
    recorded: list[Tensor],
    draw: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Array, Array]:
    """Log-probabilities and ids of at least the best `settings.candidates` tokens to follow, (rows, candidates).

    Processors change log-probabilities in beam search, as in Transformers; in greedy search they change logits, and
    only the choice depends on them, except that a token without alternatives has probability 1, too. `recorded` gets
    the scores of all tokens if the settings ask for it. `draw` chooses a token of each row from scores.
    """
    length, newest = sequences.shape[1], sequences[:, -1]
    banned = settings.eos_token_ids if length < settings.min_length else ()
    has_processors = any(length in lengths for _, lengths in settings.processors)
    if not has_processors and not settings.record_scores and draw is None:
        values, ids = decoder.best(newest, settings.candidates + len(banned))
        if banned:
            values[is_any_of(ids, banned)] = -np.inf
        return values, ids
    log_probs, scores = processed_scores(decoder, sequences, settings, recorded)
    if draw is None:
        best, chosen = decoder.top_k(scores, settings.candidates)
    else:
        best = chosen = draw(scores).numpy()
    if settings.num_beams == 1:
        forced = scores.isneginf().sum(dim=1, keepdim=True) == scores.shape[1] - 1
        best = log_probs.gather(1, torch.from_numpy(chosen)).masked_fill(forced, 0.0).numpy()
    return best, chosen


def processed_scores(
    decoder: Decoder, sequences: Array, settings: SearchSettings, recorded: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of all tokens to follow, and the scores that processors make of them, (rows, vocabulary)."""
    length = sequences.shape[1]
    logits = decoder.step(sequences[:, -1])
    log_probs = decoder.log_softmax(logits)
    scores = log_probs if settings.num_beams > 1 else logits
    if length < settings.min_length:
        ends = [token for token in settings.eos_token_ids if 0 <= token < scores.shape[1]]
        scores = scores.index_fill(1, torch.tensor(ends, dtype=torch.long), -torch.inf)
    for processor, lengths in settings.processors:
        if length in lengths:
            scores = processor(torch.from_numpy(sequences), scores)
    if settings.record_scores:
        recorded.append(scores.clone())
    return log_probs, scores


@dataclass
class ArrayGroup:
    """Arrays that share their first dimension."""

    def take(self, index: Array) -> Any:
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def join(cls, parts: Sequence[Any]) -> Any:
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


@dataclass
class Beams(ArrayGroup):
    """The running hypotheses of each sentence, best first.

    Attributes:
        paths: tokens, and the row that each of them was chosen from, (sentences, beams, 2, length).
        scores: sums of log-probabilities, (sentences, beams).
        limits: most tokens, (sentences,).
        goal: normalized score above which a running hypothesis can change the result, (sentences,).
        is_open: whether one still can, (sentences,).
    """

    paths: Array
    scores: Array
    limits: Array
    goal: Array
    is_open: Array


@dataclass
class Hypotheses(ArrayGroup):
    """The finished hypotheses of each sentence, best first.

    Attributes:
        sentence: number of the sentence in the input, (sentences,).
        paths: as in `Beams`, up to the longest limit: (sentences, beams, 2, limit), with rows -1 after the end.
        scores: normalized by length, IMPOSSIBLE where nothing is found yet, (sentences, beams).
        lengths: number of generated tokens, 0 where nothing is found yet, (sentences, beams).
    """

    sentence: Array
    paths: Array
    scores: Array
    lengths: Array

    @classmethod
    def none(cls, prompt: Tensor, settings: SearchSettings) -> "Hypotheses":
        """Those of a search that has found nothing yet."""
        scores = np.full((len(prompt), settings.num_beams), IMPOSSIBLE, np.float32)
        return cls(np.arange(len(prompt)), first_paths(prompt, settings), scores, np.zeros(scores.shape, np.int64))

    def result(self, prompt_length: int, count: int, recorded: list[Tensor]) -> SearchResult:
        """The best `count` of each sentence."""
        length = prompt_length + int(self.lengths[:, :count].max())
        paths = torch.from_numpy(self.paths[:, :count, :, :length]).flatten(0, 1)
        scores = torch.from_numpy(self.scores[:, :count]).flatten()
        return SearchResult(paths[:, 0], scores, paths[:, 1, prompt_length:], scores=recorded)


class BeamSearch:
    """Which hypotheses run on and which are finished, for the sentences that are still in the batch."""

    def __init__(self, prompt: Tensor, settings: SearchSettings):
        self.settings = settings
        self.prompt_length = self.length = prompt.shape[1]
        self.hypotheses = none = Hypotheses.none(prompt, settings)
        self.rows_before = np.zeros((len(prompt), 1), np.int64)  # of finished sentences that have left the batch
        running = none.scores.copy()
        running[:, 0] = 0.0  # all beams begin alike, so only the first is extended
        is_open, limits = np.ones(len(prompt), bool), settings.limits.numpy()
        self.beams = Beams(none.paths[..., : self.length], running, limits, none.scores[:, 0], is_open)

    @property
    def sequences(self) -> Array:
        """(rows, length)"""
        return self.beams.paths[:, :, 0].reshape(-1, self.length)

    def next_tokens(self, decoder: Decoder, recorded: list[Tensor]) -> tuple[Array, Array]:
        """The candidates of a step, see `next_tokens`."""
        return next_tokens(decoder, self.sequences, self.settings, recorded)

    def keep(self, sentences: Array) -> None:
        self.beams, self.hypotheses = self.beams.take(sentences), self.hypotheses.take(sentences)
        sentence = self.hypotheses.sentence
        self.rows_before = self.settings.num_beams * (sentence - np.arange(len(sentence)))[:, None]

    def step(self, values: Array, tokens: Array) -> Array:
        """Extend the hypotheses by one token, from the best log-probabilities and tokens of each row, (rows, best).

        Returns the rows that the new beams continue, best first, (sentences, beams).
        """
        beams = self.beams
        rows, tokens, totals = self._best_continuations(values, tokens)
        self.length += 1
        is_last = self.length >= beams.limits
        ends = is_any_of(tokens, self.settings.eos_token_ids) | is_last[:, None]
        self._finish(rows, tokens, totals, ends)
        scores, order = largest(np.where(ends, totals + IMPOSSIBLE, totals), self.settings.num_beams)
        rows, tokens = rows.take(order), tokens.take(order)
        to_limit = self.settings.early_stopping == "never" and self.settings.length_penalty > 0.0
        longest = beams.limits if to_limit else np.full_like(beams.limits, self.length)
        best_possible = self._normalized(scores[:, 0], longest)  # were they to end at the best length
        is_open = beams.is_open & (best_possible > beams.goal) & ~is_last
        self.beams = Beams(self._extended(rows, tokens), scores, beams.limits, beams.goal, is_open)
        return rows

    def _best_continuations(self, values: Array, tokens: Array) -> tuple[Array, Array, Array]:
        """Row, token and total score of the best continuations, best first, each (sentences, candidates)."""
        totals = values + self.beams.scores.reshape(-1, 1)
        totals, places = largest(totals.reshape(len(self.beams.scores), -1), self.settings.candidates)
        return places // values.shape[1], tokens.take(places), totals

    def _extended(self, rows: Array, tokens: Array) -> Array:
        """Paths of the continuations of `rows` by `tokens`."""
        paths = np.empty((*rows.shape, 2, self.length), np.int64)
        paths[..., :-1] = self.beams.paths.reshape(-1, 2, self.length - 1).take(rows, axis=0)
        paths[:, :, 0, -1] = tokens
        paths[:, :, 1, -1] = rows + self.rows_before
        return paths

    def _finish(self, rows: Array, tokens: Array, totals: Array, ends: Array) -> None:
        """Enter candidates that end, if they are among the best `num_beams`, into the finished hypotheses."""
        found, beams, generated = self.hypotheses, self.settings.num_beams, self.length - self.prompt_length
        enters = ends[:, :beams] & self.beams.is_open[:, None]
        scores = self._normalized(totals[:, :beams], np.full_like(self.beams.limits, self.length))
        scores = np.concatenate((found.scores, np.where(enters, scores, IMPOSSIBLE)), axis=1)
        scores, best = largest(scores, beams)
        paths = np.concatenate((found.paths, found.paths), axis=1)
        paths[:, beams:, :, : self.length] = self._extended(rows[:, :beams], tokens[:, :beams])
        lengths = np.concatenate((found.lengths, np.where(enters, generated, 0)), axis=1)
        chosen = paths.reshape(-1, *paths.shape[2:]).take(best, axis=0)
        self.hypotheses = found = Hypotheses(found.sentence, chosen, scores, lengths.take(best))
        goal = np.inf if self.settings.early_stopping is True else scores[:, -1]
        self.beams.goal = np.where(found.lengths[:, -1] > 0, goal, IMPOSSIBLE)

    def _normalized(self, totals: Array, lengths: Array) -> Array:
        """Scores of hypotheses of each sentence, (sentences, ...), at a length with the prompt, (sentences,)."""
        generated = (lengths - self.prompt_length).tolist()
        return (totals.T / np.array([count**self.settings.length_penalty for count in generated], np.float32)).T


def largest(values: Array, count: int) -> tuple[Array, Array]:
    """The `count` largest of each row, in descending order, and their places in the flat array, for `take`."""
    rows, columns = values.shape
    places = (-values).argsort(axis=1, kind="stable")[:, :count] + np.arange(0, rows * columns, columns)[:, None]
    return values.take(places), places


def is_any_of(tokens: Array, ids: Sequence[int]) -> Array:
    """Which tokens are among `ids`."""
    found = [tokens == token for token in ids] or [np.zeros(tokens.shape, bool)]
    return reduce(np.logical_or, found)
