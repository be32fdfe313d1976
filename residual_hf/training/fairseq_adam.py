"""Adam as implemented in fairseq."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from residual_hf.base.errors import InputError, InputSettings
from residual_hf.model.options import option


@dataclass(frozen=True)
class AdamSettings(InputSettings):
    """The numbers of Adam."""

    lr: float = option(5e-4, above=0, help="peak learning rate")
    betas: tuple[float, float] = option((0.9, 0.98), minimum=0, below=1, help="decay rates of Adam's two moments")
    eps: float = option(1e-8, above=0, help="epsilon of Adam")
    weight_decay: float = option(1e-4, minimum=0, help="decoupled weight decay")


class FairseqAdam(Optimizer):
    """Adam with decoupled weight decay, as implemented in fairseq (Kingma and Ba 2015, end of section 2).

    Update t = 1, 2, ... of a parameter p with gradient g:

        m <- b1 * m + (1 - b1) * g
        v <- b2 * v + (1 - b2) * g^2
        p <- p - lr * weight_decay * p
        p <- p - lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)

    `torch.optim.AdamW` adds eps to the square root of the bias-corrected v. With `eps / sqrt(1 - b2^t)` as its eps it
    makes the same update, so torch's fused kernel is used here.

    Raises `InputError` for a number out of range, and for parameters that are neither fp32 nor fp64: use autocast for
    mixed precision.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = AdamSettings.betas,
        eps: float = AdamSettings.eps,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, asdict(AdamSettings(lr, betas, eps, weight_decay)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"optimizer: {type(self).__name__} given a parameter of type {parameter.dtype}, must be float32 "
                    "or float64; keep the weights in float32 and train under autocast, or use adamw"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update each parameter that has a gradient; returns the result of `closure`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                    state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["step"] += 1
                alike[parameter.device, parameter.dtype, state["step"]].append(parameter)
            for (_, _, step), parameters in alike.items():
                self._update(group, parameters, step)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter], step: int) -> None:
        """Make update `step` of parameters of one device and type."""
        beta1, beta2 = group["betas"]
        before = torch.full((len(parameters),), step - 1.0, device=parameters[0].device)
        adamw(
            list[Tensor](parameters),
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
            [],
            list(before.unbind()),
            fused=True,
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"] / math.sqrt(1.0 - beta2**step),
            weight_decay=group["weight_decay"],
            amsgrad=False,
            maximize=False,
        )
