# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""`generate` by our own search where its result is that of Transformers, by Transformers everywhere else."""

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, StoppingCriteria, StoppingCriteriaList
from transformers.generation import logits_process
from transformers.generation.utils import (
    GenerateBeamDecoderOnlyOutput,
    GenerateBeamEncoderDecoderOutput,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)
from transformers.modeling_outputs import BaseModelOutput

from .constraints import ConstrainedSearch, LettersAdded, Phrase, first_progress
from .fingerprint import holds, is_changed, submodules
from .layers import SAME_ATTENTION, ResidualAttention, ResidualFeedForward
from .length_limits import has_length_rule, length_limit, position_limit
from .prepared_decoder import LayerDecoder, prepared_decoder
from .search import Array, Decoder, SearchSettings, beam_search, greedy_search
from .stacks import ResidualDecoder, ResidualEncoder

MINIMUM_LENGTH = (logits_process.MinLengthLogitsProcessor, logits_process.MinNewTokensLengthLogitsProcessor)
KNOWN = {
    "inputs", "input_ids", "input_features", "attention_mask", "encoder_outputs", "decoder_input_ids",
    "generation_config", "use_cache", "return_dict_in_generate", "output_scores",
    "max_length", "max_new_tokens", "min_length", "min_new_tokens",
    "num_beams", "num_return_sequences", "length_penalty", "early_stopping",
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "no_repeat_ngram_size", "repetition_penalty", "sequence_bias", "exponential_decay_length_penalty",
    "remove_invalid_values", "renormalize_logits",
    "fast_decoding", "decoding_dtype", "max_length_a", "max_length_b", "transformers_version",
}  # fmt: skip
"""Arguments of `generate` and fields of a generation config that the search knows. Requests with anything else that is
not at its default go to Transformers. Processors of scores among these treat each row alone."""
SAMPLING = {"do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"}
"""Further ones that it knows where a decoder alone samples."""

NO_PHRASES = "phrases: only beam search of a model of this package on a CPU finds translations with given phrases"
NO_LISTS = (
    "token_lists: only greedy and beam search of an encoder-decoder on a CPU with native kernels can keep to a list "
    "of tokens; `residual_hf.native.report()` says which kernels run"
)


def without_kernels(model: Any, dtype: str | None) -> None:
    """Give no packed weights: PyTorch decodes."""


pack_for_kernels: Callable[[Any, str | None], Any] = without_kernels


def register_kernels(pack: Callable[[Any, str | None], Any]) -> None:
    """Decode with the native kernels. The package does so; a checkpoint with its own code runs without.

    `pack` gives the packed weights of a model in a precision such as "int8", None where PyTorch decodes.
    """
    global pack_for_kernels
    pack_for_kernels = pack


@dataclass(frozen=True)
class SearchOptions:
    """Arguments of `generate` for the search.

    Attributes:
        length_limits: maximum number of new tokens of each sentence, (sentences,).
        hypothesis_scores: with `return_dict_in_generate`, beam search gives `sequences_scores` also without
            `output_scores`, and greedy search `log_probs`; ignored where Transformers' loop runs.
        token_lists: for each sentence the ids of the only tokens that its translation may have, which includes those
            that end it. Probabilities are among these. `ValueError` where the native kernels cannot search.
        phrases: for each sentence what its translation must have: phrases, each a list of alternatives in token ids.
            Beams should be at least `constraints.beams_for` them. `ValueError` where Transformers' loop runs.
        letters_added: tells where words end, see `constraints.LettersAdded`: phrases are whole words then, with
            endings of two letters at most.
    """

    length_limits: Tensor | None = None
    hypothesis_scores: bool = False
    token_lists: Sequence[Array] | None = None
    phrases: Sequence[Sequence[Phrase]] | None = None
    letters_added: LettersAdded | None = None


class FastGenerationMixin(GenerationMixin):
    """`generate` with the results of `GenerationMixin`, several times as fast on a CPU.

    Greedy and beam search with the arguments and fields of `KNOWN` run in `search.py`. Everything else - streamers,
    processors and stopping criteria of the user, attention outputs, hooks, a replaced `forward`, other devices - runs
    in Transformers, as samples of an encoder-decoder do. A decoder alone uses `search.py` where it has native kernels.
    """

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: Any = None,
        *,
        decoding_dtype: str | None = None,
        fast_decoding: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As `GenerationMixin.generate`. Prepared weights are reused while a checksum over all of them is the same.

        With `return_dict_in_generate` the output has no cache, unless `use_cache=True` is given. Without a length, a
        translation has at most `max_length_a * source length + max_length_b` new tokens, if the generation config of
        the model has these. The fields of `SearchOptions` are arguments too.

        Args:
            decoding_dtype: "float32" (the same hypotheses), "bfloat16" or "int8" (faster, nearly the same) in the
                native kernels; ignored where Transformers' loop runs. Default: `generation_config.decoding_dtype`.
            fast_decoding: False: Transformers' loop runs. Default: `generation_config.fast_decoding`.
        """
        options = SearchOptions(**{each.name: kwargs.pop(each.name, each.default) for each in fields(SearchOptions)})
        kwargs = {"inputs": inputs, "generation_config": copy.deepcopy(generation_config), **kwargs}
        self._complete_source(kwargs)
        request = self._request({**kwargs, "decoding_dtype": decoding_dtype, "fast_decoding": fast_decoding})
        options = self._with_limits(options, request, kwargs)
        if options.length_limits is not None and request.get("forced_eos_token_id") is not None:
            kwargs.setdefault("forced_eos_token_id", None)  # which would be at the longest limit of the batch
        pack = cache(lambda: pack_for_kernels(self, request.get("decoding_dtype")))
        if self._can_search(options, request, kwargs, pack):
            return super().generate(**self._prepared(options, kwargs, pack))
        if options.length_limits is not None:
            criteria = [*(kwargs.get("stopping_criteria") or ()), OwnLength(options.length_limits)]
            kwargs["stopping_criteria"] = StoppingCriteriaList(criteria)
        return super().generate(**kwargs)

    def _source(self, kwargs: dict[str, Any]) -> Tensor | None:
        return kwargs.get(self.main_input_name, kwargs["inputs"])

    def _complete_source(self, kwargs: dict[str, Any]) -> None:
        """Check the source of an encoder-decoder, and add its mask to the arguments of `generate`."""
        kwargs.pop("labels", None)  # of `Seq2SeqTrainer`, and never read
        source, states = self._source(kwargs), kwargs.get("encoder_outputs")
        if self.config.is_encoder_decoder and source is not None and states is None:
            check_source(self.main_input_name, source, kwargs.get("attention_mask"))
            if kwargs.get("attention_mask") is None:
                kwargs["attention_mask"] = self.get_encoder().inputs_mask(source)
        if isinstance(states, (tuple, list)):
            kwargs["encoder_outputs"] = BaseModelOutput(*states)

    def _request(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments, before the fields of their generation config, before those of the model's."""
        if has_length_rule(self.generation_config):
            self.generation_config.max_length = None  # the default of Transformers, which `Seq2SeqTrainer` enters
        config = kwargs["generation_config"]
        own = {} if config is None else given(vars(config))
        if config is not None and has_length_rule(config):
            own.pop("max_length", None)
        request = {**vars(self.generation_config), **own, **given(kwargs)}
        beams = request.get("num_beams")
        if beams is not None and beams < 1:
            raise ValueError(f"num_beams: {beams} given, must be at least 1")
        return request

    def _with_limits(self, options: SearchOptions, request: dict[str, Any], kwargs: dict[str, Any]) -> SearchOptions:
        """Options with the limits by the rule of the generation config, if no length is asked for. Adds the longest to
        the arguments of `generate`."""
        limits = options.length_limits
        if limits is not None and (limits < 1).any():
            raise ValueError(f"length_limits: {int(limits.min())} given, must be at least 1")
        has_length = {"max_length", "max_new_tokens"} & given(request).keys()
        if has_length or not self.config.is_encoder_decoder or not has_length_rule(self.generation_config):
            return options
        if (found := self._own_limits(request)) is None:
            return options
        limits = found if limits is None else limits
        own_fields(kwargs).update(max_new_tokens=int(limits.max()), max_length=None)
        return replace(options, length_limits=limits)

    def _own_limits(self, request: dict[str, Any]) -> Tensor | None:
        """New tokens of each sentence at most by the rule of the generation config; None without a source."""
        states, mask = request.get("encoder_outputs"), request.get("attention_mask")
        embeddings = request.get("inputs_embeds") if states is None else states[0]
        if mask is not None:
            lengths = self.get_encoder().states_mask(mask).sum(1).tolist()
        elif embeddings is not None:
            lengths = [embeddings.shape[1]] * embeddings.shape[0]
        else:
            return None
        rule = position_limit(self.config), request["max_length_a"], request["max_length_b"]
        prompt = request.get("decoder_input_ids")
        given_tokens = 1 if prompt is None else prompt.shape[1]
        return torch.tensor([length_limit(length, *rule, prompt=given_tokens) for length in lengths], device="cpu")

    def _can_search(
        self, options: SearchOptions, request: dict[str, Any], kwargs: dict[str, Any], pack: Callable[[], Any]
    ) -> bool:
        """Whether the search can do what is asked. Raises `ValueError` if only the search could, and cannot."""
        is_alone, has_beams = not self.config.is_encoder_decoder, request.get("num_beams") not in (None, 1)
        known = KNOWN | SAMPLING if is_alone and request.get("do_sample") and not has_beams else KNOWN
        can = is_known(request, known) and not wants_cache(kwargs, request) and self._computes_as_defined()
        if options.token_lists is not None and (is_alone or not can or pack() is None):
            raise ValueError(NO_LISTS)
        if options.phrases is not None and (is_alone or not can or not has_beams):
            raise ValueError(NO_PHRASES)
        if not can or not is_alone:
            return can
        return self._is_prompt(self._source(kwargs), kwargs.get("attention_mask")) and pack() is not None

    def _prepared(self, options: SearchOptions, kwargs: dict[str, Any], pack: Callable[[], Any]) -> dict[str, Any]:
        """The arguments with which Transformers calls the search."""

        def loop(*arguments: Any, **prepared: Any) -> Any:  # whose signature Transformers reads fast
            return decode(*arguments, options=options, pack=pack, **prepared)

        own_fields(kwargs)["use_cache"] = False  # the loop has a cache of its own
        return {**kwargs, **self._encoded(kwargs, pack), "custom_generate": loop}

    def _encoded(self, kwargs: dict[str, Any], pack: Callable[[], Any]) -> dict[str, Any]:
        """The `encoder_outputs` that are given, or those of the kernels, where they compute what the encoder does."""
        source, states = self._source(kwargs), kwargs.get("encoder_outputs")
        if states is not None:  # Transformers repeats its states for the beams in place
            return {"encoder_outputs": copy.copy(states)}
        if source is None or not self.config.is_encoder_decoder or (packed := pack()) is None:
            return {}
        found = None if has_other_branches(self.get_encoder()) else packed.encode(source, kwargs["attention_mask"])
        return {} if found is None else {"encoder_outputs": BaseModelOutput(found)}

    def _is_prompt(self, tokens: Tensor | None, mask: Tensor | None) -> bool:
        """Whether padding, if any, is before the prompts (batch, length), so that all end with a token."""
        if tokens is None or tokens.ndim != 2 or not tokens.shape[1]:
            return False
        mask = tokens.ne(self.config.pad_token_id) if mask is None else mask.bool()
        return mask.shape == tokens.shape and bool(mask[:, -1].all() and (mask[:, 1:] >= mask[:, :-1]).all())

    def _computes_as_defined(self) -> bool:
        """Whether nothing but the classes and weights of the model decides what it computes, on a CPU."""
        return (
            self.device.type == "cpu"
            and self.config._attn_implementation in SAME_ATTENTION
            and not nn.modules.module._has_any_global_hook()  # as in `FlopCounterMode`
            and holds(self, "computes as defined", lambda: computes_as_defined(self))
        )


class OwnLength(StoppingCriteria):
    """Ends the hypotheses of each sentence at a limit of its own, new tokens in `limits`, in Transformers' loop."""

    def __init__(self, limits: Tensor):
        self.limits = limits
        self.of_rows: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        if self.of_rows is None:  # the first new token; on the device once, not at every step
            limits = self.limits + input_ids.shape[1] - 1
            self.of_rows = limits.repeat_interleave(len(input_ids) // len(limits)).to(input_ids.device)
        return self.of_rows <= input_ids.shape[1]


def check_source(name: str, source: Tensor, mask: Tensor | None) -> None:
    """Raises `ValueError` for a source that is not (sentences, tokens) or (recordings, frames, features), is empty or
    has another shape than its mask."""
    axes = ("sentences", "tokens") if name == "input_ids" else ("recordings", "frames", "features")
    if source.ndim != len(axes) or not source.numel():
        raise ValueError(f"{name}: shape {tuple(source.shape)} given, must be ({', '.join(axes)}), none of them 0")
    if name == "input_ids" and source.is_floating_point():
        raise ValueError(f"{name}: {source.dtype} given, must be integers")
    if mask is not None and mask.shape != source.shape[:2]:
        raise ValueError(f"attention_mask: shape {tuple(mask.shape)} given, but {name} has {tuple(source.shape)}")


def own_fields(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The mapping in which to set what `generate` decides: its generation config if there is one, or its arguments."""
    config = kwargs["generation_config"]
    return kwargs if config is None else vars(config)


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments or fields that are not None."""
    return {name: value for name, value in values.items() if value is not None}


@cache
def defaults() -> dict[str, Any]:
    """The values of fields that are not given; other arguments of `generate` are off."""
    config = GenerationConfig()
    general: dict[str, Any] = getattr(config, "_get_default_generation_params", dict)()  # none of them: only slower
    return given(vars(config)) | given(general)


def is_known(request: dict[str, Any], known: set[str]) -> bool:
    """Whether the search can do what a request says: arguments, and fields of the generation config."""
    mask, off = request.get("attention_mask"), (bool, int, float, str)
    return (
        all(
            name in known or (isinstance(value, off) and value == defaults().get(name, False))
            for name, value in request.items()
            if value is not None and not name.startswith("_")
        )
        and request.get("use_cache") is not False
        and request.get("fast_decoding") is not False
        and (mask is None or bool(mask.any(dim=-1).all()))  # nobody has defined what follows from padding alone
    )


def wants_cache(arguments: dict[str, Any], request: dict[str, Any]) -> bool:
    """Whether the caller, not the config of the model, asks for the cache in the output."""
    config = arguments["generation_config"]
    asked = arguments.get("use_cache") or (config is not None and config.use_cache)
    return bool(asked and request.get("return_dict_in_generate"))


def computes_as_defined(model: FastGenerationMixin) -> bool:
    """Whether the search computes what the model does: no biases of positions, and no subclass, adapter, hook or
    module of another class has its own `forward`, inputs of a step or loop."""
    own = next(cls for cls in type(model).__mro__ if FastGenerationMixin in cls.__bases__)
    names = ("forward", "prepare_inputs_for_generation", "_sample", "_beam_search", "_get_logits_processor")
    return (
        model.config.position_embedding_type != "relative"
        and all(getattr(type(model), name) is getattr(own, name) for name in names)
        and "prepare_inputs_for_generation" not in vars(model)
        and not has_other_branches(model.get_decoder())
        and not any(module.training or is_changed(module) for module in submodules(model))
    )


def has_other_branches(stack: Any) -> bool:
    """Whether a part of an encoder or decoder that the search computes is not of the class that it computes."""
    classes = {"self_attn": ResidualAttention, "encoder_attn": ResidualAttention, "ffn": ResidualFeedForward}
    return type(stack) not in (ResidualEncoder, ResidualDecoder) or any(
        type(layer) is not stack.Layer
        or any(type(branch) is not classes.get(name, type(branch)) for name, branch in layer.named_children())
        for layer in stack.layers
    )


def decode(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    options: SearchOptions,
    pack: Callable[[], Any],
    **model_kwargs: Any,
) -> Any:
    """The decoding loop that `generate` calls with prepared arguments.

    `pack` gives the weights for the native kernels, None if PyTorch decodes, which a decoder alone does not.
    """
    beams = generation_config.num_beams
    prompt = input_ids[::beams]
    settings = search_settings(generation_config, prompt, logits_processor, options.length_limits)
    settings.prompt_is_read = not model.config.is_encoder_decoder
    decoder = begin(model, prompt, settings, pack(), model_kwargs, options.token_lists)
    search = beam_search if beams > 1 else greedy_search
    if options.phrases is not None:
        progress = first_progress(options.phrases, len(prompt), options.letters_added)
        search = partial(beam_search, search=ConstrainedSearch(prompt, settings, progress))
    result = search(decoder, prompt, settings)
    if not generation_config.return_dict_in_generate:
        return result.sequences
    scores = tuple(result.scores) if settings.record_scores else None
    greedy, with_beams = OUTPUTS[model.config.is_encoder_decoder]
    if beams == 1:
        output = greedy(sequences=result.sequences, scores=scores)
        if options.hypothesis_scores:
            output["log_probs"] = result.log_probs
        return output
    return with_beams(
        sequences=result.sequences,
        sequences_scores=result.sequences_scores if scores is not None or options.hypothesis_scores else None,
        scores=scores,
        beam_indices=result.beam_indices,
    )


OUTPUTS = {
    True: (GenerateEncoderDecoderOutput, GenerateBeamEncoderDecoderOutput),
    False: (GenerateDecoderOnlyOutput, GenerateBeamDecoderOnlyOutput),
}
"""Classes of outputs of greedy search and of beam search, by whether the model is an encoder-decoder."""


def begin(
    model: Any,
    prompt: Tensor,
    settings: SearchSettings,
    packed: Any,
    model_kwargs: Mapping[str, Any],
    token_lists: Sequence[Array] | None,
) -> Decoder:
    """The decoder of a search, on the kernels if there are packed weights. A decoder alone reads its prompt."""
    beams, longest, mask = settings.num_beams, int(settings.limits.max()), model_kwargs.get("attention_mask")
    mask = None if mask is None else mask[::beams]
    if settings.prompt_is_read:
        return packed.read(prompt, torch.ones_like(prompt) if mask is None else mask, beams, longest)
    mask = None if mask is None else model.get_encoder().states_mask(mask)
    memory = model_kwargs["encoder_outputs"].last_hidden_state[::beams]
    if len(memory) != len(prompt):
        raise ValueError(f"decoder_input_ids: {len(prompt)} rows given for {len(memory)} sentences")
    if packed is None:
        return LayerDecoder(prepared_decoder(model), memory, mask, beams)
    return packed.start(memory, mask, beams, longest, token_lists)


def search_settings(
    config: Any, prompt: Tensor, processors: Sequence[Any], length_limits: Tensor | None
) -> SearchSettings:
    """The rules of a search from the generation config, and others that `generate` has prepared."""
    limits = torch.full((len(prompt),), config.max_length, device=prompt.device)
    if length_limits is not None:
        samples = config.num_return_sequences if config.num_beams == 1 else 1
        limits = limits.minimum(prompt.shape[1] + length_limits.to(limits).repeat_interleave(samples))
    eos, pad = config._eos_token_tensor, config._pad_token_tensor
    eos_ids = [] if eos is None else eos.flatten().tolist()
    fill = -1 if pad is None else int(pad)
    if config.num_beams > 1 and eos_ids and fill <= 0:
        fill = eos_ids[0]  # as Transformers does where padding is token 0
    # a value for each row, which that of repetitions holds for prompts with padding
    has_rows = any(isinstance(getattr(p, "prompt_ignore_length", None), Tensor) for p in processors)
    renormalized = any(isinstance(p, logits_process.LogitNormalization) for p in processors)
    minimum = () if renormalized else MINIMUM_LENGTH
    record_scores = bool(config.output_scores and config.return_dict_in_generate)
    return SearchSettings(
        limits=limits,
        eos_token_ids=eos_ids,
        fill_token_id=fill,
        num_beams=config.num_beams,
        num_return_sequences=config.num_return_sequences,
        length_penalty=config.length_penalty,
        early_stopping=config.early_stopping,
        min_length=max((minimum_length(p) for p in processors if isinstance(p, minimum)), default=0),
        processors=[(p, lengths_of(p)) for p in processors if not isinstance(p, minimum)],
        record_scores=record_scores,
        keep_finished=record_scores or has_rows,
        do_sample=config.do_sample,
    )


def minimum_length(processor: Any) -> int:
    """Least length, with the prompt, that a processor of `MINIMUM_LENGTH` enforces."""
    if isinstance(processor, logits_process.MinLengthLogitsProcessor):
        return processor.min_length
    return processor.prompt_length_to_skip + processor.min_new_tokens


def lengths_of(processor: Any) -> range:
    """The lengths of sequences after which a processor can change scores."""
    if isinstance(processor, logits_process.ForcedBOSTokenLogitsProcessor):
        return range(1, 2)
    if isinstance(processor, logits_process.ForcedEOSTokenLogitsProcessor):
        return range(processor.max_length - 1, processor.max_length)
    if isinstance(processor, logits_process.SuppressTokensAtBeginLogitsProcessor):
        return range(processor.begin_index, processor.begin_index + 1)
    return range(sys.maxsize)
