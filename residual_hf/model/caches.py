# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Caches of keys and values, and their name: Transformers 5.24 renamed `past_key_values` to `cache`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from transformers.cache_utils import Cache
from transformers.modeling_outputs import Seq2SeqModelOutput

Method = TypeVar("Method", bound=Callable[..., Any])

CACHE = "cache" if any(field.name == "cache" for field in fields(Seq2SeqModelOutput)) else "past_key_values"
"""What the installed Transformers calls a cache in arguments and outputs."""


def accepts_past_key_values(forward: Method) -> Method:
    """Decorator of a method with an argument `cache`, which may also be called `past_key_values`.

    Of two caches an empty one is ignored: PEFT passes a prefix by the former name next to the new cache of `generate`.
    """

    @wraps(forward)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        former, cache = kwargs.pop("past_key_values", None), kwargs.get("cache")
        if former is not None and (cache is None or not cache.get_seq_length()):
            kwargs["cache"] = former
        return forward(*args, **kwargs)

    return renamed  # type: ignore[return-value]


def self_attention_cache(cache: Cache) -> Cache:
    """The cache of self-attention: a part of the cache, or all of it without cross-attention."""
    return cache.self_attention_cache if hasattr(cache, "self_attention_cache") else cache
