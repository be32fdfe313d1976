# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Training on a CPU with the native kernels.

`accelerated(model)` replaces the `forward` of dropouts, of attention over the depth, and of the residual connections
in `JOINS`; and the attention `sdpa` in the layers of the model. Dropout masks have the distribution of PyTorch's, but
other values for the same seed. With `precision="bf16"` linear maps and the criterion round the operands of their
matrix products to bf16. Weights, sums, attention, norms and gradients remain in fp32.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from residual_hf.model.connections import ResidualConnection, Stream, Sublayer
from residual_hf.model.decoding import is_changed
from residual_hf.model.layers import ResidualAttention
from residual_hf.model.ln_modes import PostLN, PreLN, ResiDual
from residual_hf.model.modes_multi_stream import DepthAttention, MultiStream
from residual_hf.model.modes_skip_scaling import DeepNorm, Keel
from residual_hf.model.norms import RMSNorm
from residual_hf.native import autograd, library, multiplies_bf16, products
from residual_hf.native.dot_attention import dot_attention, serves

logger = logging.getLogger(__name__)

OTHER_ATTENTION = ("is_causal", "position_bias", "softcap")  # options of Transformers' `sdpa` that have no kernel


@contextmanager
def accelerated(model: Any, precision: str = "fp32") -> Iterator[None]:
    """Context in which the modules of a model on a CPU that have native kernels use them for training.

    Args:
        model: with parameters in fp32; `model.criterion` is a loss, see `ResidualForConditionalGeneration`.
        precision: "fp32", or "bf16" for matrix products with AMX or AVX512_BF16. Without these, it is fp32 and a line
            is logged.
    """
    on_cpu = model.device.type == "cpu"
    bf16 = on_cpu and cpu_precision(precision) == "bf16"
    if library() is None or not on_cpu:
        yield
        return
    with faster_modules(model, bf16), faster_attention(model), bf16_criterion(model) if bf16 else nullcontext():
        yield


@contextmanager
def faster_modules(model: nn.Module, bf16: bool) -> Iterator[None]:
    replaced = {module: forward for module in model.modules() if (forward := faster_forward(module, bf16))}
    for module, forward in replaced.items():
        served: Any = partial(serve, module, forward)
        served.has_same_results = True  # so that validation decodes with the native kernels
        module.forward = served
    try:
        yield
    finally:
        for module in replaced:
            del module.forward


@contextmanager
def faster_attention(model: nn.Module) -> Iterator[None]:
    """Context in which `attn_implementation="sdpa"` means the kernel in the layers of the model."""
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    served_modules = {module for module in model.modules() if isinstance(module, ResidualAttention)}

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        plain = torch.compiler.is_compiling() or any(options.get(name) is not None for name in OTHER_ATTENTION)
        if plain or module not in served_modules or not serves(query, key, value, mask):
            return sdpa(module, query, key, value, mask, **options)
        causal = module.is_causal and mask is None and query.shape[2] > 1
        rate, scale = options["dropout"], options["scaling"]
        return dot_attention(query, key, value, mask, scale=scale, rate=rate, causal=causal), None

    ALL_ATTENTION_FUNCTIONS["sdpa"] = attend
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa


@contextmanager
def bf16_criterion(model: Any) -> Iterator[None]:
    criterion = getattr(model, "criterion", None)
    if criterion is None:
        yield
        return

    # PyTorch does not let a function take the place of a module
    owner, name = (criterion, "forward") if isinstance(criterion, nn.Module) else (model, "criterion")
    plain, is_own = getattr(owner, name), name in vars(owner)

    def in_bf16(*arguments: Any, **options: Any) -> Tensor:
        with products.bf16_products():
            return plain(*arguments, **options)

    setattr(owner, name, in_bf16)
    try:
        yield
    finally:
        setattr(owner, name, plain) if is_own else delattr(owner, name)


def cpu_precision(precision: str) -> str:
    """The precision in which a CPU trains where `precision` is requested."""
    if precision == "bf16" and multiplies_bf16():
        return precision
    if precision != "fp32":
        needs = "native kernels and AMX or AVX512_BF16 on a CPU" if precision == "bf16" else "a GPU"
        logger.warning("precision %s needs %s: training in fp32", precision, needs)
    return "fp32"


def faster_forward(module: nn.Module, bf16: bool) -> Callable[..., Any] | None:
    """A faster function with the result of `type(module).forward`, or None."""
    if "forward" in vars(module):
        return None
    if any(parameter.dtype != torch.float32 or not parameter.is_cpu for parameter in module.parameters(recurse=False)):
        return None
    if isinstance(module, ResidualConnection):
        join = JOINS.get(type(module).forward)
        return join if join is not None and is_served(module.norm) else None
    if type(module) is nn.Dropout:
        return dropout
    if type(module) is DepthAttention:
        return depth_attention if type(module.norm) is RMSNorm and is_served(module.norm) else None
    return linear if bf16 and type(module) is nn.Linear else None


def is_served(norm: Any) -> bool:
    return type(norm) in (nn.LayerNorm, RMSNorm) and norm.weight is not None and norm.eps is not None


def serve(module: nn.Module, forward: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call `forward`; for other types, autocast, compilation and hooks on the norm call the forward of the module."""
    if named:
        return type(module).forward(module, *arguments, **named)
    first, *further = arguments
    tensors = first if isinstance(first, tuple) else (first,)
    plain = (
        any(tensor.dtype != torch.float32 or not tensor.is_cpu for tensor in tensors)
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or any(is_changed(norm) for norm in module.children())
        or any(tensor.shape != tensors[0].shape for tensor in tensors)
        or any(type(sublayer.dropout) is not nn.Dropout or is_changed(sublayer.dropout) for sublayer in further)
    )
    return (type(module).forward if plain else forward)(module, first, *further)


def dropout(module: nn.Dropout, values: Tensor) -> Tensor:
    return autograd.dropout(values, rate_of(module))


def linear(module: nn.Linear, inputs: Tensor) -> Tensor:
    return products.linear_bf16(inputs, module.weight, module.bias)


def post_ln(connection: PostLN, stream: Stream, sublayer: Sublayer) -> Stream:
    (x,) = stream
    return add_norm(connection, x, x, sublayer)[:1]


def deep_norm(connection: DeepNorm, stream: Stream, sublayer: Sublayer) -> Stream:
    (x,) = stream
    return add_norm(connection, x, connection.alpha * x, sublayer)[:1]


def keel(connection: Keel, stream: Stream, sublayer: Sublayer) -> Stream:
    (x,) = stream
    return add_norm(connection, connection.input_norm(x), connection.alpha * x, sublayer)[:1]


def resi_dual(connection: ResiDual, stream: Stream, sublayer: Sublayer) -> Stream:
    x, r = stream
    return add_norm(connection, x, x, sublayer, dual=r, dual_scale=connection.options.dual_scale)


def pre_ln(connection: PreLN, stream: Stream, sublayer: Sublayer) -> Stream:
    (x,) = stream
    return (autograd.dropout_add(sublayer.scaled(connection.norm(x)), x, rate_of(sublayer.dropout)),)


def multi_stream(connection: MultiStream, stream: Stream, sublayer: Sublayer) -> Stream:
    read, mix, write = connection.weights(torch.stack(stream, dim=-2))
    (h,) = autograd.weighted_sums(read[..., None, :], stream)
    a = sublayer(connection.norm(h))
    mix_and_write = torch.cat([mix, write[..., None, :]], dim=-2).transpose(-1, -2)
    return autograd.weighted_sums(mix_and_write, (*stream, a))


def depth_attention(attention: Any, members: Stream) -> Tensor:
    norm = attention.norm
    return autograd.depth_attention(members, norm.weight * attention.query, norm.eps)


JOINS: dict[Callable[..., Stream], Callable[..., Stream]] = {
    PostLN.forward: post_ln,
    PreLN.forward: pre_ln,
    ResiDual.forward: resi_dual,
    DeepNorm.forward: deep_norm,
    Keel.forward: keel,
    MultiStream.forward: multi_stream,
}
"""By the `forward` of a mode, which its subclasses may share."""


def add_norm(connection: Any, read: Tensor, shortcut: Tensor, sublayer: Sublayer, **dual: Any) -> Any:
    norm = connection.norm
    return autograd.dropout_add_norm(
        sublayer.scaled(read),
        shortcut,
        rate_of(sublayer.dropout),
        norm.weight,
        getattr(norm, "bias", None),
        norm.eps,
        centered=isinstance(norm, nn.LayerNorm),
        **dual,
    )


def rate_of(module: nn.Dropout) -> float:
    return module.p if module.training else 0.0
