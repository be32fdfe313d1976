"""Losses of rows of logits with their gradients, for each chunk of the fused projection of `loss`."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from residual_hf.native import autograd, library


class SmoothedCost(NamedTuple):
    """The label-smoothed loss of rows, with the weights a and b of `loss`.

    The part of the gradient that is the same everywhere, `-constant`, is left to the caller.
    """

    nll_weight: float
    sum_weight: float

    @property
    def constant(self) -> float:
        return self.sum_weight

    def __call__(
        self, logits: Tensor, labels: Tensor, dtype: torch.dtype, gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sums of the loss and of the NLL in `dtype`, and the gradient with respect to the logits, in their place.

        `logits` (rows, classes), `labels` (rows, 1).
        """
        probabilities, nll, log_prob_sum = probabilities_and_sums(logits, labels, dtype)
        smoothed = self.nll_weight * nll
        if self.sum_weight:  # a class of probability 0 has an infinite log p
            smoothed = smoothed - self.sum_weight * log_prob_sum
        if not gradient:
            return smoothed, nll, None
        on_label = probabilities.new_full(labels.shape, -self.nll_weight)
        return smoothed, nll, probabilities.scatter_add_(1, labels, on_label)


class PairCost(NamedTuple):
    """The loss of rows in pairs, see `consistency`: 2n and 2n + 1 are the two predictions p and q of a token.

    With `d` the difference of the two rows of logits and `z` their log-normalizers, log p - log q = d - (z_p - z_q),
    so that the gradient of KL(p | q) is p * (d - p.d) for the first row and q - p for the second.

    Attributes:
        nll_weight, sum_weight: a and b of `loss`, the label smoothing.
        both: R-Drop; else SimCut.
    """

    nll_weight: float
    sum_weight: float
    alpha: float
    both: bool

    @property
    def constant(self) -> float:
        return self.sum_weight if self.both else 0.0

    def __call__(
        self, logits: Tensor, labels: Tensor, dtype: torch.dtype, gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cost as in `SmoothedCost`; the NLL is the mean of both passes, or that of the first one."""
        first, second = (
            logits[row::2].to(dtype, copy=True, memory_format=torch.contiguous_format) for row in (0, 1)
        )  # `probabilities_and_sums` overwrites them, while `grad` overwrites the logits
        label = labels[0::2].contiguous()
        d = first - second
        p, nll, log_prob_sum = probabilities_and_sums(first, label, dtype)
        q, other_nll, other_sum = probabilities_and_sums(second, label, dtype)
        pd, qd = (torch.einsum("nv,nv->n", rows, d).unsqueeze(1) for rows in (p, q))
        if self.both:
            nll, log_prob_sum = nll + other_nll, log_prob_sum + other_sum
            divergence = (pd - qd).sum() / 2
        else:
            divergence = pd.sum() - (nll - other_nll + d.gather(1, label).sum())
        loss = self.nll_weight * nll - self.sum_weight * log_prob_sum + self.alpha * divergence
        nll = nll / 2 if self.both else nll
        if not gradient:
            return loss, nll, None
        grad = logits if logits.dtype == dtype else logits.new_empty(logits.shape, dtype=dtype)
        on_first, on_second = grad[0::2], grad[1::2]
        on_label = p.new_full(label.shape, -self.nll_weight)
        if self.both:
            half = self.alpha / 2
            torch.mul(p, 1 + half * (1 - pd), out=on_first).addcmul_(p, d, value=half).sub_(q, alpha=half)
            torch.mul(q, 1 + half * (1 + qd), out=on_second).addcmul_(q, d, value=-half).sub_(p, alpha=half)
            on_second.scatter_add_(1, label, on_label)
        else:
            torch.mul(p, 1 - self.alpha * pd, out=on_first).addcmul_(p, d, value=self.alpha).sub_(self.sum_weight)
            torch.sub(q, p, out=on_second).mul_(self.alpha)
        on_first.scatter_add_(1, label, on_label)
        return loss, nll, grad


def probabilities_and_sums(logits: Tensor, labels: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, possibly in place of the logits, and the sums of `-log p` of the labels and of all `log p`."""
    if logits.is_cpu and logits.dtype == dtype == torch.float32 and library() and not torch.compiler.is_compiling():
        return logits, *autograd.softmax_(logits, labels)
    log_probs = F.log_softmax(logits, dim=1, dtype=dtype)
    nll, log_prob_sum = -log_probs.gather(1, labels).sum(), log_probs.sum()
    return log_probs.exp_(), nll, log_prob_sum
