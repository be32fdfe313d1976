# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Which models the native kernels serve, and modes that fold into one that they know."""

from __future__ import annotations

import torch
from torch import nn

from residual_hf.conversion.fold import as_double, connections, fold, fold_branch_warmup, scales_tables
from residual_hf.model.connections import get_ln_mode
from residual_hf.model.embeddings import NormalizedLinear
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.norms import RMSNorm
from residual_hf.model.stacks import ResidualStack

from . import library
from .weights import ACTIVATIONS, DTYPES, LN_MODES

LARGEST_HEAD = 128
MODULES: dict[str, tuple[type[nn.Module], ...]] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), (nn.Linear,)),
    **dict.fromkeys(("norm", "output_norm"), (nn.LayerNorm, RMSNorm)),
    "embed_norm": (nn.LayerNorm, RMSNorm, nn.Identity),
}

CHILDLESS = ("inner", "embed_tokens", "embed_positions")
"""Modules without modules of their own, such as those of adapters."""


def missing_support(model: ResidualForConditionalGeneration, dtype: str = "float32") -> str | None:
    """Why the kernels cannot decode with a model, or None if they can."""
    if library() is None:
        return "the native kernels were not built, are turned off, or need a CPU with AVX-512"
    if dtype not in DTYPES:
        return f"dtype: {dtype!r} given, allowed are {', '.join(DTYPES)}"
    if model.device.type != "cpu" or model.dtype == torch.float64:
        return f"the native kernels need a model on the CPU in fp32 or less, not {model.dtype} on {model.device}"
    quantized = {type(weight).__name__ for weight in model.parameters() if type(weight) is not nn.Parameter}
    if quantized:
        return f"the weights are of {', '.join(sorted(quantized))}"
    if type(model.lm_head) not in (nn.Linear, NormalizedLinear):
        return f"the output projection is a {type(model.lm_head).__name__}"
    return unsupported_stack(model.model.decoder)


def unsupported_stack(stack: ResidualStack) -> str | None:
    """Why the kernels cannot run an encoder or decoder, or None if they can."""
    config = stack.config
    mode = get_ln_mode(config.stack_ln_mode(stack.stack))
    if mode.name not in LN_MODES and mode.folds_into not in LN_MODES:
        return f"ln_mode {mode.name!r} has no native kernels, and does not fold into one that has"
    if config.activation_function not in ACTIVATIONS:
        return f"activation_function {config.activation_function!r} has no native kernel"
    head_size = config.d_model // config.stack_attention_heads(stack.stack)
    if head_size > LARGEST_HEAD:
        return f"heads of {head_size} values are larger than {LARGEST_HEAD}"
    for name, module in stack.named_modules():
        role = name.rpartition(".")[2]
        if type(module) not in MODULES.get(role, (type(module),)) or (role in CHILDLESS and [*module.children()]):
            return f"{stack.stack}.{name} is a {type(module).__name__}, for which there is no native kernel"
    return None if mode.name in LN_MODES else folding_problem(stack)


def folding_problem(stack: ResidualStack) -> str | None:
    scales = [connection.foldable_scales() for connection in connections(stack)]
    if not scales:
        return f"ln_mode {stack.config.stack_ln_mode(stack.stack)!r} of a model with custom code does not fold"
    if not all(as_double(scale.get("shortcut", 1.0)).all() for scale in scales):
        return "a shortcut of scale 0 cannot be folded"
    try:
        scales_tables(stack.config, {stack.stack: scales})
    except ValueError as error:
        return str(error)
    return None


def plain_stack(model: ResidualForConditionalGeneration, name: str) -> ResidualStack:
    """The encoder or decoder of a model, or a copy of it that is folded to a mode of `LN_MODES`."""
    model = fold_branch_warmup(model)
    model = model if model.config.stack_ln_mode(name) in LN_MODES else fold(model, [name])
    return model.model.get_submodule(name)
