"""Greedy and beam search in C, with the bits of `model/search.py`."""

from collections.abc import Callable, Iterable, Iterator
from ctypes import byref
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation import logits_process

from residual_hf.model.search import Array, Hypotheses, SearchResult, SearchSettings

from . import loaded_library
from .structures import ENUMS, Rule, Search

ANY = 2**31 - 1
OwnRule = tuple[str, list[int], dict[str, Any]]
"""The kind of a rule, its tokens, and fields that are not those of every rule."""


def search(state: Any, prompt: Tensor, settings: SearchSettings) -> SearchResult | None:
    """The result of a search from a `DecoderState`, None for settings that `search.c` does not know.

    Between the calls of C, Python sees to signals, such as that of Ctrl-C.
    """
    rules = rules_of(settings, state.vocabulary)
    if rules is None or int(settings.limits.max()) != state.max_length:
        return None
    found, decoder, library = Hypotheses.none(prompt, settings), state.decoder, loaded_library()
    if settings.num_beams == 1:
        found.scores[:] = 0.0
    limits, ends = settings.limits.long().contiguous().numpy(), np.array(settings.eos_token_ids, np.int64)
    limit = decoder.positions["decoder"]
    asked = Search(
        sentences=len(prompt),
        beams=settings.num_beams,
        candidates=settings.candidates,
        threads=torch.get_num_threads(),
        prompt_length=prompt.shape[1],
        min_length=settings.min_length,
        longest=state.max_length,
        early_stopping=2 if settings.early_stopping == "never" else settings.early_stopping is True,
        end_tokens=len(ends),
        rules=len(rules),
        length_penalty=settings.length_penalty,
        limits=limits.ctypes.data,
        end_token=ends.ctypes.data,
        rule=(Rule * len(rules))(*(rule for rule, _ in rules)),
        position=state.first_position,
        positions=ANY if limit is None else limit,
        length=prompt.shape[1],
        entries=state.entries,
        paths=found.paths.ctypes.data,
        scores=found.scores.ctypes.data,
        lengths=found.lengths.ctypes.data,
    )
    arguments = *state.arguments, byref(asked)
    scratch = torch.empty(library.search_scratch_size(*arguments), dtype=torch.uint8)
    progress = "paused"
    while progress != "ended":
        asked.room = len(state.self_cache[0])
        progress = ENUMS["Progress"][library.search(*arguments, scratch.data_ptr())]
        if progress == "no_room":
            state.make_room(asked.rows)
        elif progress == "no_position":
            decoder.check_length(limit + 1, "decoder")
        elif progress == "no_token":
            raise IndexError(f"tokens: one is outside the vocabulary of {state.stack.vocabulary}")
    if settings.num_beams > 1:
        return found.result(prompt.shape[1], settings.num_return_sequences, [])
    sequences, scores = found.paths[:, 0, 0, : asked.length], found.scores[:, 0]
    return SearchResult(torch.from_numpy(sequences), log_probs=torch.from_numpy(scores))


def rules_of(settings: SearchSettings, vocabulary: int) -> list[tuple[Rule, Array]] | None:
    """The rules of the processors and their tokens; None where `search.c` lacks one or Python reports an error."""
    if settings.do_sample or settings.record_scores or settings.keep_finished:
        return None
    known = [type(processor) in RULES for processor, _ in settings.processors]
    if not all(known) or not all(0 <= token < vocabulary for token in settings.eos_token_ids):
        return None
    found = []
    for processor, lengths in settings.processors:
        for kind, tokens, fields in RULES[type(processor)](processor):
            if not all(0 <= token < vocabulary for token in tokens):
                return None
            ids, bounds = np.array(tokens, np.int64), {"first": lengths.start, "end": min(lengths.stop, ANY)}
            fields = {"count": len(tokens), **bounds, **fields}
            found.append((Rule(kind=ENUMS["RuleKind"].index(kind), tokens=ids.ctypes.data, **fields), ids))
    return found


def bad_words(processor: Any) -> Iterator[OwnRule]:
    words = [list(word) for word in processor.sequence_bias]
    yield "suppress", [word[0] for word in words if len(word) == 1], {}
    yield from (("bad_word", word, {"first": len(word) - may_be_first()}) for word in words if len(word) > 1)


@cache
def may_be_first() -> bool:
    """Whether a bad word may begin with the first token of a sequence: not in Transformers before 5.18."""
    bias = logits_process.SequenceBiasLogitsProcessor({(0, 1): -1.0})
    return bool(bias(torch.tensor([[0]]), torch.zeros(1, 2)).any())


def suppress(tokens: Tensor) -> list[OwnRule]:
    return [("suppress", tokens.tolist(), {})]


RULES: dict[type, Callable[[Any], Iterable[OwnRule]]] = {
    logits_process.RepetitionPenaltyLogitsProcessor: lambda p: [("repetition_penalty", [], {"penalty": p.penalty})],
    logits_process.NoRepeatNGramLogitsProcessor: lambda p: [("no_repeat_ngram", [], {"count": p.ngram_size})],
    logits_process.NoBadWordsLogitsProcessor: bad_words,
    logits_process.SuppressTokensLogitsProcessor: lambda p: suppress(p.suppress_tokens),
    logits_process.SuppressTokensAtBeginLogitsProcessor: lambda p: suppress(p.begin_suppress_tokens),
    logits_process.ForcedBOSTokenLogitsProcessor: lambda p: [("force", [p.bos_token_id], {})],
    logits_process.ForcedEOSTokenLogitsProcessor: lambda p: [("force", p.eos_token_id.tolist(), {})],
}
"""The rules of `search.c` for processors of Transformers."""
