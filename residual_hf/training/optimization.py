"""Optimizers by name, those of fairseq and of the Admin papers, and the parameters that get weight decay."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.adamw import adamw
from transformers.trainer_pt_utils import get_parameter_names

from residual_hf.base.errors import InputError, InputSettings
from residual_hf.model.options import option

NAMES_WITHOUT_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
"""Names that the Transformers Trainer excludes from weight decay, in addition to `nn.LayerNorm` parameters."""


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
                    "or float64; keep the weights in float32 and train under autocast"
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
                    state |= {"step": 0, **{name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}}
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


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "fairseq_adam": FairseqAdam,
    "radam": RAdam,
    "adamw": partial(AdamW, fused=True),
    "sgd": lambda groups, lr, weight_decay, **_: SGD(groups, lr=lr, weight_decay=weight_decay),
}


@dataclass(frozen=True)
class OptimizerSettings(AdamSettings):
    """The optimizer of a run."""

    optimizer: str = option(
        "fairseq_adam",
        choices=OPTIMIZERS,
        help="`adamw`: of PyTorch; `radam`: of the Admin papers; `sgd`: without momentum, ignores betas and eps",
    )
    weight_decay_on: str = option(
        "all",
        choices=("all", "hf"),
        help="`all`: all parameters, as in fairseq; `hf`: as the Trainer of Transformers, all except biases and "
        "parameters of norms that it knows by class or name; a mode can exempt parameters in both cases",
    )


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> Optimizer:
    """The optimizer of a run, over the parameters of `model` that require gradients.

    Parameters that a module exempts (`no_weight_decay`) are never decayed.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    exempt = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, module in model.named_modules()
        for name in getattr(module, "no_weight_decay", ())
    }
    if settings.weight_decay_on == "hf":
        exempt |= trainable.keys() - get_parameter_names(model, [nn.LayerNorm], NAMES_WITHOUT_DECAY)
    groups: list[dict[str, Any]] = [
        {"params": [parameter for key, parameter in trainable.items() if key not in exempt]},
        {"params": [parameter for key, parameter in trainable.items() if key in exempt], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    numbers = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps, "weight_decay": settings.weight_decay}
    return OPTIMIZERS[settings.optimizer](groups, **numbers)
