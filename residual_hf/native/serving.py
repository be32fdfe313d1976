# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The native kernels as `model/decoding.py` uses them: weights are packed once for each model and precision."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from transformers.utils import logging

from residual_hf.base.errors import InputError
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

from .decoder import NativeDecoder

logger = logging.get_logger(__name__)
_packed: WeakKeyDictionary[ResidualForConditionalGeneration, dict[str, NativeDecoder]] = WeakKeyDictionary()


def packed_model(model: ResidualForConditionalGeneration, dtype: str | None) -> NativeDecoder | None:
    """The weights of a model, packed for the kernels; None where PyTorch must decode.

    Args:
        dtype: as for `NativeDecoder`; "float32" and None: PyTorch decodes with models that are not of fp32.
    """
    chosen = dtype or "float32"
    if torch.is_autocast_enabled("cpu") or (chosen == "float32" and model.dtype != torch.float32):
        return None
    found = _packed.setdefault(model, {}).get(chosen)
    if found is None or not found.fingerprint.matches(model):
        try:
            found = _packed[model][chosen] = NativeDecoder(model, chosen)
        except InputError as reason:
            if chosen != "float32":
                logger.warning_once(f"decoding_dtype: {dtype} is not used: {reason}")
            return None
    return found
