"""Label-smoothed cross entropy, of logits or fused with the output projection so that full logits are never stored.

With `nll` the negative log-likelihood of the label, `p` the softmax, `V` the number of classes and `e` the smoothing,
the loss of one token is `a * nll + b * sum_v(-log p_v)`, where

    "fairseq":  b = e / (V - 1),  a = 1 - e - b     (fairseq since February 2021)
    "torch":    b = e / V,        a = 1 - e         (torch, Transformers; fairseq before)

In both `a + b * V = 1`, hence the gradient with respect to the logits is `p - b - a * onehot(label)`.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accelerate.utils import gather_object
from torch import Tensor
from torch.autograd.function import once_differentiable

from residual_hf.base.errors import InputError
from residual_hf.model.norms import at_least_fp32
from residual_hf.native.products import matmul

from .consistency import TwoPasses, pairwise
from .token_costs import PairCost, SmoothedCost

SMOOTHING_FORMS: dict[str, Callable[[float, int], tuple[float, float]]] = {
    "fairseq": lambda epsilon, classes: (1.0 - epsilon - epsilon / (classes - 1), epsilon / (classes - 1)),
    "torch": lambda epsilon, classes: (1.0 - epsilon, epsilon / classes),
}
"""Maps a form to its (a, b), given the smoothing and the number of classes."""

IGNORED = -100
"""The label of rows without a loss."""
CPU_CHUNK_ROWS = 256
"""Rows projected at a time on a CPU: large enough for efficient matrix products, small enough for the caches."""
GPU_CHUNK_LOGITS = 1 << 26
"""Logits computed at a time on other devices (256 MB in fp32): enough to fill a GPU with few kernels."""


class LossSums(NamedTuple):
    """Sums over the tokens of a batch that are not ignored, in nats: scalars on the device of the labels.

    `smoothed` is the training loss and carries the gradient; `nll` is the negative log-likelihood, for reporting;
    `tokens` is the number of tokens.
    """

    smoothed: Tensor
    nll: Tensor
    tokens: Tensor

    def per_token(self, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The smoothed loss divided by `num_items_in_batch`, the Trainer's count of the labels of all accumulation
        steps and ranks; by the tokens of this batch if that is None."""
        items = self.tokens.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        return self.smoothed / (items.to(self.smoothed.device) if isinstance(items, Tensor) else items)


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, *, epsilon: float = 0.1, form: str = "fairseq") -> LossSums:
    """Label-smoothed cross entropy of logits [..., classes] and labels [...], computed in at least fp32.

    Labels of `IGNORED` do not count. Raises `InputError` for an `epsilon` outside [0, 1).
    """
    nll_weight, sum_weight = _weights(epsilon, form, logits.size(-1))
    kept = labels != IGNORED
    log_probs = F.log_softmax(logits[kept], dim=-1, dtype=at_least_fp32(logits.dtype))
    nll = -log_probs.gather(-1, labels[kept].unsqueeze(-1)).sum()
    smoothed = nll_weight * nll
    if sum_weight:
        smoothed = smoothed - sum_weight * log_probs.sum()
    return LossSums(smoothed, nll.detach(), kept.sum())


def fused_linear_smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    epsilon: float = 0.1,
    form: str = "fairseq",
    pair: tuple[float, bool] | None = None,
) -> LossSums:
    """`smoothed_cross_entropy(F.linear(hidden, weight, bias), labels)` without storing the logits.

    Chunks of rows are projected, and differentiated at once if required, so the memory needed is that of the logits of
    a chunk, see `CPU_CHUNK_ROWS`, and of the gradient of `weight`. Matrix products use the autocast type under
    autocast and the type of `hidden` otherwise; softmax and sums use fp32 (fp64 for fp64 input). The result can be
    differentiated once.

    Args:
        hidden: decoder output, [..., width].
        weight: output projection, [classes, width].
        labels: [...], the leading shape of `hidden`; rows with the label `IGNORED` do not count.
        bias: [classes].
        epsilon, form: see the module's docstring.
        pair: the last two values of a `PairCost`, if every two rows are predictions of one token.

    Raises `InputError` for an `epsilon` outside [0, 1), and for mismatched shapes.
    """
    weights = _weights(epsilon, form, weight.size(0))
    cost = SmoothedCost(*weights) if pair is None else PairCost(*weights, *pair)
    if hidden.shape[:-1] != labels.shape or hidden.size(-1) != weight.size(-1):
        raise InputError(
            f"hidden: shape {tuple(hidden.shape)} given, must be the shape of labels {tuple(labels.shape)} followed "
            f"by the width of weight, {weight.size(-1)}"
        )
    kind = hidden.device.type
    chunk_rows = CPU_CHUNK_ROWS if kind == "cpu" else max(2, GPU_CHUNK_LOGITS // weight.size(0))
    chunk_rows -= chunk_rows % 2  # pairs of rows stay together
    is_kept = (labels != IGNORED).flatten()
    kept = is_kept.nonzero().squeeze(1)  # the only wait for a GPU; it saves the projection of padding
    hidden = hidden.reshape(-1, hidden.size(-1))
    if len(kept) < len(hidden):
        hidden = hidden.index_select(0, kept)
    labels = labels.flatten().index_select(0, kept)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    smoothed, nll = _FusedLinearLoss.apply(
        hidden, weight, bias, labels, cost, chunk_rows, dtype, torch.is_grad_enabled()
    )
    return LossSums(smoothed, nll, is_kept.sum())


class LossMeter:
    """Criterion of the model that also sums the loss and the unsmoothed NLL, for the logs.

    With `passes`, differences between the two passes of a training batch are penalized. The loss and the NLL still are
    per target token of the corpus; the NLL is that of one pass.
    """

    def __init__(self, epsilon: float, form: str, passes: TwoPasses | None = None):
        self.fused = partial(fused_linear_smoothed_cross_entropy, epsilon=epsilon, form=form)
        self.epsilon = epsilon
        self.passes = passes
        self.reset()

    def reset(self) -> None:
        self.sums: tuple[Tensor | float, ...] = (0.0, 0.0, 0)
        self.started = time.perf_counter()

    def __call__(
        self,
        hidden: Tensor,
        weight: Any,
        labels: Tensor,
        num_items: Tensor | int | None = None,
        bias: Tensor | None = None,
        nll: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        if nll is not None:
            if self.epsilon or self.passes is not None:
                raise InputError("adaptive_cutoffs: not supported with label smoothing, R-Drop or SimCut above 0")
            loss = nll(hidden, labels)
            sums = LossSums(loss, loss.detach(), (labels != IGNORED).sum())
        elif self.passes is not None and self.passes.active:
            pair = self.passes.alpha, self.passes.cutoff is None
            sums = self.fused(pairwise(hidden), weight, pairwise(labels), bias=bias, pair=pair)
            sums = sums._replace(tokens=sums.tokens // 2)
            self.passes.active = False  # a sharded model is evaluated in a full copy, which has no such hooks
        else:
            sums = self.fused(hidden, weight, labels, bias=bias)
        batch = (sums.smoothed.detach(), sums.nll, sums.tokens)
        self.sums = tuple(total + value for total, value in zip(self.sums, batch, strict=True))
        return sums.per_token(num_items)

    def read(self) -> dict[str, float]:
        """Means over the target tokens of all processes since the last call: `loss`, `nll` (nats), `ppl`; and
        `tokens_per_second`. Every process must call it."""
        per_process = gather_object([[float(total) for total in self.sums]])
        smoothed, nll, tokens = (sum(totals) for totals in zip(*per_process, strict=True))
        speed = tokens / max(time.perf_counter() - self.started, 1e-9)
        self.reset()
        if not tokens:
            return {}
        perplexity = math.exp(min(nll / tokens, 700))
        return {"loss": smoothed / tokens, "nll": nll / tokens, "ppl": perplexity, "tokens_per_second": speed}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context for an evaluation, with separate sums and without its time."""
        sums, seconds = self.sums, time.perf_counter() - self.started
        self.reset()
        try:
            yield
        finally:
            self.sums, self.started = sums, time.perf_counter() - seconds


def _weights(epsilon: float, form: str, classes: int) -> tuple[float, float]:
    """The weights (a, b) of the module's docstring."""
    if not 0.0 <= epsilon < 1.0:
        raise InputError(f"label smoothing: {epsilon} given, must be at least 0 and below 1")
    return SMOOTHING_FORMS[form](epsilon, classes)


class _FusedLinearLoss(torch.autograd.Function):
    """Sums of the smoothed loss and the NLL over all rows; `forward` computes the gradients as well.

    The constant part of the gradient with respect to the logits, `-b` in label smoothing, needs no matrix of rows *
    classes: it adds `-b * sum_v W_v` to every row of d hidden, and `-b * sum_rows h` to every row of d weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        cost: SmoothedCost | PairCost,
        chunk_rows: int,
        matmul_dtype: torch.dtype,
        grad_enabled: bool,
    ) -> tuple[Tensor, Tensor]:
        needs = [grad_enabled and needed for needed in ctx.needs_input_grad[:3]]
        dtype = at_least_fp32(matmul_dtype)
        smoothed = torch.zeros((), dtype=dtype, device=hidden.device)
        nll_sum = torch.zeros_like(smoothed)
        grad_hidden = torch.empty_like(hidden) if needs[0] else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if needs[1] else None
        grad_bias = torch.zeros_like(bias, dtype=dtype) if bias is not None and needs[2] else None
        with torch.autocast(hidden.device.type, enabled=False):
            matrix = weight.to(matmul_dtype)
            weight_sum = weight.sum(0, dtype=dtype)
            for start in range(0, len(hidden), chunk_rows):
                part = slice(start, start + chunk_rows)
                rows = hidden[part].to(matmul_dtype)
                label = labels[part].unsqueeze(1)
                logits = matmul(rows, matrix.t())
                if bias is not None:
                    logits = logits.to(dtype).add_(bias)
                loss, nll, grad_logits = cost(logits, label, dtype, any(needs))
                del logits
                smoothed += loss
                nll_sum += nll
                if grad_logits is None:
                    continue
                if grad_bias is not None:
                    grad_bias += grad_logits.sum(0)
                grad_logits = grad_logits.to(matmul_dtype)
                if grad_hidden is not None:
                    grad_hidden[part] = matmul(grad_logits, matrix).sub(weight_sum, alpha=cost.constant)
                if grad_weight is not None:
                    matmul(grad_logits.t(), rows, add_to=grad_weight)
            if grad_weight is not None:
                grad_weight.sub_(hidden.sum(0, dtype=dtype), alpha=cost.constant)
            if grad_bias is not None:
                grad_bias -= cost.constant * len(hidden)
        ctx.save_for_backward(
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if bias is None or grad_bias is None else grad_bias.to(bias.dtype),
        )
        ctx.mark_non_differentiable(nll_sum)
        return smoothed, nll_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_smoothed: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if gradient is None else gradient * grad_smoothed for gradient in ctx.saved_tensors)
        return (*gradients, None, None, None, None, None)
