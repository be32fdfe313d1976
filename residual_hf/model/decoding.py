# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""`generate` by our own search where its result is that of Transformers, by Transformers everywhere else."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.generation import logits_process, stopping_criteria
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput

from .fingerprint import submodules
from .layers import SAME_ATTENTION, ResidualAttention, ResidualDecoderLayer, ResidualFeedForward
from .prepared_decoder import prepared_decoder
from .search import Decoder, SearchSettings, beam_search, greedy_search
from .stacks import ResidualDecoder

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
DECODING_DTYPES = ("float32", "bfloat16", "int8")
MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.BEAM_SEARCH)
MINIMUM_LENGTH = (
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
)
CRITERIA = (stopping_criteria.MaxLengthCriteria, stopping_criteria.EosTokenCriteria)
PASSIVE_HOOKS = ("output_capturing_hook", "make_inputs_require_grads")
"""Hooks of `output_hidden_states` and of gradient checkpointing, which Transformers leaves in a model."""


ONLY_TRANSFORMERS = (
    "assistant_model",
    "cache",
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
    "tokenizer",
)


def kernels() -> Any:
    """The native kernels of the package, None where a checkpoint runs with its own code and without the package."""
    return importlib.import_module("residual_hf.native.serving") if sys.modules.get("residual_hf") else None


class NotServed(Exception):
    """The request has a feature that only Transformers' own loop serves."""


class FastGenerationMixin(GenerationMixin):
    """`generate` with the results of `GenerationMixin`, several times as fast on a CPU.

    Greedy and beam search run in `search.py`. Everything else - sampling, streamers, processors and stopping criteria
    of the user, attention outputs, hooks, a replaced `forward`, other devices - and `generate(custom_generate=...)`
    run in Transformers, and so does every request with `generation_config.fast_decoding = False`.
    """

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: Any = None,
        *,
        length_limits: Tensor | None = None,
        decoding_dtype: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `GenerationMixin.generate`. Prepared weights are reused: changes through `.data` may not be detected.

        With `return_dict_in_generate` the output has no cache, unless Transformers' loop runs.

        Args:
            length_limits: maximum number of new tokens of each sentence, (sentences,). Ignored where Transformers'
                loop runs (sampling, hooks, GPU): set `max_new_tokens` too.
            decoding_dtype: "float32" (the same hypotheses), "bfloat16" or "int8" (faster, nearly the same) in the
                native kernels; ignored where Transformers' loop runs. Default: `generation_config.decoding_dtype`.
        """
        kwargs = {"inputs": inputs, "generation_config": generation_config, **kwargs}
        tokens = kwargs.get("input_ids", inputs)
        if tokens is not None and kwargs.get("attention_mask") is None and kwargs.get("encoder_outputs") is None:
            kwargs["attention_mask"] = tokens.ne(self.config.pad_token_id)
        if isinstance(kwargs.get("encoder_outputs"), (tuple, list)):
            kwargs["encoder_outputs"] = BaseModelOutput(*kwargs["encoder_outputs"])
        if length_limits is not None and (length_limits < 1).any():
            raise ValueError(f"length_limits: {int(length_limits.min())} given, must be at least 1")
        if self._serves(kwargs):
            native, dtype = kernels(), decoding_dtype or self._setting("decoding_dtype", kwargs)
            pack = cache(lambda: native and native.packed_model(self, dtype))
            encoded = self._encode(tokens, kwargs, pack) if dtype not in (None, "float32") else {}
            if kwargs.get("encoder_outputs") is not None:  # Transformers repeats its states for the beams in place
                encoded = {"encoder_outputs": copy.copy(kwargs["encoder_outputs"])}
            try:
                loop = partial(decode, length_limits=length_limits, pack=pack)
                prepared = {**kwargs, **encoded, **without_cache(generation_config), "custom_generate": loop}
                return super().generate(**prepared)
            except NotServed:
                pass
        return super().generate(**kwargs)

    def _encode(self, tokens: Tensor | None, kwargs: dict[str, Any], pack: Callable[[], Any]) -> dict[str, Any]:
        """`encoder_outputs` from the native kernels, for a precision other than the model's."""
        if tokens is None or kwargs.get("encoder_outputs") is not None or (packed := pack()) is None:
            return {}
        states = packed.encode(tokens, kwargs["attention_mask"])
        return {} if states is None else {"encoder_outputs": BaseModelOutput(states)}

    def _setting(self, name: str, kwargs: dict[str, Any]) -> Any:
        """An argument of `generate`, from the given config where it has none, else from that of the model."""
        configs = (config for config in (kwargs["generation_config"], self.generation_config) if config is not None)
        values = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
        return next((value for value in values if value is not None), None)

    def _serves(self, kwargs: dict[str, Any]) -> bool:
        """Whether our search can serve a request, as far as its arguments show."""
        return (
            self.device.type == "cpu"
            and not self._setting("do_sample", kwargs)
            and self._setting("use_cache", kwargs) is not False
            and self._setting("fast_decoding", kwargs) is not False
            and not computes_otherwise(self)
            and self.config._attn_implementation in SAME_ATTENTION
            and not nn.modules.module._has_any_global_hook()  # as in `FlopCounterMode`
            and all(kwargs.get(name) is None or kwargs[name] is False for name in ONLY_TRANSFORMERS)
            and not any(module.training or is_changed(module) for module in submodules(self))
        )


def computes_otherwise(model: FastGenerationMixin) -> bool:
    """Whether a subclass, an adapter or a module of another class has its own `forward`, inputs of a step or loop."""
    own = next(cls for cls in type(model).__mro__ if FastGenerationMixin in cls.__bases__)
    names = ("forward", "prepare_inputs_for_generation", "_sample", "_beam_search")
    replaced = any(getattr(type(model), name) is not getattr(own, name) for name in names)
    return replaced or "prepare_inputs_for_generation" in vars(model) or has_other_branches(model.get_decoder())


def has_other_branches(decoder: Any) -> bool:
    """Whether a part of the decoder that the search computes is not of the class that it computes."""
    classes = {"self_attn": ResidualAttention, "encoder_attn": ResidualAttention, "ffn": ResidualFeedForward}
    return type(decoder) is not ResidualDecoder or any(
        type(layer) is not ResidualDecoderLayer
        or any(type(getattr(layer, name)) is not branch for name, branch in classes.items())
        for layer in decoder.layers
    )


def without_cache(generation_config: Any) -> dict[str, Any]:
    """Arguments with which Transformers does not make a cache: the loop has its own."""
    if generation_config is None:
        return {"use_cache": False}
    generation_config = copy.deepcopy(generation_config)
    generation_config.use_cache = False
    return {"generation_config": generation_config}


def is_changed(module: nn.Module) -> bool:
    """Whether hooks, or a `forward` of its own, give a module other results than its class has."""
    forward = vars(module).get("forward")
    own = forward is not None and getattr(forward, "__func__", None) is not type(module).forward
    changes = [*module._forward_hooks.values(), *module._forward_pre_hooks.values(), *([forward] if own else [])]
    return any(
        getattr(change, "__name__", "") not in PASSIVE_HOOKS and not getattr(change, "has_same_results", False)
        for change in changes
    )


def decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    length_limits: Tensor | None = None,
    pack: Callable[[], Any],
    **model_kwargs: Any,
) -> Any:
    """The decoding loop that `generate` calls with prepared arguments. Raises `NotServed`.

    Args:
        pack: gives the weights for the native kernels, None if PyTorch decodes.
    """
    check_served(logits_processor, stopping_criteria, generation_config)
    beams = generation_config.num_beams
    prompt = input_ids[::beams]
    settings = search_settings(generation_config, prompt, logits_processor, length_limits)
    memory, mask = model_kwargs["encoder_outputs"].last_hidden_state, model_kwargs.get("attention_mask")
    memory, mask = memory[::beams], None if mask is None else mask[::beams]
    if (packed := pack()) is None:
        decoder: Decoder = prepared_decoder(model).start(memory, mask, beams)
    else:
        decoder = packed.start(memory, mask, beams, int(settings.limits.max()))
    result = (beam_search if beams > 1 else greedy_search)(decoder, prompt, settings)
    if not generation_config.return_dict_in_generate:
        return result.sequences
    scores = tuple(result.scores) if settings.record_scores else None
    if beams == 1:
        output = GenerateEncoderDecoderOutput(sequences=result.sequences, scores=scores)
        output["log_probs"] = result.log_probs
        return output
    return GenerateBeamEncoderDecoderOutput(
        sequences=result.sequences,
        sequences_scores=result.sequences_scores,
        scores=scores,
        beam_indices=result.beam_indices,
    )


def check_served(processors: Any, criteria: Any, generation_config: Any) -> None:
    """Raise `NotServed` if the prepared request needs something that the search does not support."""
    config = generation_config
    unknown = [p for p in processors if type(p) not in PROCESSORS] + [c for c in criteria if type(c) not in CRITERIA]
    outputs = config.output_attentions or config.output_hidden_states or config.output_logits
    if unknown or outputs or config.get_generation_mode() not in MODES:
        raise NotServed


def search_settings(
    generation_config: Any, prompt: Tensor, processors: Sequence[Any], length_limits: Tensor | None
) -> SearchSettings:
    """What `generate` has prepared, as the search takes it."""
    config = generation_config
    limits = torch.full((len(prompt),), config.max_length, device=prompt.device)
    if length_limits is not None:
        limits = limits.minimum(prompt.shape[1] + length_limits.to(limits))
    eos, pad = config._eos_token_tensor, config._pad_token_tensor
    eos_ids = [] if eos is None else eos.flatten().tolist()
    fill = -1 if pad is None else int(pad)
    if config.num_beams > 1 and eos_ids and fill <= 0:
        fill = eos_ids[0]  # as Transformers does where padding is token 0
    renormalized = any(isinstance(p, logits_process.LogitNormalization) for p in processors)
    minimum = () if renormalized else MINIMUM_LENGTH
    return SearchSettings(
        limits=limits,
        eos_token_ids=eos_ids,
        fill_token_id=fill,
        num_beams=config.num_beams,
        num_return_sequences=config.num_return_sequences,
        length_penalty=config.length_penalty,
        early_stopping=config.early_stopping,
        min_length=max((minimum_length(p) for p in processors if isinstance(p, minimum)), default=0),
        processors=lambda length: [p for p in processors if not isinstance(p, minimum) and applies(p, length)],
        record_scores=bool(config.output_scores and config.return_dict_in_generate),
    )


def minimum_length(processor: Any) -> int:
    """Least length, with the prompt, that a processor of `MINIMUM_LENGTH` enforces."""
    if isinstance(processor, logits_process.MinLengthLogitsProcessor):
        return processor.min_length
    return processor.prompt_length_to_skip + processor.min_new_tokens


def applies(processor: Any, length: int) -> bool:
    """Whether a processor can change scores after `length` tokens."""
    if isinstance(processor, logits_process.ForcedBOSTokenLogitsProcessor):
        return length == 1
    if isinstance(processor, logits_process.ForcedEOSTokenLogitsProcessor):
        return length == processor.max_length - 1
    if isinstance(processor, logits_process.SuppressTokensAtBeginLogitsProcessor):
        return length == processor.begin_index
    return True
