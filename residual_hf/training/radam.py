"""RAdam as used in the Admin papers."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from residual_hf.base.errors import InputError

from .fairseq_adam import FairseqAdam


class RAdam(FairseqAdam):
    """Adam with a rectified step size (Liu et al. 2020), as implemented in the Transformer-Clinic repository.

    The last line of an update of `FairseqAdam` becomes

        p <- p - lr * r_t * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)    if rho_t >= 5

        rho = 2 / (1 - b2) - 1
        rho_t = rho - 2 * t * b2^t / (1 - b2^t)
        r_t^2 = (rho_t - 4) * (rho_t - 2) * rho / ((rho - 4) * (rho - 2) * rho_t)

    The first updates (5 for b2 = 0.98 and 0.999) only apply weight decay, whereas the paper, and
    `torch.optim.RAdam` with `decoupled_weight_decay=True`, use the momentum: p <- p - lr / (1 - b1^t) * m. torch also
    requires rho_t > 5 instead of >= 5, which makes no difference in practice.

    Raises `InputError` as `FairseqAdam`, and for b2 of at most 2/3, with which no update is ever made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        betas = self.defaults["betas"]
        if betas[1] <= 2 / 3:
            raise InputError(f"betas: {betas} given, the second must be above 2/3, as radam makes no update below")

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter], step: int) -> None:
        lr, factor = float(group["lr"]), rectification(group["betas"][1], step)
        torch._foreach_mul_(list[Tensor](parameters), 1.0 - lr * group["weight_decay"])
        super()._update({**group, "lr": lr * factor, "weight_decay": 0.0}, parameters, step)


def rectification(beta2: float, update: int) -> float:
    """The factor r_t of update t, counted from 1; 0 while rho_t is below 5."""
    decayed = beta2**update
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * update * decayed / (1 - decayed)
    if length < 5:
        return 0.0
    return math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
