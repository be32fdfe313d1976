# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Word alignments and word probabilities of translations, from one pass of the model over source and translation.

A hypothesis of any search is given to the decoder (teacher forcing), in PyTorch and with eager attention. The weights
of cross-attention while a token is predicted, averaged over the heads of all layers but the first and the last, say
which source tokens it comes from. Words of a translation then compete for those of the source: an article attends to
its noun, but the noun does so more. `examples/benchmarks/README.md` has the accuracy of this choice and of others.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .placeholders import BARE_WORD, WORD, Edit, EditedText
from .translation_inputs import source_writer

ROUNDS, NO_WORD = 2, 0.03
"""Rounds of Sinkhorn and Knopp, in which words compete for those of the source, and the share of no word."""
TOKENS_TOGETHER = 2000  # tokens of a side whose logits are in memory at a time
Array = np.ndarray
Spans = Sequence[tuple[int, int]] | Array
"""Start and end of parts of a text, in characters, (parts, 2)."""


class AlignedTokens(NamedTuple):
    """A source and its translation, or parts of them.

    Attributes:
        source, target: where each token is in the texts, (source tokens, 2) and (target tokens, 2); without
            characters for special tokens.
        weights: attention of each target token to the source tokens, (target tokens, source tokens).
        log_probs: of the target tokens, (target tokens,).
    """

    source: Array
    target: Array
    weights: Array
    log_probs: Array

    def shifted(self, source: int, target: int) -> "AlignedTokens":
        """The same tokens in longer texts, which have as many characters before them."""
        return self._replace(source=self.source + source, target=self.target + target)

    def between(self, source: Spans, target: Spans) -> Array:
        """Weights of all words, or other parts, of the source for those of the translation, (target, source parts).

        Each row sums to 1, or to 0 for a part without tokens.
        """
        weights = (overlaps(self.target, target).T @ self.weights @ overlaps(self.source, source)) ** 2
        for _ in range(ROUNDS):
            weights = normalized(weights / (weights.sum(0) + NO_WORD))
        return weights


class Alignment(NamedTuple):
    """A translation beside its source.

    Attributes:
        source, target: the texts.
        parts: their tokens; texts that were translated in parts have several.
    """

    source: str
    target: str
    parts: tuple[AlignedTokens, ...]

    @property
    def links(self) -> list[tuple[int, int]]:
        """Pairs of a source and a target word, counted from 0; words are separated by spaces."""
        source, target = word_spans(self.source, bare=True), word_spans(self.target, bare=True)
        found = set()
        for part in self.parts:
            sources, targets = touched(source, part.source), touched(target, part.target)
            weights = part.between(source[sources], target[targets])
            for row in np.flatnonzero(weights.any(1)):
                found.add((int(sources[weights[row].argmax()]), int(targets[row])))
        return sorted(found)

    @property
    def word_scores(self) -> list[float]:
        """The probability of each word of the translation, given those before it."""
        words = word_spans(self.target)
        words[1:, 0], words[:1, 0] = words[:-1, 1], 0  # with the space before it, which may be a token
        totals = np.zeros(len(words))
        for part in self.parts:
            totals += overlaps(part.target, words).T @ part.log_probs
        return np.exp(totals).tolist()

    def __str__(self) -> str:
        """The links in Pharaoh format, such as `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


def word_spans(text: str, *, bare: bool = False) -> Array:
    """Starts and ends of the words of a text, (words, 2); `bare` ones without punctuation around them."""
    words = WORD.finditer(text)
    found = ((bare and BARE_WORD.search(text, *word.span())) or word for word in words)
    return np.array([word.span() for word in found], dtype=int).reshape(-1, 2)


def touched(spans: Array, tokens: Array) -> Array:
    """The numbers of spans between the first and the last of some tokens."""
    real = tokens[tokens[:, 0] < tokens[:, 1]]
    if not len(real):
        return np.arange(0)
    return np.flatnonzero((spans[:, 1] > real[:, 0].min()) & (spans[:, 0] < real[:, 1].max()))


def overlaps(tokens: Array, spans: Spans) -> Array:
    """The share of each token's characters, of those in any span, that is in each span, (tokens, spans)."""
    spans = np.asarray(spans, dtype=int).reshape(-1, 2)
    starts = np.maximum(tokens[:, None, 0], spans[None, :, 0])
    ends = np.minimum(tokens[:, None, 1], spans[None, :, 1])
    return normalized(np.maximum(ends - starts, 0).astype(float))


def normalized(rows: Array) -> Array:
    totals = rows.sum(1, keepdims=True)
    return np.divide(rows, totals, out=np.zeros_like(rows), where=totals > 0)


def align(
    model: Any,
    tokenizer: Any,
    sources: Sequence[str],
    targets: Sequence[str],
    source_ids: Sequence[Sequence[int]],
    target_ids: Sequence[Sequence[int]],
) -> list[Alignment]:
    """The alignment of each source with its translation, by an encoder-decoder that returns cross-attentions.

    Args:
        source_ids: what the model read, with special tokens.
        target_ids: what it wrote, without the start token and the end.
    """
    model = with_eager_attention(model)
    found = [Alignment(*texts, ()) for texts in zip(sources, targets, strict=True)]
    lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
    rows = sorted((row for row, ids in enumerate(target_ids) if len(ids)), key=lengths.__getitem__)
    while rows:
        count = max(1, TOKENS_TOGETHER // lengths[rows[-1]])
        batch, rows = rows[-count:], rows[:-count]
        pairs = [(list(source_ids[row]), list(target_ids[row])) for row in batch]
        for row, (read, written), given in zip(batch, pairs, teacher_forced(model, pairs), strict=True):
            spans = token_spans(tokenizer, read, sources[row]), token_spans(tokenizer, written, targets[row], True)
            found[row] = found[row]._replace(parts=(AlignedTokens(*spans, *given),))
    return found


def of_originals(found: Alignment, source: EditedText, target: EditedText) -> Alignment:
    """The alignment of a text with the final form of its translation, from that of what the model read and wrote.

    Args:
        source: the text, with the edits that the model read.
        target: what the model wrote, with the edits that make the final form.
    """
    places = [np.array(side) for side in (*source.places(), *target.inverse().places())]
    parts = [
        part._replace(
            source=np.stack([places[0][part.source[:, 0]], places[1][part.source[:, 1]]], axis=1),
            target=np.stack([places[2][part.target[:, 0]], places[3][part.target[:, 1]]], axis=1),
        )
        for part in found.parts
    ]
    return Alignment(source.original, target.text, tuple(parts))


def rewritten(found: Alignment, target: str) -> Alignment:
    """The alignment of a translation that was edited afterwards."""
    if found.target == target:
        return found
    opcodes = SequenceMatcher(None, found.target, target, autojunk=False).get_opcodes()
    edits = [Edit(start, end, target[first:last]) for kind, start, end, first, last in opcodes if kind != "equal"]
    return of_originals(found, EditedText(found.source), EditedText(found.target, edits))


@torch.no_grad()
def teacher_forced(model: Any, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[tuple[Array, Array]]:
    """Weights (target tokens, source tokens) and log-probabilities (target tokens,) of pairs of source and target.

    `model`: with eager attention.
    """
    pad, start = model.config.pad_token_id, model.generation_config.decoder_start_token_id
    sources, mask = (each.to(model.device) for each in padded([source for source, _ in pairs], pad))
    targets = padded([[start, *target] for _, target in pairs], pad)[0].to(model.device)
    output = model(
        input_ids=sources, attention_mask=mask, decoder_input_ids=targets, output_attentions=True, use_cache=False
    )
    if not output.get("cross_attentions"):
        raise ValueError(f"{type(model).__name__} returns no cross-attentions, by which words are aligned")
    weights = alignment_weights(output.cross_attentions)
    logits = output.logits[:, :-1].float()
    chosen = logits.gather(2, targets[:, 1:, None])[..., 0] - logits.logsumexp(-1)
    for row, (source, target) in enumerate(pairs):
        yield (
            weights[row, : len(target), : len(source)].cpu().double().numpy(),  # which MPS does not have
            chosen[row, : len(target)].cpu().double().numpy(),
        )


def alignment_weights(attentions: Sequence[Tensor]) -> Tensor:
    """(rows, target tokens, source tokens) of the cross-attentions of all layers, (rows, heads, inputs, source)."""
    layers = attentions[1:-1] or attentions
    return torch.stack([layer[:, :, :-1].float().mean(1) for layer in layers]).mean(0).nan_to_num()


def padded(rows: Sequence[list[int]], pad: int, side: str = "right") -> tuple[Tensor, Tensor]:
    """A batch (rows, length) and its mask, with padding on a side."""
    batch = [torch.tensor(row, dtype=torch.long) for row in rows]
    ids = pad_sequence(batch, batch_first=True, padding_value=pad, padding_side=side)
    return ids, pad_sequence([torch.ones_like(row) for row in batch], batch_first=True, padding_side=side)


def with_eager_attention(model: Any) -> Any:
    """The same weights in a model that computes attention weights which it can return.

    A switch of `model` itself would reach what other threads compute with it.
    """
    shared = [*model.parameters(), *model.buffers()]
    for module in model.modules():  # and what holds weights that are offloaded, or quantized
        shared += [vars(module)[name] for name in ("_hf_hook", "state") if name in vars(module)]
    twin = deepcopy(model, {id(part): part for part in shared})
    twin.set_attn_implementation("eager")
    return twin


def token_spans(tokenizer: Any, ids: list[int], text: str, in_target: bool = False) -> Array:
    """Start and end of each token in the text that it was read from, or that was written from it, (tokens, 2)."""
    if tokenizer.is_fast:
        given = {"text_target" if in_target else "text": text}
        encoded = tokenizer(**given, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        own, spans = encoded["input_ids"], np.array(encoded["offset_mapping"], dtype=int).reshape(-1, 2)
        for first in range(len(ids) - len(own) + 1):  # after a tag or a prompt
            if own and ids[first : first + len(own)] == own:
                found = np.zeros((len(ids), 2), dtype=int)
                found[first : first + len(own)] = spans
                return found
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    writer = tokenizer if in_target else source_writer(tokenizer)
    decoded = [writer.decode(ids[:n], use_source_tokenizer=not in_target, **options) for n in range(len(ids) + 1)]
    blocks = SequenceMatcher(None, decoded[-1], text, autojunk=False).get_matching_blocks()
    corners = [(0, 0), *(c for b in blocks for c in ((b.a, b.b), (b.a + b.size, b.b + b.size)))]
    ends = np.maximum.accumulate([min(len(prefix), len(decoded[-1])) for prefix in decoded])
    places = np.interp(ends, *np.array(corners).T).round().astype(int)
    return np.stack([places[:-1], places[1:]], axis=1)
