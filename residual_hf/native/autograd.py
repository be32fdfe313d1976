"""Operations of training on a CPU, with their gradients: residual connections with dropout, weighted sums, the loss.

Each equals an expression of PyTorch, given the same mask. Inputs are fp32. Masks have 16 random bits per value and
depend on a seed that is drawn from PyTorch's generator, so that `torch.manual_seed`, gradient checkpointing and
resuming have the effect they have on `torch.nn.functional.dropout`.
"""

from collections.abc import Sequence
from ctypes import Structure, byref, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import loaded_library, threads_for
from .structures import DropoutNorm, LabelSoftmax, WeightedSums

SEEDS = 2**62
VALUES_PER_THREAD = 1 << 16  # fewer are not worth a thread


def draw_seed(rate: float) -> int:
    return int(torch.randint(SEEDS, ())) if rate else 0


def _threads(tensor: Tensor) -> int:
    return threads_for(tensor.numel(), VALUES_PER_THREAD)


def check_shapes(shape: torch.Size, **tensors: Tensor | None) -> None:
    """Raise `ValueError` for a tensor of another shape, beyond which the kernels would read."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)} given, must be {tuple(shape)}")


def dropout(values: Tensor, rate: float) -> Tensor:
    """`F.dropout(values, rate)` for `0 <= rate < 1`."""
    return _DropoutAdd.apply(values, None, rate, draw_seed(rate)) if rate else values


def dropout_add(branch: Tensor, stream: Tensor, rate: float) -> Tensor:
    """`stream + F.dropout(branch, rate)`, each (..., width)."""
    check_shapes(stream.shape, branch=branch)
    return _DropoutAdd.apply(branch, stream, rate, draw_seed(rate))


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, branch: Tensor, stream: Tensor | None, rate: float, seed: int) -> Tensor:
        ctx.rate, ctx.seed = rate, seed
        return masked(branch, rate, seed, stream)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return masked(gradient, ctx.rate, ctx.seed), gradient if ctx.needs_input_grad[1] else None, None, None


def masked(values: Tensor, rate: float, seed: int, stream: Tensor | None = None) -> Tensor:
    """`values` with the mask of a seed, kept ones divided by `1 - rate`, the others 0; plus the values of `stream`."""
    values, stream = values.contiguous(), None if stream is None else stream.contiguous()
    total = torch.empty_like(values)
    run("dropout_norm", DropoutNorm, values, branch=values, stream=stream, sum=total, rate=rate, seed=seed)
    return total


def dropout_add_norm(
    branch: Tensor,
    stream: Tensor,
    rate: float,
    gain: Tensor,
    bias: Tensor | None,
    epsilon: float,
    *,
    centered: bool = True,
    dual: Tensor | None = None,
    dual_scale: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """`norm(stream + a)` and `dual + dual_scale * a` (None without `dual`), where `a = F.dropout(branch, rate)`.

    Args:
        branch, stream, dual: (..., width).
        gain, bias: (width,), of a LayerNorm, or of an RMSNorm if not `centered`.
    """
    check_shapes(stream.shape, branch=branch, dual=dual)
    check_shapes(stream.shape[-1:], gain=gain, bias=bias)
    settings = {"rate": rate, "seed": draw_seed(rate), "dual_scale": dual_scale, "epsilon": epsilon}
    return _DropoutAddNorm.apply(branch, stream, dual, gain, bias, {**settings, "centered": centered})


class _DropoutAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        branch: Tensor,
        stream: Tensor,
        dual: Tensor | None,
        gain: Tensor,
        bias: Tensor | None,
        settings: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        branch, stream = branch.contiguous(), stream.contiguous()
        dual = None if dual is None else dual.contiguous()
        total, output = torch.empty_like(stream), torch.empty_like(stream)
        dual_output = None if dual is None else torch.empty_like(dual)
        statistics = stream.new_empty(stream.numel() // stream.shape[-1], 2)
        inputs = {"branch": branch, "stream": stream, "dual": dual, "gain": gain, "bias": bias}
        outputs = {"sum": total, "output": output, "dual_output": dual_output, "statistics": statistics}
        run("dropout_norm", DropoutNorm, stream, **settings, **inputs, **outputs)
        ctx.settings, ctx.has_bias = settings, bias is not None
        ctx.save_for_backward(total, gain, statistics)
        return output, dual_output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, grad_dual: Tensor | None) -> tuple[Tensor | None, ...]:
        total, gain, statistics = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        grad_dual = None if grad_dual is None else grad_dual.contiguous()
        grad_branch, grad_stream = torch.empty_like(total), torch.empty_like(total)
        width = total.shape[-1]
        grad_gain, grad_bias = total.new_zeros(2, _threads(total), -(-width // 16) * 16)
        inputs = {"sum": total, "gain": gain, "statistics": statistics}
        gradients = {"grad_output": grad_output, "grad_dual": grad_dual}
        outputs = {"grad_branch": grad_branch, "grad_stream": grad_stream}
        outputs |= {"grad_gain": grad_gain, "grad_bias": grad_bias}
        run("dropout_norm", DropoutNorm, total, **ctx.settings, **inputs, **gradients, **outputs)
        grad_gain, grad_bias = (partial.sum(0)[:width] for partial in (grad_gain, grad_bias))
        return grad_branch, grad_stream, grad_dual, grad_gain, grad_bias if ctx.has_bias else None, None


def pointer(tensor: Tensor) -> int:
    if tensor.dtype != torch.float32 or not tensor.is_cpu or not tensor.is_contiguous():
        given = f"{tensor.dtype} on {tensor.device} with strides {tensor.stride()}"
        raise TypeError(f"the kernels need contiguous fp32 on the CPU, not {given}")
    return tensor.data_ptr()


def weighted_sums(weights: Tensor, members: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """sum_k w_jk v_k for all j, with weights (..., m, n) or (m, n) and n members v, each (..., width)."""
    shapes = [tuple(member.shape) for member in members]
    if weights.shape[-1] != len(shapes) or len({*shapes}) > 1:
        raise RuntimeError(f"weighted_sums: weights {tuple(weights.shape)} for {len(shapes)} members {shapes}")
    return _WeightedSums.apply(weights.expand(*members[0].shape[:-1], *weights.shape[-2:]), None, 0.0, *members)


def depth_attention(members: Sequence[Tensor], query: Tensor, epsilon: float) -> Tensor:
    """sum_k p_k v_k with p = softmax_k(query . v_k / sqrt(mean(v_k^2) + epsilon)) of members v, each (..., width)."""
    return _WeightedSums.apply(None, query, epsilon, *members)[0]


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor | None, query: Tensor | None, epsilon: float, *members: Tensor
    ) -> tuple[Tensor, ...]:
        members = tuple(member.contiguous() for member in members)
        rows, reads = members[0].shape[:-1], None
        if query is not None:
            query, reads = query.contiguous(), query.new_empty(*rows, len(members), 2)
        weights = members[0].new_empty(*rows, 1, len(members)) if weights is None else weights.contiguous()
        outputs = tuple(torch.empty_like(members[0]) for _ in range(weights.shape[-2]))
        tensors = {"weights": weights, "query": query, "reads": reads, "member": members, "output": outputs}
        run_sums(tensors, epsilon=epsilon)
        ctx.save_for_backward(weights, query, reads, *members)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weights, query, reads, *members = ctx.saved_tensors
        gradients = tuple(gradient.contiguous() for gradient in gradients)
        grad_weights, grad_members = torch.empty_like(weights), [torch.empty_like(member) for member in members]
        tensors = {"weights": weights, "query": query, "reads": reads, "member": members, "grad_output": gradients}
        tensors |= {"grad_weights": grad_weights, "grad_member": grad_members}
        if query is None:
            run_sums(tensors)
            return grad_weights, None, None, *grad_members
        grad_query = query.new_zeros(_threads(members[0]), -(-len(query) // 16) * 16)
        run_sums({**tensors, "grad_query": grad_query})
        return None, grad_query.sum(0)[: len(query)], None, *grad_members


def run_sums(tensors: dict[str, Any], epsilon: float = 0.0) -> None:
    members, (outputs, _) = tensors["member"], tensors["weights"].shape[-2:]
    sizes = {"members": len(members), "outputs": outputs}
    run("weighted_sums", WeightedSums, members[0], epsilon=epsilon, **sizes, **tensors)


def run(kernel: str, kind: type[Structure], rows: Tensor, **fields: Any) -> None:
    """Run a kernel on rows of this shape, (..., width), with numbers, contiguous tensors and sequences of these."""
    width, threads = rows.shape[-1], _threads(rows)
    values = {name: argument(value) for name, value in fields.items()}
    getattr(loaded_library(), kernel)(byref(kind(rows=rows.numel() // width, width=width, threads=threads, **values)))


def argument(value: Any) -> Any:
    """A tensor as a pointer, a sequence of tensors as an array of pointers."""
    if isinstance(value, Tensor):
        return pointer(value)
    return (c_void_p * len(value))(*map(pointer, value)) if isinstance(value, Sequence) else value


def softmax_(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Turn logits (rows, classes) into probabilities, in place. `labels` are (rows,).

    Returns two scalars, summed over the rows: `-log p` of the label, and `log p` of all classes.
    """
    rows, classes = logits.shape
    if rows and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise IndexError(f"labels from {int(labels.min())} to {int(labels.max())}, must be in 0 to {classes - 1}")
    sums = logits.new_empty(2, rows)
    labels = labels.long().contiguous()  # keeps the memory of the pointer
    tensors = {"logits": logits, "nll": sums[0], "log_prob_sums": sums[1]}
    run("label_softmax", LabelSoftmax, logits, labels=labels.data_ptr(), **tensors)
    nll, log_prob_sum = sums.sum(dim=1)
    return nll, log_prob_sum
