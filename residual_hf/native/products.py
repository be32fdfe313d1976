"""Matrix products of training on a CPU whose fp32 operands are rounded to bf16. Sums and results are fp32."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import instruction_set, loaded_library, threads_for
from .autograd import pointer
from .structures import Product

PRODUCTS_PER_THREAD = 1 << 22  # fewer multiplications are not worth a thread
_lock = threading.Lock()
_contexts = 0  # that round, in all threads
_precision = ""  # of PyTorch's kernel outside of them


@contextmanager
def bf16_products() -> Iterator[None]:
    """Context in which `matmul` on a CPU rounds to bf16. With AMX, PyTorch's kernel does, for all of its products."""
    global _contexts, _precision
    torch_products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _lock:
        if not _contexts:
            _precision, torch_products.fp32_precision = torch_products.fp32_precision, "bf16"
        _contexts += 1
    try:
        yield
    finally:
        with _lock:
            _contexts -= 1
            if not _contexts:
                torch_products.fp32_precision = _precision


def matmul(left: Tensor, right: Tensor, *, bias: Tensor | None = None, add_to: Tensor | None = None) -> Tensor:
    """The product of two matrices, (m, k) and (k, n), plus a `bias` (n,), or added to the values of `add_to` (m, n).

    The type is that of the matrices, or of `add_to`.
    """
    tensors = [tensor for tensor in (left, right, bias, add_to) if tensor is not None]
    served = all(tensor.is_cpu and tensor.dtype == torch.float32 and tensor.numel() for tensor in tensors)
    if _contexts and served and fits(left, right, bias, add_to) and instruction_set() == "avx512_bf16":
        return _kernel(left, right, bias, add_to)
    if add_to is None:
        return left @ right if bias is None else torch.addmm(bias, left, right)
    return add_to.addmm_(left, right) if add_to.dtype == left.dtype else add_to.add_(left @ right)


def fits(left: Tensor, right: Tensor, bias: Tensor | None, add_to: Tensor | None) -> bool:
    """Whether the kernel can write the product. PyTorch serves other shapes, or says what is wrong with them."""
    if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        return False
    shape = left.shape[0], right.shape[1]
    return (bias is None or bias.shape == shape[1:]) and (
        add_to is None or (add_to.shape == shape and add_to.is_contiguous())
    )


@torch.compiler.disable
def _kernel(left: Tensor, right: Tensor, bias: Tensor | None, add_to: Tensor | None) -> Tensor:
    left, right = (matrix if 1 in matrix.stride() else matrix.contiguous() for matrix in (left, right))
    (rows, inner), columns = left.shape, right.shape[1]
    output = left.new_empty(rows, columns) if add_to is None else add_to
    threads = threads_for(rows * columns * inner, PRODUCTS_PER_THREAD)
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
            rows = inputs.reshape(-1, inputs.shape[-1])
            return matmul(rows, weight.t(), bias=bias).view(*inputs.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, len(weight))
        needs = ctx.needs_input_grad
        with bf16_products():
            grad_inputs = matmul(rows, weight).view(inputs.shape) if needs[0] else None
            grad_weight = matmul(rows.t(), inputs.reshape(-1, inputs.shape[-1])) if needs[1] else None
        return grad_inputs, grad_weight, rows.sum(0) if needs[2] else None
