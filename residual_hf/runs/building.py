"""The model of a recipe before training: freshly initialized, or a trained one to start from."""

import logging
import math
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from residual_hf.base.errors import InputError
from residual_hf.base.processes import this_process
from residual_hf.checkpoint_checks import has_own_target, target_size
from residual_hf.data.language_names import adds_codes, begins_with_code, codes_of, target_code, variants
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.modeling_single_stack import ResidualForCausalLM
from residual_hf.model.norms import NORM_TYPES, DynamicTanh
from residual_hf.training.lora import add_lora, matching
from residual_hf.training.training_settings import TrainingSettings

from .recipe import Recipe
from .trial import split_update
from .warm_start import RATES, Start, load_start, start_config, tokens_of, with_vocabulary

logger = logging.getLogger(__name__)


def build_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> ResidualConfig:
    """The recipe's config with the vocabulary, the special tokens and the languages of a tokenizer."""
    fields = tokenizer_fields(recipe, tokenizer)
    for name, value in fields.items():
        if recipe.model.get(name, value) != value:
            given = recipe.model[name]
            logger.warning("model.%s: %s in the recipe, replaced by %s of the tokenizer", name, given, value)
    return scale_dual_stream(recipe.build_config(**fields), recipe.training.precision)


def tokenizer_fields(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The fields of a config that describe a tokenizer and the languages of a recipe."""
    size, first, code = len(tokenizer), tokenizer.eos_token_id, target_code(tokenizer)
    if code is not None:
        size = max(size, 1 + max(codes_of(tokenizer).values()))  # M2M100 does not count its codes
        first = first if begins_with_code(tokenizer) else code
    vocabulary: dict[str, Any] = {"vocab_size": size, "decoder_vocab_size": size}
    if has_own_target(tokenizer) and tokens_of(tokenizer, "source") != tokens_of(tokenizer, "target"):
        vocabulary |= {"decoder_vocab_size": target_size(tokenizer), "share_encoder_decoder_embeddings": False}
    several = recipe.data.language_tags is not None
    return vocabulary | {
        "source_lang": None if several else recipe.source_lang,
        "target_lang": None if several else recipe.target_lang,
        "language_tags": recipe.data.language_tags,
        "placeholders": recipe.data.placeholders,
        "term_tags": recipe.data.glossary is not None,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": first,
    }


def load_start_of(recipe: Recipe) -> Start | None:
    """The model that a recipe starts from; None for random weights. Raises `InputError`, see `load_start`."""
    if recipe.starts_from is None:
        return None
    logger.info("loading %s", recipe.starts_from)
    start = load_start(recipe.starts_from, recipe.model_fields, recipe.chosen_task.model)
    config = start.model.config
    trained, wanted = (config.source_lang, config.target_lang), (recipe.source_lang, recipe.target_lang)
    sides = zip(trained, wanted, strict=True)
    if all(trained) and all(wanted) and not all(variants(str(language), [str(known)]) for known, language in sides):
        message = "model.from: %s translates from %s to %s, the recipe is from %s to %s"
        logger.warning(message, recipe.starts_from, *trained, *wanted)
    return start


def check_training(recipe: Recipe, start: Start | None) -> None:
    """Raise `InputError` for settings of training that do not fit the model, before its vocabulary is known."""
    settings = recipe.training
    with torch.device("meta"):
        if start is None:
            model = recipe.chosen_task.model(recipe.build_config())
        else:
            config = type(start.model.config)(**start.model.config.to_dict() | rates_of(recipe))
            model = type(start.model)(config)
    settings.loss_meter(model)
    choose_weights(model, settings)
    if settings.max_tokens != "auto":
        processes = this_process().num_processes
        split_update(settings.tokens_per_update, settings.max_tokens, settings.update_freq, processes)


def rates_of(recipe: Recipe) -> dict[str, Any]:
    """The rates of dropout that a recipe gives to the model that it starts from."""
    return {name: recipe.model[name] for name in RATES if recipe.model.get(name) is not None}


def build_model(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, start: Start | None = None
) -> ResidualForConditionalGeneration | ResidualForCausalLM:
    """The initial model of a run, or the one to start from, with the generation settings of the recipe."""
    if start is None:
        model = recipe.chosen_task.model(build_config(recipe, tokenizer))
    else:
        tags = start.model.config.language_tags
        if tags not in (None, recipe.data.language_tags):
            given = recipe.data.language_tags
            logger.warning("data.language_tags: %s, but the model of model.from was trained with %r", given, tags)
        for field, own in (("placeholders", "placeholders"), ("term_tags", "glossary")):
            if getattr(start.model.config, field) and not getattr(recipe.data, own):
                logger.warning("data.%s: missing, but the model of model.from was trained with it", own)
        config = start_config(start, tokenizer, rates_of(recipe) | tokenizer_fields(recipe, tokenizer))
        model = with_vocabulary(start, tokenizer, scale_dual_stream(config, recipe.training.precision))
    choose_weights(model, recipe.training, start.added if start is not None else ())
    trained, total = model.num_parameters(only_trainable=True), model.num_parameters()
    if trained < total:
        logger.info("training %d of %d parameters, the others are frozen", trained, total)
    if recipe.training.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    set_search(model, recipe.decoding)
    if adds_codes(tokenizer):
        generation = model.generation_config
        generation.decoder_start_token_id = model.config.decoder_start_token_id
        generation.forced_bos_token_id = target_code(tokenizer) if begins_with_code(tokenizer) else None
    return model


def set_search(model: Any, decoding: DecodingSettings) -> None:
    """Make the `decoding` of a recipe the default search of a model; a decoder alone has none, but begins a line."""
    generation = model.generation_config
    if model.config.is_decoder_only:
        generation.bos_token_id = model.config.eos_token_id
        return
    generation.num_beams = decoding.num_beams
    generation.decoding_dtype = decoding.dtype
    generation.max_length_a, generation.max_length_b = decoding.max_length_a, decoding.max_length_b
    generation.max_length = generation.max_new_tokens = None  # of the model to start from
    default = GenerationConfig()
    for name in ("min_length", "min_new_tokens", "no_repeat_ngram_size", "repetition_penalty"):
        if (own := getattr(generation, name)) != getattr(default, name):
            logger.warning("model.from: its %s of %s is not kept: no field of decoding has it", name, own)
            setattr(generation, name, getattr(default, name))
    of_beams = decoding if generation.num_beams > 1 else default
    generation.length_penalty, generation.early_stopping = of_beams.length_penalty, of_beams.early_stopping


def choose_weights(model: nn.Module, settings: TrainingSettings, added: Collection[str] = ()) -> None:
    """Add the adapters of `lora`, and exclude the parameters of `freeze` from training.

    The parameters that a new `ln_mode` has added, which have no effect as yet, are trained beside adapters.

    Raises `InputError` for a pattern that no name matches, or if nothing is left to train.
    """
    if settings.lora is not None:
        new = [parameter for name, parameter in model.named_parameters() if name in added]
        add_lora(model, settings.lora)
        for parameter in new:
            parameter.requires_grad = True
    named = dict(model.named_parameters(remove_duplicate=False))  # both names of a table that stacks share
    for pattern in settings.freeze:
        for name in matching(pattern, named, "training.freeze"):
            named[name].requires_grad = False
    if not any(parameter.requires_grad for parameter in named.values()):
        shown = ", ".join(settings.freeze)
        raise InputError(f"training.freeze: {shown} matches all parameters, so that none is trained")


def scale_dual_stream(config: ResidualConfig, precision: str = "fp16") -> ResidualConfig:
    """Scale ResiDual's dual stream down so that fp16 can represent the sum of its branches, for this precision only.

    A stack of N layers whose mode has `dual_scale` 1 gets s = 2^-ceil(log2 N) (1/32 for 18 layers; the official
    OPUS-100 recipe uses 0.05) and s^2 times the epsilon of the dual norm. LN(s*r) with epsilon s^2 * e equals LN(r)
    with epsilon e, and s is a power of two, so the fp32 logits stay bitwise identical. With an unchanged epsilon they
    would differ by up to 8e-5 at s = 0.05.
    """
    changes: dict[str, Any] = {}
    for own in config.stack_configs if precision == "fp16" else ():
        is_bounded = issubclass(NORM_TYPES[own.norm_type], DynamicTanh)  # does not take the scale out of its input
        if getattr(own.options, "dual_scale", None) == 1.0 and own.layers > 1 and not is_bounded:
            scale = 2.0 ** -math.ceil(math.log2(own.layers))
            scaled = {"dual_scale": scale, "dual_layer_norm_eps": own.options.dual_layer_norm_eps * scale**2}
            changes[f"{own.stack}_ln_mode_options"] = asdict(own.options) | scaled
            message = "fp16: dual_scale %g in the %s of %d layers; logits do not change"
            logger.info(message, scale, own.stack, own.layers)
    return type(config)(**{**config.to_dict(), **changes}) if changes else config
