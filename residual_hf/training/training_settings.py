"""The `training` section of a recipe."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import Seq2SeqTrainingArguments

from residual_hf.base.errors import InputSettings
from residual_hf.base.processes import this_process
from residual_hf.data.batching import BATCH_ORDERS
from residual_hf.evaluation.scorer import FIGURES
from residual_hf.evaluation.sentence_metrics import ERROR_RATES, ROUGE
from residual_hf.losses.consistency import TwoPasses
from residual_hf.losses.label_smoothing import SMOOTHING_FORMS, LossMeter
from residual_hf.model.options import option

from .schedules import ScheduleSettings

LOSSES = ("nll", "loss")
METRICS = {**dict.fromkeys((*LOSSES, *ERROR_RATES), False), **dict.fromkeys((*FIGURES, *ROUGE), True)}
"""Whether greater is better."""


@dataclass(frozen=True)
class DiagnosticsSettings(InputSettings):
    """Probes during training, see `DiagnosticsCallback`."""

    every: int = option(
        100, minimum=1, help="updates between measurements of activations, gradients and updates of each sub-layer"
    )


@dataclass(frozen=True)
class LoraSettings(InputSettings):
    """Low-rank adapters, which are trained instead of the weights and added to them at the end."""

    also_called = {  # PEFT
        "rank": "r",
        "modules_to_save": "also",
    }

    r: int = option(8, minimum=1, help="rank: columns of the first and rows of the second matrix")
    alpha: float = option(16.0, above=0, help="the product is multiplied by `alpha / r`")
    dropout: float = option(0.0, minimum=0, below=1, help="dropout of the inputs of the adapters")
    targets: tuple[str, ...] = option(
        ("q_proj", "v_proj"), help="linear layers: names such as `fc1`, or patterns such as `model.decoder.*.fc?`"
    )
    also: tuple[str, ...] = option(
        (), help="names or patterns of other parameters to train, such as `*embed_tokens*` for a new vocabulary"
    )


@dataclass(frozen=True)
class TrainingSettings(ScheduleSettings):
    """Hyperparameters of a training run; names and defaults follow fairseq."""

    also_called = {  # in Transformers, fairseq, JoeyNMT, OpenNMT
        "learning_rate": "lr",
        "learning_rate_warmup": "warmup_updates",
        "max_steps": "max_updates",
        "train_steps": "max_updates",
        "max_time": "max_minutes",
        "batch_size": "max_tokens",
        "per_device_train_batch_size": "max_tokens",
        "gradient_accumulation_steps": "update_freq",
        "batch_multiplier": "update_freq",
        "clip_grad_norm": "clip_norm",
        "label_smoothing_factor": "label_smoothing",
        "validation_freq": "eval_every",
        "valid_steps": "eval_every",
        "save_steps": "eval_every",
        "logging_steps": "log_every",
        "save_total_limit": "keep_last",
        "metric_for_best_model": "metric",
        "early_stopping": "patience",
        "early_stopping_patience": "patience",
        "bf16": "precision",
    }

    max_tokens: int | Literal["auto"] = option(
        4096,
        minimum=1,
        help="batch size per process, in padded tokens (not sentences) of the longer side; `auto`: the largest",
    )
    update_freq: int = option(1, minimum=1, help="batches per update (gradient accumulation)")
    tokens_per_update: int | None = option(
        None, minimum=1, help="batch size of an update over all processes; determines `update_freq`"
    )
    max_updates: int | None = option(
        None, minimum=1, may_change=True, help="stop after this many updates; required if `max_epochs` is not set"
    )
    max_epochs: int | None = option(
        None,
        minimum=1,
        may_change=True,
        help="stop after this many epochs, if `max_updates` is not reached before; not with `data.stream`",
    )
    max_minutes: float | None = option(
        None,
        above=0,
        may_change=True,
        help="stop after this many minutes of training and make the model from what is trained; `--resume` goes on "
        "for as long again, until `max_updates` or `max_epochs`",
    )
    clip_norm: float = option(0.0, minimum=0, help="maximum gradient norm; 0: no clipping")
    label_smoothing: float = option(0.1, minimum=0, below=1, help="label smoothing")
    label_smoothing_form: str = option(
        "fairseq", choices=SMOOTHING_FORMS, help="`fairseq`: smooth over the other classes; `torch`: over all classes"
    )
    r_drop: float = option(
        0.0,
        minimum=0,
        help="weight of R-Drop, 5 in Liang et al. 2021, which penalizes differences between two passes with "
        "different dropout; an update takes two to three times as long",
    )
    simcut: float = option(
        0.0,
        minimum=0,
        help="weight of SimCut, 3 in Gao et al. 2022, which penalizes differences between a pass with and a pass "
        "without dropped embeddings; an update takes two to three times as long",
    )
    simcut_rate: float = option(0.05, above=0, below=1, help="share of embeddings that SimCut drops")
    precision: str = option(
        "fp32",
        choices=("fp32", "tf32", "bf16", "fp16"),  # tf32: fp32 with TF32 matrix products
        help="`bf16`, `fp16`: autocast; on a CPU with AMX or AVX512_BF16, `bf16` rounds the operands of linear layers "
        "and of the loss; on other CPUs it is fp32",
    )
    seed: int = option(1, minimum=0, maximum=2**32 - 1, help="seed of weights, batches and dropout")
    eval_every: int = option(
        1000, minimum=1, may_change=True, help="updates between evaluations; each saves a checkpoint"
    )
    eval_bleu: bool = option(
        True, may_change=True, help="translate validation sentences at evaluations; `false`: only compute the loss"
    )
    eval_sentences: int | None = option(
        500,
        minimum=1,
        may_change=True,
        help="number of validation sentences to translate at evaluations, evenly spaced; `null`: all",
    )
    eval_beams: int = option(
        1,
        minimum=1,
        maximum=1000,
        may_change=True,
        help="beam size at evaluations; the final scores use `decoding.num_beams`",
    )
    eval_samples: int = option(
        3, minimum=0, may_change=True, help="number of translations in the log at each evaluation"
    )
    metric: str = option("nll", choices=METRICS, help="metric that selects the best checkpoint")
    patience: int | None = option(
        None, minimum=1, may_change=True, help="stop after this many evaluations without improvement"
    )
    divergence_factor: float = option(
        4.0,
        minimum=0,
        may_change=True,
        help="stop if the NLL is above this multiple of its minimum; 0: only if it is not finite",
    )
    keep_last: int = option(2, minimum=1, may_change=True, help="number of last checkpoints to keep")
    keep_best: int = option(1, minimum=1, may_change=True, help="number of best checkpoints to keep")
    average: int = option(
        0,
        minimum=0,
        may_change=True,
        help="average this many checkpoints, or all if fewer, into the model; 0: use the best",
    )
    average_of: str = option("last", choices=("last", "best"), may_change=True, help="which checkpoints to average")
    ema_decay: float = option(
        0.0,
        minimum=0,
        below=1,
        help="decay of an exponential moving average of the weights, which is evaluated and saved; 0: none",
    )
    log_every: int = option(50, minimum=1, may_change=True, help="updates between log entries")
    batch_order: str = option(
        "length_bucketed",
        choices=BATCH_ORDERS,
        help="`length_bucketed`: least padding; `fairseq`: the batches of fairseq",
    )
    batch_size_multiple: int = option(8, minimum=1, help="make the number of sentences in a batch a multiple of this")
    pad_to_multiple_of: int | None = option(None, minimum=1, maximum=1024, help="pad lengths to a multiple of this")
    freeze: tuple[str, ...] = option(
        (), help="names of parameters that are not trained, or patterns such as `model.encoder.*`"
    )
    lora: LoraSettings | None = option(
        None, help="train low-rank adapters of the model in `model.from` instead of its weights: `{r: 8}`, see below"
    )
    gradient_checkpointing: bool = option(
        False, may_change=True, help="recompute activations in the backward pass to save memory"
    )
    compile: bool = option(False, may_change=True, help="use `torch.compile`")
    num_workers: int = option(
        0, minimum=0, maximum=256, may_change=True, help="data loader processes; 0 with `data.stream`"
    )
    deepspeed: str | Path | None = option(None, help="DeepSpeed configuration (JSON file)")
    diagnostics: DiagnosticsSettings | None = option(
        None,
        may_change=True,
        help="measure each sub-layer during training, warn of spikes and write `diagnostics.jsonl`: `{every: 100}`, "
        "see below",
    )
    report_to: tuple[str, ...] = option(
        (),
        may_change=True,
        help="installed trackers: `tensorboard`, `wandb`, `trackio` or another tracker of Transformers",
    )

    @property
    def token_budget(self) -> int:
        """`max_tokens` of a run, where `resolve_batch_size` has replaced "auto" by a number."""
        assert self.max_tokens != "auto"
        return self.max_tokens

    def loss_meter(self, model: Any = None) -> LossMeter:
        """The `criterion` of a model, with the second pass of R-Drop or SimCut if `model` is given."""
        passes, weight = None, self.r_drop or self.simcut
        if model is not None and weight:
            passes = TwoPasses(model, weight, self.simcut_rate if self.simcut else None)
        return LossMeter(self.label_smoothing, self.label_smoothing_form, passes)

    def check(self) -> None:
        self.require(self.max_updates or self.max_epochs, "max_updates", "given unless max_epochs is")
        self.require(
            self.tokens_per_update is None or self.update_freq == 1, "update_freq", "1 with tokens_per_update"
        )
        self.require(not (self.r_drop and self.simcut), "simcut", "0 with r_drop")
        self.require(not (self.average and self.ema_decay), "average", "0 with ema_decay")
        kept = {"last": self.keep_last, "best": self.keep_best}[self.average_of]
        self.require(self.average <= kept, "average", f"<= keep_{self.average_of} ({kept})")
        self.require(self.eval_bleu or self.metric in LOSSES, "eval_bleu", f"true with metric {self.metric!r}")
        self.require(not (self.diagnostics and self.compile), "diagnostics", "null with compile")
        self.require(not (self.diagnostics and self.deepspeed), "diagnostics", "null with deepspeed")
        self.check_schedule(self.max_updates)

    def check_libraries(self) -> None:
        """Raise `InputError` for a library that is missing here; only training needs it."""
        if self.deepspeed is not None:
            self.require(Path(self.deepspeed).is_file(), "deepspeed", "a file")
            installed = importlib.util.find_spec("deepspeed")
            self.require(installed, "deepspeed", "null without the library (pip install deepspeed)")
        if self.report_to:
            from transformers.integrations import integration_utils as trackers

            installed = trackers.get_available_reporting_integrations()
            missing = [name for name in self.report_to if name not in installed]
            known = [name for name in missing if name in trackers.INTEGRATION_TO_CALLBACK]
            advice = f" (pip install {' '.join(known)})" if known else ""
            here = ", ".join(installed) or "none"
            self.require(not missing, "report_to", f"installed trackers, here: {here}{advice}; [] for none")

    def to_arguments(self, output_dir: str, **further: Any) -> Seq2SeqTrainingArguments:
        """The `Seq2SeqTrainingArguments` of this run."""
        on_cpu = this_process().device.type == "cpu"  # also with a Mac's GPU, in one of several processes
        return Seq2SeqTrainingArguments(
            output_dir=output_dir,
            max_steps=self.max_updates or -1,
            num_train_epochs=self.max_epochs or 1,
            gradient_accumulation_steps=self.update_freq,
            learning_rate=self.lr,
            max_grad_norm=self.clip_norm,
            bf16=self.precision == "bf16" and (not on_cpu or self.compile),
            fp16=self.precision == "fp16" and not on_cpu,
            use_cpu=on_cpu,
            seed=self.seed,
            eval_strategy="steps",
            eval_steps=self.eval_every,
            save_steps=self.eval_every,
            load_best_model_at_end=True,
            metric_for_best_model=f"eval_{self.metric}",
            greater_is_better=METRICS[self.metric],
            logging_steps=self.log_every,
            logging_first_step=True,
            logging_nan_inf_filter=False,
            torch_compile=self.compile,
            dataloader_num_workers=self.num_workers,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            report_to=list(self.report_to) or "none",
            run_name=Path(output_dir).parent.name,
            project="residual_hf",
            restore_callback_states_from_checkpoint=True,
            deepspeed=None if self.deepspeed is None else str(self.deepspeed),
            **further,
        )
