# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Which values of a `ResidualConfig` go together. A check raises `ValueError` with the field and what is allowed."""

import math
from dataclasses import fields
from typing import Any

from .connections import STACKS, get_ln_mode
from .ln_modes import NormAtEnd
from .options import check_declared, unknown_choice


def check_config(config: Any) -> None:
    """Check all fields: each by its declaration, then those that depend on others."""
    for f in fields(config):
        check_declared(f, vars(config)[f.name])
    if config.activation_function != "relu":
        from transformers.activations import ACT2FN  # takes as long to import as PyTorch

        if config.activation_function not in ACT2FN:
            raise ValueError(unknown_choice("activation_function", config.activation_function, ACT2FN))
    for field in (f"{stack}_attention_heads" for stack in config.stacks):
        if config.d_model % (heads := getattr(config, field)):
            raise ValueError(f"{field} must divide d_model, but {config.d_model} % {heads} is not 0")
    if config.position_embedding_type.startswith("sinusoidal") and config.d_model % 2:
        raise ValueError(f"d_model must be even for sinusoidal positions, not {config.d_model}")
    get_ln_mode(config.ln_mode)
    for stack in STACKS:
        config.mode_of(stack)
    check_stacks(config)
    check_vocabularies(config)
    check_modes(config)


def check_stacks(config: Any) -> None:
    """Refuse fields that a model with these stacks does not have."""
    if config.is_decoder_only and config.is_encoder_only:
        raise ValueError("is_decoder_only and is_encoder_only are both True: set one of them")
    if config.is_encoder_decoder != (len(config.stacks) == 2):
        field = "is_encoder_decoder" if len(config.stacks) == 2 else f"is_{config.stacks[0]}_only"
        value = getattr(config, field)
        raise ValueError(f"{field}: {value} was set later: pass {field}={value} to {type(config).__name__}")
    if config.adaptive_cutoffs is not None:
        check_adaptive(config)
    check_speech(config)
    mode = config.mode_of(config.stacks[-1])
    if not config.final_norm and not (config.is_decoder_only and issubclass(mode.Boundary, NormAtEnd)):
        raise ValueError(f"final_norm: False needs is_decoder_only and a mode like 'pre_ln', not {mode.name!r}")
    if len(config.stacks) == 2:
        if config.position_embedding_type == "rotary" or config.gated_ffn:
            field = "gated_ffn" if config.gated_ffn else "position_embedding_type 'rotary'"
            raise ValueError(f"{field} needs is_decoder_only or is_encoder_only")
        return
    if config.position_embedding_type == "rotary" and config.d_model // config.num_attention_heads % 2:
        raise ValueError("position_embedding_type 'rotary' needs an even d_model / num_attention_heads")
    for name in config.absent_fields():
        if not config.is_default(name):
            raise ValueError(f"{name}: {getattr(config, name)!r} given, but {config.described} does not have it")
    if not config.share_encoder_decoder_embeddings:
        raise ValueError(f"share_encoder_decoder_embeddings: False given, must be True in {config.described}")


def check_adaptive(config: Any) -> None:
    """Check the bands of an adaptive input and softmax."""
    cutoffs, factor = config.adaptive_cutoffs, config.adaptive_factor
    if not config.is_decoder_only or config.fix_norm or config.output_bias:
        raise ValueError("adaptive_cutoffs need is_decoder_only, without fix_norm and output_bias")
    edges = [config.pad_token_id or 0, *cutoffs, config.vocab_size]
    if not cutoffs or any(later <= earlier for earlier, later in zip(edges, edges[1:], strict=False)):
        raise ValueError(
            f"adaptive_cutoffs: {cutoffs} given, must rise from above pad_token_id ({config.pad_token_id}) to below "
            f"vocab_size ({config.vocab_size})"
        )
    if not factor >= 1 or config.d_model // factor ** len(cutoffs) < 1:
        raise ValueError(
            f"adaptive_factor: {factor} given, must be at least 1 and leave vectors of at least one value in "
            f"{len(cutoffs) + 1} bands, from d_model {config.d_model}"
        )


def check_speech(config: Any) -> None:
    """Check the convolutions in front of the encoder of a speech model."""
    kernels, channels = config.conv_kernel_sizes, config.conv_channels
    if not kernels or any(kernel < 1 or kernel % 2 == 0 for kernel in kernels):
        raise ValueError(f"conv_kernel_sizes: {kernels} given, must be one or more odd numbers")
    if channels is not None and (len(config.stacks) == 1 or channels % 2 or not 0 < channels <= 2**20):
        allowed = "an even number above 0 and <= 1048576, in a model with encoder and decoder"
        raise ValueError(f"conv_channels: {channels} given, must be {allowed}")


def check_vocabularies(config: Any) -> None:
    """Check the sizes of the vocabularies and the special tokens."""
    if config.share_encoder_decoder_embeddings and config.decoder_vocab_size != config.vocab_size:
        raise ValueError(
            f"decoder_vocab_size ({config.decoder_vocab_size}) differs from vocab_size ({config.vocab_size}): "
            "separate vocabularies require share_encoder_decoder_embeddings=False"
        )
    for name in ("pad_token_id", "decoder_start_token_id") if config.is_encoder_decoder else ("pad_token_id",):
        if getattr(config, name) is None:
            raise ValueError(f"{name} must be set")
    size = min(config.vocab_size, config.decoder_vocab_size)
    for name in ("pad_token_id", "position_padding", "bos_token_id", "decoder_start_token_id", "eos_token_id"):
        value = getattr(config, name)
        for token in value if isinstance(value, list) else [value]:
            if token is not None and not 0 <= token < size:
                raise ValueError(f"{name} {token} is outside the vocabulary of {size} tokens")


def check_modes(config: Any) -> None:
    """Check what concerns the modes of the stacks: their options, initial weights and Admin's profile."""
    if config.ln_mode_options and config.ln_mode not in [config.mode_of(stack).name for stack in config.stacks]:
        raise ValueError(f"ln_mode_options are for ln_mode {config.ln_mode!r}, which no stack uses")
    for own in config.stack_configs:
        if own.layerdrop and not own.mode.supports_layerdrop:
            raise ValueError(f"{own.stack}_layerdrop must be 0 with ln_mode {own.ln_mode!r}, not {own.layerdrop}")
        if own.init_style == "looklinear" and own.ffn_dim % 2:
            raise ValueError(f"{own.stack}_ffn_dim must be even for looklinear, not {own.ffn_dim}")
    profile, sublayers = config.admin_profile or (), sum(own.num_sublayers for own in config.stack_configs)
    if profile and len(profile) != sublayers:
        raise ValueError(f"admin_profile has {len(profile)} values for {sublayers} sub-layers")
    if not all(map(math.isfinite, profile)):
        raise ValueError(f"admin_profile must have finite values, not {profile}")
