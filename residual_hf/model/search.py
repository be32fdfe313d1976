# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Greedy and beam search with the results of Transformers' `generate` for a fraction of its work.

Sentences that have finished leave the batch, and every row keeps its best candidates only. The rules (which candidates
finish, when a sentence ends, how scores are normalized) are those of `GenerationMixin._sample` and `_beam_search`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import torch
from torch import Tensor

IMPOSSIBLE = -1.0e9  # the score of what must not be chosen, as in Transformers
CHUNK = 64
Processor = Callable[[Tensor, Tensor], Tensor]


class Decoder(Protocol):
    """Decodes one token per row and step. Rows are the beams of the first sentence, of the second, and so forth."""

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per row, (rows,); returns logits (rows, vocabulary) in float32."""

    def best(self, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Feed one token per row; returns log-probabilities and ids of the best next ones, (rows, count) each."""

    def select(self, rows: Tensor) -> None:
        """Continue with these rows: beams are reordered, finished sentences leave."""


@dataclass
class SearchSettings:
    """What a search does.

    Args:
        limits: most tokens of each sentence, with its prompt, (sentences,).
        eos_token_ids: tokens that end a hypothesis.
        fill_token_id: what follows the end of a sequence.
        early_stopping: True, False or "never", as in `GenerationConfig`.
        min_length: least tokens with the prompt, before one of `eos_token_ids` may follow.
        processors: for a length, the functions of sequences (rows, length) and scores (rows, vocabulary) that apply.
            They treat rows independently.
        record_scores: keep the processed scores of every step. Sentences that have finished then stay in the batch.
    """

    limits: Tensor
    eos_token_ids: Sequence[int]
    fill_token_id: int
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    min_length: int = 0
    processors: Callable[[int], Sequence[Processor]] = lambda length: ()
    record_scores: bool = False

    @property
    def candidates(self) -> int:
        """Continuations to look at: enough that `num_beams` of them are left where all others end."""
        return 1 if self.num_beams == 1 else max(2, 1 + len(self.eos_token_ids)) * self.num_beams


@dataclass
class SearchResult:
    """What a search found.

    Attributes:
        sequences: (sentences * num_return_sequences, length), the best of each sentence first.
        sequences_scores: sums of log-probabilities over length ** length_penalty; beam search only.
        beam_indices: the row that each generated token was chosen from, -1 after the end; beam search only.
        scores: for each step the processed scores of all rows, if recorded.
    """

    sequences: Tensor
    sequences_scores: Tensor | None = None
    beam_indices: Tensor | None = None
    scores: list[Tensor] = field(default_factory=list)


def greedy_search(decoder: Decoder, prompt: Tensor, settings: SearchSettings) -> SearchResult:
    """The most probable token at each step, from a prompt (sentences, length)."""
    found = prompt.new_full((len(prompt), int(settings.limits.max())), settings.fill_token_id)
    found[:, : prompt.shape[1]] = prompt
    sentence = torch.arange(len(prompt), device=prompt.device)
    limits, sequences = settings.limits, prompt
    recorded: list[Tensor] = []
    ended = torch.zeros_like(sentence, dtype=torch.bool)
    for token in prompt.unbind(1)[:-1]:
        decoder.step(token)
    while True:
        scores, candidates = next_tokens(decoder, sequences, settings, recorded)
        tokens = candidates.gather(1, scores.argmax(dim=1, keepdim=True))[:, 0]
        tokens = tokens.masked_fill(ended, settings.fill_token_id)
        found[sentence, sequences.shape[1]] = tokens
        sequences = torch.cat((sequences, tokens[:, None]), dim=1)
        ended = ended | is_any_of(tokens, settings.eos_token_ids) | (sequences.shape[1] >= limits)
        if ended.all():
            return SearchResult(found[:, : sequences.shape[1]], scores=recorded)
        if ended.any() and not settings.record_scores:
            kept = (~ended).nonzero()[:, 0]
            decoder.select(kept)
            sentence, limits, sequences, ended = sentence[kept], limits[kept], sequences[kept], ended[kept]


def beam_search(decoder: Decoder, prompt: Tensor, settings: SearchSettings) -> SearchResult:
    """The best hypotheses that a beam of `num_beams` finds, from a prompt (sentences, length)."""
    search, closed_hypotheses = BeamSearch(prompt, settings), []
    recorded: list[Tensor] = []
    for token in prompt.unbind(1)[:-1]:
        decoder.step(token.repeat_interleave(settings.num_beams))
    while True:
        rows = search.step(*next_tokens(decoder, search.beams.sequences.flatten(0, 1), settings, recorded))
        closed = search.closed()
        if closed.all():
            break
        if closed.any() and not settings.record_scores:
            closed_hypotheses.append(search.hypotheses.take(closed))
            rows = rows[~closed]
            search.keep(~closed)
        decoder.select(rows.flatten())
    found = Hypotheses.join([*closed_hypotheses, search.hypotheses])
    best = found.take(found.sentence.argsort()).best(settings.num_return_sequences)
    generated = int(best.lengths.max())
    sequences = best.sequences[:, : prompt.shape[1] + generated]
    return SearchResult(sequences, best.scores, best.origins[:, :generated], recorded)


def next_tokens(
    decoder: Decoder, sequences: Tensor, settings: SearchSettings, recorded: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Scores and ids of at least the best `settings.candidates` tokens to follow each sequence, (rows, candidates).

    `recorded` gets the scores of all tokens if the settings ask for it.
    """
    length, newest, eos = sequences.shape[1], sequences[:, -1], settings.eos_token_ids
    banned = eos if length < settings.min_length else ()
    processors = settings.processors(length)
    if not processors and not settings.record_scores:
        values, ids = decoder.best(newest, settings.candidates + len(banned))
        return values.masked_fill(is_any_of(ids, banned), -torch.inf), ids
    scores = decoder.step(newest)
    if settings.num_beams > 1:
        scores = torch.log_softmax(scores, dim=-1)
    for token in banned:
        scores = scores.index_fill(1, torch.tensor(token, device=scores.device), -torch.inf)
    for processor in processors:
        scores = processor(sequences, scores)
    if settings.record_scores:
        recorded.append(scores.clone())
    return top_k(scores, settings.candidates)


@dataclass
class TensorGroup:
    """Tensors that share their first dimension."""

    def take(self, index: Tensor) -> Any:
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))

    @classmethod
    def join(cls, parts: Sequence[Any]) -> Any:
        return cls(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)))


@dataclass
class Beams(TensorGroup):
    """The running hypotheses of each sentence, best first.

    Attributes:
        sequences: (sentences, beams, length).
        origins: the row that each generated token was chosen from, (sentences, beams, generated).
        scores: sums of log-probabilities, (sentences, beams).
        limits: most tokens, (sentences,).
        improvable: whether a running hypothesis may still replace a finished one, (sentences,).
    """

    sequences: Tensor
    origins: Tensor
    scores: Tensor
    limits: Tensor
    improvable: Tensor


@dataclass
class Hypotheses(TensorGroup):
    """The finished hypotheses of each sentence, best first.

    Attributes:
        sentence: number of the sentence in the input, (sentences,).
        sequences: (sentences, beams, longest limit).
        origins: as in `Beams`, -1 after the end, (sentences, beams, longest limit - prompt).
        scores: normalized by length, IMPOSSIBLE where nothing is found yet, (sentences, beams).
        lengths: number of generated tokens, (sentences, beams).
        done: whether something is found, (sentences, beams).
    """

    sentence: Tensor
    sequences: Tensor
    origins: Tensor
    scores: Tensor
    lengths: Tensor
    done: Tensor

    def best(self, count: int) -> Hypotheses:
        """The best `count` of each sentence, without the dimension of the beams."""
        rest = (getattr(self, f.name)[:, :count].flatten(0, 1) for f in fields(self)[1:])
        return Hypotheses(self.sentence.repeat_interleave(count), *rest)


class BeamSearch:
    """Which hypotheses run on and which are finished, for the sentences that are still in the batch."""

    def __init__(self, prompt: Tensor, settings: SearchSettings):
        sentences, beams, device = len(prompt), settings.num_beams, prompt.device
        self.settings = settings
        self.prompt_length = prompt.shape[1]
        sequences = prompt[:, None].repeat(1, beams, 1)
        room = prompt.new_full((sentences, beams, int(settings.limits.max()) - self.prompt_length), -1)
        scores = torch.full((sentences, beams), IMPOSSIBLE, device=device)
        lengths = torch.zeros(sentences, beams, dtype=torch.long, device=device)
        self.hypotheses = Hypotheses(
            sentence=torch.arange(sentences, device=device),
            sequences=torch.cat((sequences, torch.full_like(room, settings.fill_token_id)), dim=-1),
            origins=room,
            scores=scores,
            lengths=lengths,
            done=lengths.bool(),
        )
        scores = scores.clone()
        scores[:, 0] = 0.0  # all beams begin alike, so only the first is extended
        improvable = torch.ones(sentences, dtype=torch.bool, device=device)
        self.beams = Beams(sequences, room[:, :, :0], scores, settings.limits, improvable)

    @property
    def length(self) -> int:
        return self.beams.sequences.shape[-1]

    def keep(self, sentences: Tensor) -> None:
        self.beams, self.hypotheses = self.beams.take(sentences), self.hypotheses.take(sentences)

    def step(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Extend the hypotheses by one token, from the best log-probabilities and tokens of each row, (rows, best).

        Returns the rows that the new beams continue, best first, (sentences, beams).
        """
        beams = self.beams
        parents, tokens, totals = self._best_continuations(values, tokens)
        ends = is_any_of(tokens, self.settings.eos_token_ids) | (self.length + 1 >= beams.limits)[:, None]
        if ends[:, : self.settings.num_beams].any():
            self._finish(parents, tokens, totals, ends)
        scores, chosen = (totals + ends * IMPOSSIBLE).topk(self.settings.num_beams)
        parents, tokens = parents.gather(1, chosen), tokens.gather(1, chosen)
        self.beams = Beams(*self._extended(parents, tokens), scores, beams.limits, beams.improvable)
        self.beams.improvable = beams.improvable & self._may_improve()
        first_rows = torch.arange(len(parents), device=parents.device) * self.settings.num_beams
        return first_rows[:, None] + parents

    def closed(self) -> Tensor:
        """Sentences whose finished hypotheses are final, (sentences,)."""
        full = self.hypotheses.done.all(dim=1) & (self.settings.early_stopping is True)
        return full | ~self.beams.improvable | (self.length >= self.beams.limits)

    def _best_continuations(self, values: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Beam, token and total score of the best continuations, best first, each (sentences, candidates)."""
        beams = self.settings.num_beams
        totals = (values.unflatten(0, (-1, beams)) + self.beams.scores[:, :, None]).flatten(1)
        totals, order = totals.topk(self.settings.candidates)
        tokens = tokens.unflatten(0, (-1, beams)).flatten(1).gather(1, order)
        return order // values.shape[1], tokens, totals

    def _extended(self, parents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Sequences and origins of the continuations of beams `parents` by `tokens`."""
        rows = self.hypotheses.sentence[:, None] * self.settings.num_beams + parents
        parents = parents[:, :, None]
        sequences = self.beams.sequences.gather(1, parents.expand(-1, -1, self.length))
        origins = self.beams.origins.gather(1, parents.expand(-1, -1, self.length - self.prompt_length))
        return torch.cat((sequences, tokens[:, :, None]), dim=2), torch.cat((origins, rows[:, :, None]), dim=2)

    def _finish(self, parents: Tensor, tokens: Tensor, totals: Tensor, ends: Tensor) -> None:
        """Enter candidates that end, if they are among the best `num_beams`, into the finished hypotheses."""
        found, beams = self.hypotheses, self.settings.num_beams
        generated = self.length + 1 - self.prompt_length
        accepting = self.beams.improvable[:, None]
        if self.settings.early_stopping is True:
            accepting = accepting & ~found.done.all(dim=1, keepdim=True)
        enters = (ends & accepting)[:, :beams]
        scores = totals[:, :beams] / generated**self.settings.length_penalty
        scores = torch.cat((found.scores, scores.masked_fill(~enters, IMPOSSIBLE)), dim=1)
        new_sequences, new_origins = self._extended(parents[:, :beams], tokens[:, :beams])
        sequences = found.sequences.repeat(1, 2, 1)
        sequences[:, beams:, : self.length + 1] = new_sequences
        origins = found.origins.repeat(1, 2, 1)
        origins[:, beams:, :generated] = new_origins
        scores, best = scores.topk(beams)
        wide = best[:, :, None]
        self.hypotheses = Hypotheses(
            sentence=found.sentence,
            sequences=sequences.gather(1, wide.expand(-1, -1, sequences.shape[2])),
            origins=origins.gather(1, wide.expand(-1, -1, origins.shape[2])),
            scores=scores,
            lengths=torch.cat((found.lengths, torch.full_like(found.lengths, generated)), dim=1).gather(1, best),
            done=torch.cat((found.done, enters), dim=1).gather(1, best),
        )

    def _may_improve(self) -> Tensor:
        """Whether the best running hypothesis, were it to end at the best length, would beat a finished one."""
        penalty = self.settings.length_penalty
        length = torch.full_like(self.beams.limits, self.length)
        if self.settings.early_stopping == "never" and penalty > 0.0:
            length = self.beams.limits
        possible = self.beams.scores[:, :1] / ((length - self.prompt_length) ** penalty)[:, None]
        worst = self.hypotheses.scores.amin(dim=1, keepdim=True)
        return (possible > worst.where(self.hypotheses.done, IMPOSSIBLE)).any(dim=1)


def is_any_of(tokens: Tensor, ids: Sequence[int]) -> Tensor:
    """Which tokens are among `ids`."""
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for token in ids:
        found = found | (tokens == token)
    return found


def top_k(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best columns of each row, at most `count`: `topk` in half the time, from the best chunks."""
    rows, columns = scores.shape
    count = min(count, columns)
    full = columns - columns % CHUNK
    if full // CHUNK < 2 * count:
        return scores.topk(count)
    chunks = scores[:, :full].unflatten(1, (-1, CHUNK)).amax(dim=-1).topk(count)[1]
    inside = (chunks[:, :, None] * CHUNK + torch.arange(CHUNK, device=scores.device)).flatten(1)
    rest = torch.arange(full, columns, device=scores.device).expand(rows, -1)
    candidates = torch.cat((inside, rest), dim=1)
    values, best = scores.gather(1, candidates).topk(count)
    return values, candidates.gather(1, best)
