"""Beam search over many sentences, in batches of similar length, on one or several processes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput

from residual_hf.base.errors import InputError, input_errors
from residual_hf.checkpoint import move_to
from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler
from residual_hf.data.shortlist import Shortlist
from residual_hf.model.constraints import LettersAdded, Phrase, tokens_of
from residual_hf.model.decoding import FastGenerationMixin, OwnLength
from residual_hf.model.fingerprint import unchanged
from residual_hf.model.length_limits import end_tokens, length_limit, position_limit
from residual_hf.model.translation_inputs import without_tag
from residual_hf.native.support import missing_support

from .generation_settings import DecodingSettings, SearchRequest

SCORED_TOGETHER = 16  # sequences whose logits are in memory at a time
BEAMS_OF_LISTS = 5  # that take as much memory as the output weights of a sentence with a shortlist
BATCHES_PER_THREAD, SMALL_BATCH = 8, 400
"""Several batches for each thread, so that all end at about the same time, but not of fewer source tokens."""
ONE_TRANSLATION = SearchRequest()


def to_text(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """The text of translations, without special tokens and language tags."""
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True) if rows else []  # no rows: taken for an empty one
    return [without_tag(text) for text in texts]


class Candidate(NamedTuple):
    """One result of the search for a sentence.

    Attributes:
        ids: target tokens up to the first special token.
        score: sum of log-probabilities over length ** length_penalty; None unless scores are wanted. A tag of the
            target language has probability 1.
    """

    ids: list[int]
    score: float | None = None


def search(
    model: Any,
    sources: Sequence[Sequence[int] | np.ndarray],
    settings: DecodingSettings | None = None,
    request: SearchRequest = ONE_TRANSLATION,
    shortlist: Shortlist | None = None,
    phrases: Sequence[Sequence[Phrase]] | None = None,
    letters_added: LettersAdded | None = None,
) -> list[list[Candidate]]:
    """The `request.num_return_sequences` best candidates of each source, best first.

    Args:
        sources: token ids of each sentence, ending in `</s>`, or frames (frames, bins) of each recording.
        shortlist: of the model, for `settings.shortlist`.
        phrases, letters_added: what the translation of each source must have, see `residual_hf.model.constraints`.
    """
    if not sources:
        return []
    settings = settings or DecodingSettings()
    if settings.shortlist and shortlist is None:
        raise InputError("shortlist: True given without the shortlist of the model")
    if request.generate_arguments.get("decoder_input_ids") is not None and len(sources) > 1:
        raise InputError(f"decoder_input_ids: given for {len(sources)} sentences, must be for one: batches sort them")
    index, processes = (PartialState().process_index, PartialState().num_processes) if request.shared else (0, 1)
    lengths = [len(source) for source in sources]
    threads = threads_of(model, request)
    least = min(gather_object([threads])) if request.shared else threads  # for the same batches in all
    listed = BEAMS_OF_LISTS if settings.shortlist else 1
    budget = settings.max_tokens // max(settings.num_beams, request.num_return_sequences, listed)
    if least > 1:
        work = sum(lengths) // processes
        budget = min(budget, max(work // (BATCHES_PER_THREAD * least), SMALL_BATCH), -(-work // least))
    budget = max(budget, *lengths)
    sampler = TokenBudgetSampler(lengths, lengths, budget, shuffle=False, multiple=1)
    batches = [[i for i in batch if i is not None] for batch in sampler][::-1]  # the longest sentences first
    found: dict[int, list[Candidate]] = {}

    def search_next(batch: list[int]) -> list[list[Candidate]]:
        wanted = None if phrases is None else [phrases[i] for i in batch]
        return search_batch(model, [sources[i] for i in batch], settings, request, shortlist, wanted, letters_added)

    with unchanged(model), side_by_side(threads) as run:
        share = batches[index::processes]
        for batch, results in zip(share, run(search_next, share), strict=True):
            found |= zip(batch, results, strict=True)
            request.progress(len(batch) * processes)
    for part in gather_object([found]) if request.shared else []:
        found |= part
    return [found[row] for row in range(len(sources))]


def move_in_precision(model: Any, device: str | None, dtype: str, *, requested: bool) -> None:
    """Move a model to a device, see `move_to`, in the precision in which it decodes there.

    On a CPU, models of this package stay in fp32, and `generate` decodes in `dtype`. int8 is for these: elsewhere it
    is an `InputError` if it was `requested`, and fp32 if only the model names it.
    """
    if getattr(model, "quantization_method", None) == "bitsandbytes":  # stays where and as it was loaded
        return
    move_to(model, device)
    is_fast = model.device.type == "cpu" and isinstance(model, FastGenerationMixin)
    if is_fast or (dtype == "int8" and not requested):
        dtype = "float32"
    elif dtype == "int8":
        raise InputError("dtype: int8 given, only supported for models of this package on a CPU")
    move_to(model, device, getattr(torch, dtype))


def check_shortlist_use(model: Any) -> None:
    """Raise `InputError` unless a model can decode with a shortlist."""
    is_own = isinstance(model, FastGenerationMixin)
    reason = missing_support(model) if is_own else f"{type(model).__name__} is not a model of this package"
    if torch.is_autocast_enabled("cpu"):
        reason = "autocast is enabled"
    if reason is not None:
        raise InputError(f"shortlist: only with the native kernels: {reason}")


def threads_of(model: Any, request: SearchRequest) -> int:
    """How many batches to search at a time, each in a thread that computes alone.

    Threads that share the rows of one batch wait for the slowest at every step. Samples would depend on which thread
    draws first, and autocast does not reach other threads.
    """
    apart = isinstance(model, FastGenerationMixin) and model.device.type == "cpu" and not request.samples
    return torch.get_num_threads() if apart and not torch.is_autocast_enabled("cpu") else 1


@contextmanager
def side_by_side(threads: int) -> Iterator[Callable]:
    """A `map` in as many threads; after Ctrl-C what has not begun is left out."""
    if threads == 1:
        yield map
        return
    started = Barrier(threads)

    def compute_alone(_: int) -> None:
        torch.get_num_threads()  # takes over the number of the process
        torch.set_num_threads(1)  # of this thread, and of those that start from now on
        started.wait()

    pool = ThreadPoolExecutor(threads)
    try:
        try:
            list(pool.map(compute_alone, range(threads)))
        finally:
            torch.set_num_threads(threads)  # of this thread, and of those that others start
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


class OwnEnd(LogitsProcessor):
    """Forces the end of the hypotheses of each sentence at a limit of its own, new tokens in `limits`."""

    def __init__(self, limits: Tensor, end: int | list[int]):
        self.length, self.end = OwnLength(limits), end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        is_last = self.length(input_ids, None)  # asked one token earlier than a stopping criterion
        ends = torch.full_like(scores[0], -torch.inf)
        ends[self.end] = 0
        return torch.where(is_last[:, None], ends, scores)


def ending_at(limits: Tensor, arguments: Mapping[str, Any], generation: Any) -> dict[str, Any]:
    """Arguments of Transformers' `generate`, in addition to others, that end each sentence at a limit of its own."""
    ending = {"stopping_criteria": [*(arguments.get("stopping_criteria") or ()), OwnLength(limits)]}
    forced = arguments.get("forced_eos_token_id", generation.forced_eos_token_id)
    if forced is not None:
        given = arguments.get("logits_processor") or ()
        ending["logits_processor"] = LogitsProcessorList([*given, OwnEnd(limits, forced)])
    return {**ending, "forced_eos_token_id": None}  # which would be at the longest limit of the batch


@torch.no_grad()
def search_batch(
    model: Any,
    sources: Sequence[Sequence[int] | np.ndarray],
    settings: DecodingSettings,
    request: SearchRequest,
    shortlist: Shortlist | None,
    phrases: Sequence[Sequence[Phrase]] | None,
    letters_added: LettersAdded | None,
) -> list[list[Candidate]]:
    """As `search`, for one batch in this process."""
    config, generation = model.config, model.generation_config
    if generation.eos_token_id is None:
        raise InputError("generation config: eos_token_id: missing, so that no translation would end")
    collate = Seq2SeqCollator(config.pad_token_id, generation.decoder_start_token_id)
    batch = collate([{model.main_input_name: source} for source in sources])
    inputs = {name: values.to(model.device) for name, values in batch.items()}
    mask = batch["attention_mask"]
    if model.main_input_name == "input_features":
        mask = model.get_encoder().states_mask(mask)
    prefix = request.generate_arguments.get("decoder_input_ids")  # to which Transformers adds the start token
    begun = 0 if prefix is None else prefix.shape[1] - int(prefix[0, 0] == generation.decoder_start_token_id)
    rule = position_limit(config), settings.max_length_a, settings.max_length_b
    limits = torch.tensor([length_limit(length, *rule, prompt=1 + begun) for length in mask.sum(1).tolist()])
    count, longest = request.num_return_sequences, int(limits.max())
    arguments = settings.generate_arguments(longest) | {"num_return_sequences": count} | request.generate_arguments
    if isinstance(model, FastGenerationMixin):
        arguments |= {"length_limits": limits, "decoding_dtype": settings.dtype, "hypothesis_scores": True}
    else:
        arguments |= ending_at(limits, arguments, generation)
    if settings.shortlist and shortlist is not None:
        needed = [tokens_of(own) for own in phrases or [[]] * len(sources)]
        lists = zip(sources, needed, strict=True)
        arguments["token_lists"] = [np.union1d(shortlist.tokens_for(source), tokens) for source, tokens in lists]
    if phrases is not None:
        arguments |= {"phrases": phrases, "letters_added": letters_added}
    # each process has full weights and its own number of batches: synced_gpus=False
    with input_errors("generate: ", ValueError):  # an argument, or a value of the generation config
        output = model.generate(**inputs, **arguments, return_dict_in_generate=True, synced_gpus=False)
    ends = torch.tensor([config.pad_token_id, *end_tokens(generation)], device=model.device)
    ended = torch.isin(output.sequences[:, 1:], ends)
    most = limits.to(model.device).repeat_interleave(count).add(begun).clamp(max=ended.shape[1])
    lengths = (ended.cumsum(1) == 0).sum(1).minimum(most)  # 0 of a model that is not finite, which writes nothing
    found = output.get("sequences_scores")
    if request.scores and found is None:
        generated, log_probs = (lengths + 1).minimum(most), output.get("log_probs")
        if log_probs is None:  # Transformers' loop: sampling, for example
            first = request.generate_arguments.get("forced_bos_token_id", generation.forced_bos_token_id)
            log_probs = sequence_log_probs(model, inputs, output.sequences, generated, begun or int(first is not None))
        found = log_probs / (generated - begun) ** settings.length_penalty
    values = [None] * len(lengths) if found is None else found.tolist()
    rows = [row[1 : 1 + n] for row, n in zip(output.sequences.tolist(), lengths.tolist(), strict=True)]
    candidates = [Candidate(*pair) for pair in zip(rows, values, strict=True)]
    return [candidates[first : first + count] for first in range(0, len(candidates), count)]


@torch.no_grad()
def sequence_log_probs(
    model: Any, inputs: dict[str, Tensor], sequences: Tensor, lengths: Tensor, forced: int
) -> Tensor:
    """Sums of the log-probabilities of targets, (targets,).

    Args:
        inputs: of the encoder, with `attention_mask`.
        sequences: start token, targets and padding, (targets, length); equally many targets for each source.
        lengths: tokens of the targets, with the one that ends a target, (targets,).
        forced: tokens at the beginning, such as a language tag, that are not counted, as in beam search.
    """
    labels, count = sequences[:, 1:], len(sequences) // len(inputs["attention_mask"])
    places = torch.arange(labels.shape[1], device=labels.device)
    counted = (places >= forced) & (places < lengths[:, None])
    memory = model.get_encoder()(**inputs).last_hidden_state
    totals = []
    for rows in torch.arange(len(sequences), device=labels.device).split(SCORED_TOGETHER):
        sources = rows // count
        logits = model(
            encoder_outputs=BaseModelOutput(memory[sources]),
            attention_mask=inputs["attention_mask"][sources],
            decoder_input_ids=sequences[rows, :-1],
        ).logits
        chosen = logits.float().log_softmax(-1).gather(2, labels[rows, :, None])[:, :, 0]
        totals.append((chosen * counted[rows]).sum(1))
    return torch.cat(totals)


def rescored(model: Any, source: Sequence[int], target: list[int], forced: int, length_penalty: float) -> Candidate:
    """A candidate with its score as in beam search; `forced` as in `sequence_log_probs`."""
    generation, device, length = model.generation_config, model.device, len(target) + 1
    read = torch.tensor([source], device=device)
    sequence = torch.tensor([[generation.decoder_start_token_id, *target, end_tokens(generation)[0]]], device=device)
    inputs = {"input_ids": read, "attention_mask": torch.ones_like(read)}
    total = sequence_log_probs(model, inputs, sequence, torch.tensor([length], device=device), forced)
    return Candidate(target, float(total) / length**length_penalty)
