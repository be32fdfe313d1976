"""Dot-product attention of training on a CPU, with dropout of its weights and with gradients."""

from ctypes import byref
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from . import loaded_library, threads_for
from .autograd import draw_seed, pointer
from .structures import DotAttention

PRODUCTS_PER_THREAD = 1 << 20  # fewer multiplications are not worth a thread
MASK_PADDING = 16  # keys of a mask that the kernel reads at once, at most


def fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the kernel can compute the attention of these tensors, see `dot_attention`."""
    sentences, heads, queries, size = query.shape
    states = key.shape == value.shape == (sentences, heads, key.shape[2], size) and key.shape[2] > 0
    tensors = all(x.is_cpu and x.dtype == torch.float32 and x.stride(-1) == 1 for x in (query, key, value))
    if not (states and tensors and query.numel()):
        return False
    return mask is None or (
        mask.dtype == torch.bool and mask.shape == (sentences, 1, queries, key.shape[2]) and mask.stride(-1) == 1
    )


def dot_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float, rate: float, causal: bool
) -> Tensor:
    """dropout(softmax(scale * q k^T)) v over the keys where `mask` is true; a query without any has the output 0.

    Returns (sentences, queries, heads, size).

    Args:
        query, key, value: (sentences, heads, rows, size).
        mask: (sentences, 1, queries, keys), or None.
        rate: of the dropout, at least 0 and below 1.
        causal: a query attends to the keys up to its own position.
    """
    return _DotAttention.apply(query, key, value, mask, {"scale": scale, "rate": rate, "causal": causal})


class _DotAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: dict[str, Any]
    ) -> Tensor:
        ctx.settings = {**settings, "seed": draw_seed(settings["rate"])}
        output = query.new_empty(query.transpose(1, 2).shape)
        log_sums = query.new_empty(query.shape[:-1])
        ctx.save_for_backward(query, key, value, log_sums)
        ctx.mask = None if mask is None else F.pad(mask, (0, -mask.shape[-1] % MASK_PADDING))
        arguments, _scratch = arguments_for(query, key, value, ctx.mask, log_sums, ctx.settings)
        arguments.output = pointer(output)
        loaded_library().dot_attention(byref(arguments))
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, log_sums = ctx.saved_tensors
        gradient = gradient.contiguous()
        gradients = [states.new_empty(states.transpose(1, 2).shape) for states in (query, key, value)]
        arguments, _scratch = arguments_for(query, key, value, ctx.mask, log_sums, ctx.settings)
        arguments.grad_output = pointer(gradient)
        arguments.grad_query, arguments.grad_key, arguments.grad_value = map(pointer, gradients)
        loaded_library().dot_attention(byref(arguments))
        return *(states.transpose(1, 2) for states in gradients), None, None


def arguments_for(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, log_sums: Tensor, settings: dict[str, Any]
) -> tuple[DotAttention, Tensor]:
    """The arguments of the kernel, and the memory that it works in."""
    sentences, heads, queries, size = query.shape
    keys = key.shape[2]
    products = sentences * heads * queries * keys * size
    threads = min(sentences * heads, threads_for(products, PRODUCTS_PER_THREAD))
    arguments = DotAttention(sentences, heads, queries, keys, size, threads, **settings)
    for name, states in (("query", query), ("key", key), ("value", value)):
        setattr(arguments, name, states.data_ptr())
        getattr(arguments, f"{name}_strides")[:] = states.stride()[:3]
    if mask is not None:
        arguments.mask = mask.data_ptr()
        arguments.mask_strides[:] = mask.stride(0), mask.stride(2)
    arguments.log_sums = pointer(log_sums)
    scratch = torch.empty(loaded_library().dot_attention_scratch_size(byref(arguments)), dtype=torch.uint8)
    arguments.scratch = scratch.data_ptr()
    return arguments, scratch
