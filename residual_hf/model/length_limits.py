# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""How long a translation may become, and what ends it; without imports, since the settings of commands use it."""

from typing import Any

DEFAULT_MAX_LENGTH = 20  # of Transformers


def position_limit(config: Any) -> int | None:
    """Maximum length of a source or target in tokens, or None for a model without a position table."""
    if getattr(config, "position_embedding_type", None) in ("none", "relative"):
        return None
    return getattr(config, "max_position_embeddings", None)


def length_limit(source_length: int, positions: int | None, a: float, b: float, *, prompt: int = 1) -> int:
    """New tokens of a translation at most: `a * source_length + b`, and with the prompt not more than `positions`."""
    limit = int(a * source_length + b)
    return max(1, limit if positions is None else min(limit, positions - prompt))


def own_length(generation_config: Any) -> int | None:
    """New tokens of a translation at most, by the `max_new_tokens` or `max_length` of a model; None without them."""
    if generation_config.max_new_tokens is not None:
        return int(generation_config.max_new_tokens)
    longest = generation_config.max_length
    return None if longest in (None, DEFAULT_MAX_LENGTH) else max(1, longest - 1)  # without the token it begins with


def has_length_rule(generation_config: Any) -> bool:
    """Whether a model limits translations by `max_length_a` and `max_length_b`, and not by a length of its own.

    `Seq2SeqTrainer` enters the default `max_length` of Transformers into the generation config of models without one.
    """
    rule = (getattr(generation_config, name, None) for name in ("max_length_a", "max_length_b"))
    return own_length(generation_config) is None and None not in rule


def end_tokens(config: Any) -> list[int]:
    """The tokens that end a sequence, by a config or a generation config."""
    ends = config.eos_token_id
    return ends if isinstance(ends, list) else [ends]
