# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The model of a recipe, freshly initialised."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

from .precision import scale_dual_stream
from .recipe import Recipe


def build_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> ResidualConfig:
    """The recipe's config with the vocabulary, the special tokens and the languages of a tokenizer."""
    vocabulary = {"vocab_size": len(tokenizer)}
    target_size = getattr(tokenizer, "target_vocab_size", None)
    if target_size is not None:
        vocabulary |= {"decoder_vocab_size": target_size, "share_encoder_decoder_embeddings": False}
    several = recipe.data.language_tags is not None
    config = recipe.build_config(
        **vocabulary,
        source_lang=None if several else recipe.source_lang,
        target_lang=None if several else recipe.target_lang,
        language_tags=recipe.data.language_tags,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id,
    )
    return scale_dual_stream(config) if recipe.training.precision == "fp16" else config


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> ResidualForConditionalGeneration:
    """A freshly initialised model with the generation settings of the recipe."""
    model = ResidualForConditionalGeneration(build_config(recipe, tokenizer))
    if recipe.training.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    generation = model.generation_config
    generation.num_beams = recipe.decoding.num_beams
    if generation.num_beams > 1:
        generation.length_penalty = recipe.decoding.length_penalty
        generation.early_stopping = recipe.decoding.early_stopping
    return model
