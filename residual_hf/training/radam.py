# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""RAdam as used in the Admin papers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from residual_hf.base.errors import InputError

from .fairseq_adam import FairseqAdam


class RAdam(FairseqAdam):
    """Adam with a rectified step size (Liu et al. 2020), as implemented in the Transformer-Clinic repository.

    Update t = 1, 2, ... of a parameter p with gradient g:

        m <- b1 * m + (1 - b1) * g
        v <- b2 * v + (1 - b2) * g^2
        p <- p - lr * weight_decay * p
        p <- p - lr * r_t * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)    if rho_t >= 5

        rho = 2 / (1 - b2) - 1
        rho_t = rho - 2 * t * b2^t / (1 - b2^t)
        r_t^2 = (rho_t - 4) * (rho_t - 2) * rho / ((rho - 4) * (rho - 2) * rho_t)

    The first updates (5 for b2 = 0.98 and 0.999) only apply weight decay, whereas the paper, and
    `torch.optim.RAdam` with `decoupled_weight_decay=True`, use the momentum: p <- p - lr / (1 - b1^t) * m. torch also
    requires rho_t > 5 instead of >= 5, which makes no difference in practice.

    Args:
        params, lr, betas, eps, weight_decay: see `FairseqAdam`.

    Raises:
        InputError: as for `FairseqAdam`, or b2 of at most 2/3, with which no update is ever made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        betas = self.defaults["betas"]
        if betas[1] <= 2 / 3:
            raise InputError(f"betas: {betas} given, the second must be above 2/3, as radam makes no update below")

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter], step: int) -> None:
        beta1, beta2 = group["betas"]
        lr = float(group["lr"])
        weights: list[Tensor] = list(parameters)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        means = [self.state[parameter]["exp_avg"] for parameter in parameters]
        squares = [self.state[parameter]["exp_avg_sq"] for parameter in parameters]
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        if group["weight_decay"]:
            torch._foreach_add_(weights, weights, alpha=-group["weight_decay"] * lr)
        scale = rectified_scale(beta1, beta2, step)
        if scale:
            denominators = torch._foreach_sqrt(squares)
            torch._foreach_add_(denominators, group["eps"])
            torch._foreach_addcdiv_(weights, means, denominators, value=-lr * scale)


def rectified_scale(beta1: float, beta2: float, update: int) -> float:
    """The factor r_t * sqrt(1 - b2^t) / (1 - b1^t) of update t, counted from 1; 0 while rho_t is below 5."""
    decayed = beta2**update
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * update * decayed / (1 - decayed)
    if length < 5:
        return 0.0
    rectification = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return math.sqrt((1 - decayed) * rectification) / (1 - beta1**update)
