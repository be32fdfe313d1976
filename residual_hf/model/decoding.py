# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""`generate` by our own search where its result is that of Transformers, by Transformers everywhere else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.generation import logits_process, stopping_criteria
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput
from transformers.masking_utils import create_bidirectional_mask

from .beam_cache import BeamCache
from .search import SearchSettings, beam_search, greedy_search

PROCESSORS = (  # those whose result for a row depends on that row alone
    logits_process.ExponentialDecayLengthPenalty,
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.LogitNormalization,
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.SequenceBiasLogitsProcessor,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
)
MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.BEAM_SEARCH)
CRITERIA = (stopping_criteria.MaxLengthCriteria, stopping_criteria.EosTokenCriteria)


class LayerDecoder:
    """Decodes with the layers of the model as they are, on hidden states (sentences, beams, d_model).

    Args:
        memory: output of the encoder, (sentences, length, d_model).
        memory_mask: which of its positions are tokens, (sentences, length), or None for all.
    """

    def __init__(self, model: Any, memory: Tensor, memory_mask: Tensor | None, num_beams: int):
        self.model, self.decoder = model, model.get_decoder()
        self.memory, self.num_beams = memory, num_beams
        self.cache = BeamCache(len(self.decoder.layers))
        self.memory_mask = memory_mask
        self._mask_memory()

    def _mask_memory(self) -> None:
        queries = self.memory.new_empty(len(self.memory), self.num_beams, self.memory.shape[-1])
        self.cross_mask = create_bidirectional_mask(
            config=self.model.config,
            inputs_embeds=queries,
            attention_mask=self.memory_mask,
            encoder_hidden_states=self.memory,
        )

    def step(self, tokens: Tensor) -> Tensor:
        embeddings = self.decoder.embed(tokens[:, None], None)
        hidden_states = self.decoder.add_positions(embeddings, None, self.cache.self_attention_cache.length)
        hidden_states = self.decoder.run_layers(
            hidden_states.view(-1, self.num_beams, hidden_states.shape[-1]),
            self.memory,
            encoder_attention_mask=self.cross_mask,
            past_key_values=self.cache,
        )
        self.cache.self_attention_cache.length += 1
        return self.model.logits(hidden_states).flatten(0, 1).float()

    def select(self, rows: Tensor) -> None:
        sentences = rows[:: self.num_beams] // self.num_beams
        if len(sentences) < len(self.memory):
            self.memory = self.memory[sentences]
            self.memory_mask = None if self.memory_mask is None else self.memory_mask[sentences]
            self.cache.cross_attention_cache.select(sentences)
            self._mask_memory()
        self.cache.self_attention_cache.select(rows)


class NotServed(Exception):
    """The request has a feature that only Transformers' own loop serves."""


class FastGenerationMixin(GenerationMixin):
    """`generate` with the results of `GenerationMixin`, several times as fast on a CPU.

    Greedy and beam search run in `search.py`. Everything else - sampling, streamers, processors and stopping criteria
    of the user's own, attention outputs, hooks, other devices - and `generate(custom_generate=...)` run in
    Transformers, and so does everything with `generation_config.fast_decoding = False`.
    """

    def generate(self, inputs: Tensor | None = None, generation_config: Any = None, **kwargs: Any) -> Any:
        """As `GenerationMixin.generate`.

        Args:
            length_limits: most new tokens of each sentence, (sentences,); Transformers' loop ignores it.
        """
        if self._serves(generation_config or self.generation_config, kwargs):
            try:
                return super().generate(inputs, generation_config, custom_generate=decode, **kwargs)
            except NotServed:
                pass
        kwargs.pop("length_limits", None)
        return super().generate(inputs, generation_config, **kwargs)

    def _serves(self, generation_config: Any, kwargs: dict[str, Any]) -> bool:
        """Whether a request can be served, as far as its arguments show."""
        do_sample = kwargs.get("do_sample", generation_config.do_sample)
        use_cache = kwargs.get("use_cache", generation_config.use_cache)
        return (
            self.device.type == "cpu"
            and not self.training
            and not do_sample
            and use_cache is not False
            and getattr(generation_config, "fast_decoding", True)
            and self.config._attn_implementation in ("eager", "sdpa")
            and all(kwargs.get(name) is None for name in ONLY_TRANSFORMERS)
            and not any(has_hooks(module) for module in self.modules())
        )


ONLY_TRANSFORMERS = (
    "assistant_model",
    "cache_implementation",
    "custom_generate",
    "decoder_attention_mask",
    "decoder_inputs_embeds",
    "logits_processor",
    "negative_prompt_ids",
    "past_key_values",
    "prefix_allowed_tokens_fn",
    "stopping_criteria",
    "streamer",
    "synced_gpus",
)


def has_hooks(module: nn.Module) -> bool:
    """Whether something watches or changes the calls of a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"))


def decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    length_limits: Tensor | None = None,
    **model_kwargs: Any,
) -> Any:
    """The decoding loop that `generate` calls with prepared arguments. Raises `NotServed`."""
    beams = generation_config.num_beams
    check_served(logits_processor, stopping_criteria, generation_config)
    prompt = input_ids[::beams]
    limits = torch.full((len(prompt),), generation_config.max_length, device=input_ids.device)
    if length_limits is not None:
        limits = limits.minimum(prompt.shape[1] + length_limits.to(limits))
    eos = generation_config._eos_token_tensor
    eos_ids = [] if eos is None else eos.flatten().tolist()
    pad = generation_config._pad_token_tensor
    pad_id = None if pad is None else int(pad)
    record = bool(generation_config.output_scores and generation_config.return_dict_in_generate)
    settings = SearchSettings(
        limits=limits,
        eos_token_ids=eos_ids,
        fill_token_id=(pad_id or eos_ids[0]) if beams > 1 and eos_ids else (-1 if pad_id is None else pad_id),
        num_beams=beams,
        num_return_sequences=generation_config.num_return_sequences,
        length_penalty=generation_config.length_penalty,
        early_stopping=generation_config.early_stopping,
        processors=logits_processor,
        record_scores=record,
    )
    memory, mask = model_kwargs["encoder_outputs"].last_hidden_state, model_kwargs.get("attention_mask")
    decoder = LayerDecoder(model, memory[::beams], None if mask is None else mask[::beams], beams)
    result = (beam_search if beams > 1 else greedy_search)(decoder, prompt, settings)
    if not generation_config.return_dict_in_generate:
        return result.sequences
    scores = tuple(result.scores) if record else None
    if beams == 1:
        return GenerateEncoderDecoderOutput(sequences=result.sequences, scores=scores)
    return GenerateBeamEncoderDecoderOutput(
        sequences=result.sequences,
        sequences_scores=result.sequences_scores if record else None,
        scores=scores,
        beam_indices=result.beam_indices,
    )


def check_served(processors: Any, criteria: Any, generation_config: Any) -> None:
    """Raises `NotServed` for what the prepared request has and the search has not."""
    config = generation_config
    unknown = [p for p in processors if type(p) not in PROCESSORS] + [c for c in criteria if type(c) not in CRITERIA]
    outputs = config.output_attentions or config.output_hidden_states or config.output_logits
    if unknown or outputs or config.get_generation_mode() not in MODES:
        raise NotServed
