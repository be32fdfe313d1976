# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The training section of a recipe."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from residual_hf.data.batching import BATCH_ORDERS
from residual_hf.errors import InputError

from .loss import SMOOTHING_FORMS
from .optimization import OPTIMIZERS
from .schedules import SCHEDULES

DECAY_RULES = ("all", "hf")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")  # tf32: fp32 with TF32 matrix products; bf16, fp16: autocast
METRICS = {"nll": False, "loss": False, "bleu": True, "chrf": True, "tokenized_bleu": True}  # is greater better


@dataclass
class TrainingSettings:
    """Everything that decides the course of a training run; names and defaults are fairseq's where it has them.

    `max_tokens` counts padded tokens of the longer side per batch and process, `"auto"` is what the device holds;
    `batch_order: fairseq` makes fairseq's own batches (see `TokenBudgetSampler`). `update_freq` batches make an
    update; with `tokens_per_update`, the budget of all processes and batches of an update together, `update_freq`
    follows from the number of processes.
    `max_updates` and `max_epochs`: whichever comes first; one of them is needed. `eval_every` updates evaluate, save
    and keep the best by `metric`; `patience` evaluations without a better one stop the run. `average` checkpoints at
    the end, the `"last"` or the `"best"` ones (`average_of`), make the final model; 0 takes the best one alone.
    With `ema_decay` above 0 the moving average of the weights is evaluated and, of the best checkpoint, kept.
    A run stops when its loss is no number or its NLL rises above `divergence_factor` times the lowest one (0: never).
    `deepspeed` is a DeepSpeed configuration (JSON); what `accelerate launch` is told by its own counts as well.
    """

    max_tokens: int | str = 4096
    update_freq: int = 1
    tokens_per_update: int | None = None
    max_updates: int | None = None
    max_epochs: int | None = None
    lr: float = 5e-4
    schedule: str = "inverse_sqrt"
    warmup_updates: int = 4000
    warmup_init_lr: float = 1e-7
    optimizer: str = "fairseq_adam"
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    eps: float = 1e-8
    weight_decay: float = 1e-4
    weight_decay_on: str = "all"
    clip_norm: float = 0.0
    label_smoothing: float = 0.1
    label_smoothing_form: str = "fairseq"
    precision: str = "fp32"
    seed: int = 1
    eval_every: int = 1000
    eval_bleu: bool = True
    metric: str = "nll"
    patience: int | None = None
    divergence_factor: float = 4.0
    keep_last: int = 2
    keep_best: int = 1
    average: int = 0
    average_of: str = "last"
    ema_decay: float = 0.0
    log_every: int = 50
    batch_order: str = "length_bucketed"
    batch_size_multiple: int = 8
    pad_to_multiple_of: int | None = None
    gradient_checkpointing: bool = False
    compile: bool = False
    num_workers: int = 0
    deepspeed: str | None = None
    report_to: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        choices = {
            "schedule": SCHEDULES,
            "optimizer": OPTIMIZERS,
            "weight_decay_on": DECAY_RULES,
            "label_smoothing_form": SMOOTHING_FORMS,
            "precision": PRECISIONS,
            "batch_order": BATCH_ORDERS,
            "metric": METRICS,
            "average_of": ("last", "best"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"training.{name}: {getattr(self, name)!r} given, must be one of {sorted(allowed)}")
        if isinstance(self.max_tokens, str) and self.max_tokens != "auto":
            raise InputError(f"training.max_tokens: {self.max_tokens!r} given, must be a number or 'auto'")
        positive = ["update_freq", "lr", "eps", "eval_every", "keep_last", "keep_best", "log_every"]
        positive += ["max_updates", "max_epochs", "patience", "batch_size_multiple", "tokens_per_update"]
        for name in (*positive, *(["max_tokens"] if self.max_tokens != "auto" else [])):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"training.{name}: {value} given, must be above 0")
        for name in (
            "warmup_updates",
            "warmup_init_lr",
            "weight_decay",
            "clip_norm",
            "seed",
            "num_workers",
            "average",
        ):
            if not getattr(self, name) >= 0:
                raise InputError(f"training.{name}: {getattr(self, name)} given, must be at least 0")
        for name in ("label_smoothing", "ema_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"training.{name}: {getattr(self, name)} given, must be in [0, 1)")
        if self.tokens_per_update is not None and self.update_freq != 1:
            raise InputError(f"training.update_freq: {self.update_freq} given, but tokens_per_update decides it")
        if self.average and self.ema_decay:
            raise InputError(f"training.average: {self.average} given beside ema_decay; choose one of them")
        if self.max_updates is None and self.max_epochs is None:
            raise InputError("training: give max_updates or max_epochs")
        kept = {"last": self.keep_last, "best": self.keep_best}[self.average_of]
        if self.average > kept:
            raise InputError(
                f"training.average: {self.average} given, but keep_{self.average_of} leaves {kept} checkpoints"
            )
        self._check_files_and_libraries()
        if METRICS[self.metric] and not self.eval_bleu:
            raise InputError(f"training.metric: {self.metric!r} needs eval_bleu: true")

    def _check_files_and_libraries(self) -> None:
        if self.report_to:
            from transformers.integrations import get_available_reporting_integrations

            available = get_available_reporting_integrations()
            for name in self.report_to:
                if name not in available:
                    raise InputError(
                        f"training.report_to: {name!r} is not installed or not known; there are {available or 'none'}"
                    )
        if self.deepspeed is not None:
            if not Path(self.deepspeed).is_file():
                raise InputError(f"training.deepspeed: {self.deepspeed}: there is no such file")
            if importlib.util.find_spec("deepspeed") is None:
                raise InputError(f"training.deepspeed: {self.deepspeed} needs the library: pip install deepspeed")

    def to_arguments(self, output_dir: str, **further: Any) -> Any:
        """The `Seq2SeqTrainingArguments` of this run."""
        from transformers import Seq2SeqTrainingArguments

        return Seq2SeqTrainingArguments(
            output_dir=output_dir,
            max_steps=self.max_updates or -1,
            num_train_epochs=self.max_epochs or 1,
            gradient_accumulation_steps=self.update_freq,
            learning_rate=self.lr,
            max_grad_norm=self.clip_norm,
            label_smoothing_factor=0.0,
            bf16=self.precision == "bf16",
            fp16=self.precision == "fp16",
            use_cpu=not torch.accelerator.is_available(),
            seed=self.seed,
            eval_strategy="steps",
            eval_steps=self.eval_every,
            save_strategy="steps",
            save_steps=self.eval_every,
            load_best_model_at_end=True,
            metric_for_best_model=f"eval_{self.metric}",
            greater_is_better=METRICS[self.metric],
            logging_steps=self.log_every,
            logging_first_step=True,
            torch_compile=self.compile,
            dataloader_num_workers=self.num_workers,
            dataloader_pin_memory=torch.cuda.is_available(),
            ddp_find_unused_parameters=False,
            remove_unused_columns=False,
            report_to=self.report_to or "none",
            restore_callback_states_from_checkpoint=True,
            deepspeed=self.deepspeed,
            **further,
        )
