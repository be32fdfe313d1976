# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Caches of keys and values, and their name: Transformers 5.24 renamed `past_key_values` to `cache`."""

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import Seq2SeqModelOutput

Method = TypeVar("Method", bound=Callable[..., Any])

CACHE = "cache" if any(field.name == "cache" for field in fields(Seq2SeqModelOutput)) else "past_key_values"
"""Name of a cache in arguments and outputs of the installed Transformers."""
RUNS_ONCE = "self-attention runs twice, or not in the first layer, which makes its cache wrong: give use_cache=False"


def accepts_cache(forward: Method) -> Method:
    """Decorator of a method with an argument `past_key_values`, which may also be called `CACHE`.

    Of two caches an empty `cache` is ignored: PEFT passes a prefix by the former name next to the new cache of
    `generate`. Before 5.24, `cache` is an argument of the attention, with which continuous batching calls a model.
    """
    if CACHE == "past_key_values":
        return forward

    @wraps(forward)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        cache, former = kwargs.pop("cache", None), kwargs.get("past_key_values")
        if cache is not None and (former is None or cache.get_seq_length()):
            kwargs["past_key_values"] = cache
        return forward(*args, **kwargs)

    return renamed  # type: ignore[return-value]


def self_attention_cache(past_key_values: Cache) -> Cache:
    """The cache of self-attention: a part of the cache, or all of it without cross-attention."""
    return getattr(past_key_values, "self_attention_cache", past_key_values)


def static_length(past_key_values: Any) -> int | None:
    """The places of a static cache, None for others."""
    layers = getattr(self_attention_cache(past_key_values), "layers", None)
    return getattr(layers[0], "max_cache_len", None) if layers else None


def check_runs(own: Cache, tokens: int) -> None:
    """Raise `ValueError` if a growing cache has more than `tokens` in a layer, or fewer in the first, which counts."""
    if isinstance(own, DynamicCache):
        lengths = [layer.get_seq_length() for layer in own.layers]
        if lengths[0] != tokens or max(lengths) > tokens:
            raise ValueError(RUNS_ONCE)
