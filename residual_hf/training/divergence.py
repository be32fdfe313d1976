"""Stopping a run that has diverged, with the layer where it happened."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import TrainerCallback

MINIMUM_LOSS_SCALE = 1e-4
"""fairseq's `min_loss_scale`."""


class TrainingDivergedError(RuntimeError):
    """Training has diverged. The checkpoints written before are kept."""


class DivergenceGuard(TrainerCallback):
    """Raises `TrainingDivergedError` if a logged loss is not finite, or above `factor` times the lowest one so far.

    The second needs a rise of 0.5 nats at least: a small loss doubles easily. With `factor` 0, and for evaluations,
    the loss only has to be finite. The loss is `nll` if it is logged, `loss` otherwise. With fp16 an infinite gradient
    norm is normal: `GradScaler` skips that update and halves its scale. Then a logged `loss_scale` below
    `MINIMUM_LOSS_SCALE` stops the run. Works with any `Trainer`; one that does not log `loss_scale` is not stopped by
    overflows in fp16.
    """

    def __init__(self, factor: float = 0.0):
        self.factor = factor

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **kwargs: Any) -> None:
        if not logs or logs.keys().isdisjoint(("loss", "eval_loss")):
            return
        if args.fp16:  # a plain `Trainer` does not log the loss scale
            logs = {"loss_scale": 1.0, **logs}
        reason = self.reason(logs, state.log_history[:-1])
        if reason is None:
            return
        batches = kwargs.get("train_dataloader")  # None before training
        batch = None if batches is None else next(iter(batches))
        dtype = torch.float16 if args.fp16 else torch.bfloat16
        with torch.autocast(model.device.type, dtype, enabled=args.fp16 or args.bf16):
            where = first_not_finite(model, batch)
        raise TrainingDivergedError(
            f"diverged by update {state.global_step}: {reason}; {where}. The checkpoints written before are kept. Try "
            "a lower training.lr, more warmup_updates, clip_norm, or a mode that needs no warm-up (residual-hf modes)"
        )

    def reason(self, logs: Mapping[str, float], history: list[dict[str, float]]) -> str | None:
        """Why a run with this entry in its log has diverged; None if it has not."""
        scale = logs.get("loss_scale")
        checked = ("nll", "loss", "eval_nll", "eval_loss")
        for name in checked if scale is not None else (*checked, "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                return f"{name} is {logs[name]}"
        if scale is not None and scale < MINIMUM_LOSS_SCALE:
            return f"the loss scale of fp16 is {scale:g}, below {MINIMUM_LOSS_SCALE:g}; bf16 and fp32 do not overflow"
        name = "nll" if "nll" in logs else "loss"
        lowest = min((entry[name] for entry in history if name in entry), default=math.inf)
        if self.factor and logs.get(name, 0.0) > max(self.factor * lowest, lowest + 0.5):
            return f"{name} is {logs[name]:.3f} and was {lowest:.3f}: above divergence_factor {self.factor:g}"
        return None


@torch.no_grad()
def first_not_finite(model: nn.Module, batch: Mapping[str, Any] | None) -> str:
    """Name the first parameter that is not finite, or the first module whose output on a batch is not."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the first weights that are not finite: {name}"
    names = {module: name for name, module in model.named_modules() if next(module.children(), None) is None}
    found: list[str] = []

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        if module in names and not found and isinstance(output, Tensor) and not output.isfinite().all():
            found.append(names[module])

    if batch is not None:
        with register_module_forward_hook(note):
            model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
    return f"the first output that is not finite: {found[0]}" if found else "weights and outputs are still finite"
