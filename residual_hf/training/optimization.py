"""Optimizers by name, and the parameters that get weight decay."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from transformers.trainer_pt_utils import get_parameter_names

from residual_hf.model.options import option

from .fairseq_adam import AdamSettings, FairseqAdam
from .radam import RAdam

NAMES_WITHOUT_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
"""Names that the Transformers Trainer excludes from weight decay, in addition to `nn.LayerNorm` parameters."""


def _fused_adamw(groups: list[dict[str, Any]], **numbers: Any) -> AdamW:
    on_known_device = all(
        parameter.device.type in ("cpu", "cuda") for group in groups for parameter in group["params"]
    )
    return AdamW(groups, fused=on_known_device, **numbers)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "fairseq_adam": FairseqAdam,
    "radam": RAdam,
    "adamw": _fused_adamw,
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
        help="`all`: all parameters, as in fairseq; `hf`: all except norms and biases; a mode can exempt parameters "
        "in both cases",
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
