# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Matrix products of training on a CPU whose fp32 operands are rounded to bf16. Sums and results are fp32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import instruction_set, loaded_library
from .autograd import pointer
from .structures import Product

PRODUCTS_PER_THREAD = 1 << 22  # fewer multiplications are not worth a thread
_rounding = False


@contextmanager
def bf16_products() -> Iterator[None]:
    """Context in which `matmul` on a CPU rounds to bf16; with AMX, PyTorch's products do so too."""
    global _rounding
    torch_products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = _rounding, torch_products.fp32_precision
    _rounding, torch_products.fp32_precision = True, "bf16"
    try:
        yield
    finally:
        _rounding, torch_products.fp32_precision = before


def matmul(left: Tensor, right: Tensor, *, bias: Tensor | None = None, add_to: Tensor | None = None) -> Tensor:
    """The product of two matrices, (m, k) and (k, n), plus a `bias` (n,), or added to the values of `add_to` (m, n).

    The type is that of the matrices, or of `add_to`.
    """
    served = left.is_cpu and left.dtype == torch.float32 and left.numel()
    if _rounding and served and instruction_set() == "avx512_bf16":
        return _kernel(left, right, bias, add_to)
    if add_to is None:
        return left @ right if bias is None else torch.addmm(bias, left, right)
    return add_to.addmm_(left, right) if add_to.dtype == left.dtype else add_to.add_(left @ right)


def _kernel(left: Tensor, right: Tensor, bias: Tensor | None, add_to: Tensor | None) -> Tensor:
    left, right = (matrix if 1 in matrix.stride() else matrix.contiguous() for matrix in (left, right))
    (rows, inner), columns = left.shape, right.shape[1]
    output = left.new_empty(rows, columns) if add_to is None else add_to
    threads = max(1, min(torch.get_num_threads(), rows * columns * inner // PRODUCTS_PER_THREAD))
    arguments = Product(rows, columns, inner, threads, add_to is not None, left.data_ptr(), right.data_ptr())
    arguments.left_strides[:], arguments.right_strides[:] = left.stride(), right.stride()[::-1]
    arguments.bias = None if bias is None else pointer(bias)
    arguments.output = pointer(output)
    scratch = torch.empty(loaded_library().product_scratch_size(byref(arguments)), dtype=torch.uint8)
    arguments.scratch = scratch.data_ptr()
    loaded_library().product(byref(arguments))
    return output


def linear_bf16(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` whose three matrix products, of the output and both gradients, have bf16 operands."""
    return _LinearBF16.apply(inputs, weight, bias)


class _LinearBF16(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        with bf16_products():
            return matmul(inputs.flatten(0, -2), weight.t(), bias=bias).view(*inputs.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        needs = ctx.needs_input_grad
        with bf16_products():
            grad_inputs = matmul(rows, weight).view(inputs.shape) if needs[0] else None
            grad_weight = matmul(rows.t(), inputs.flatten(0, -2)) if needs[1] else None
        return grad_inputs, grad_weight, rows.sum(0) if needs[2] else None
