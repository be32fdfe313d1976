# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""`Seq2SeqTrainer` with fairseq's batches, loss, optimiser and schedule, and with translation in its evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import DistributedType, broadcast_object_list
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainer
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.streaming import StreamedBatches
from residual_hf.errors import InputError
from residual_hf.files import read_json, write_json
from residual_hf.generation.decode import DecodingSettings, decoding_batches, generate_ids
from residual_hf.model.profiling import profile_admin, set_profile, wants_profile

from .checkpoints import load_average, read_state
from .divergence import DivergenceGuard
from .ema import EMACallback
from .launch import set_matmul_precision
from .loss import fused_linear_smoothed_cross_entropy
from .optimization import build_optimizer
from .schedules import build_schedule
from .settings import TrainingSettings
from .sharding import gather_full_model, is_sharded, tables_in_root

STREAM_FILE = "stream.json"
"""Where the stream of training batches stood, in a checkpoint."""


class LossMeter:
    """Criterion of the model that also sums the plain NLL, so that logs show it beside the smoothed loss."""

    def __init__(self, epsilon: float, form: str):
        self.loss = partial(fused_linear_smoothed_cross_entropy, epsilon=epsilon, form=form)
        self.reset()

    def reset(self) -> None:
        self.smoothed: Tensor | float = 0.0
        self.nll: Tensor | float = 0.0
        self.tokens: Tensor | int = 0

    def __call__(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        num_items: Tensor | int | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        sums = self.loss(hidden, weight, labels, bias=bias)
        self.smoothed = self.smoothed + sums.smoothed.detach()
        self.nll = self.nll + sums.nll
        self.tokens = self.tokens + sums.tokens
        return sums.per_token(num_items)

    def per_token(self, reduce: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Smoothed loss and NLL per target token in nats over all processes since the last reset, and perplexity."""
        sums = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in (self.smoothed, self.nll, self.tokens)])
        smoothed, nll, tokens = reduce(sums).tolist()
        self.reset()
        if not tokens:
            return {}
        perplexity = math.exp(min(nll / tokens, 700))
        return {"smoothed": smoothed / tokens, "nll": nll / tokens, "ppl": perplexity, "tokens": tokens}


class TranslationTrainer(Seq2SeqTrainer):
    """Trains on batches of a token budget and evaluates by NLL, and by BLEU where references are given.

    Args:
        model: a `ResidualForConditionalGeneration`.
        settings: the training section of a recipe; it also makes the `Seq2SeqTrainingArguments`.
        output_dir: folder of the checkpoints.
        train, valid: encoded corpora; `train` may be a stream of batches.
        scorer: figures of the translations of `valid`, by name; without it, or without `decode`, only the loss is
            computed.
        decode: token ids to text.
        decoding: the beam search of the evaluation.
        forced_tags: the translation of a sentence begins with the first token of its labels (a language tag).
    """

    def __init__(
        self,
        model: Any,
        settings: TrainingSettings,
        output_dir: str,
        train: EncodedCorpus,
        valid: EncodedCorpus,
        *,
        scorer: Callable[[list[str]], dict[str, float]] | None = None,
        decode: Callable[[list[list[int]]], list[str]] | None = None,
        decoding: DecodingSettings | None = None,
        forced_tags: bool = False,
        **kwargs: Any,
    ):
        config = model.config
        streamed = isinstance(train, StreamedBatches)
        self.settings = settings
        self.scorer = scorer
        self.decode = decode
        self.decoding = decoding or DecodingSettings()
        self.forced_tags = forced_tags
        self.guard = DivergenceGuard(settings.divergence_factor)
        self.ema: EMACallback | None = None
        self._last_batch: dict[str, Tensor] | None = None
        self._stopwatch = time.perf_counter()
        self._first_epoch = 0
        self._streamed = (0, 0)
        set_matmul_precision(settings.precision)
        self.meter = LossMeter(settings.label_smoothing, settings.label_smoothing_form)
        super().__init__(
            model=model,
            args=settings.to_arguments(output_dir, ignore_data_skip=streamed),
            train_dataset=train,
            eval_dataset=valid,
            data_collator=Seq2SeqCollator(
                config.pad_token_id, config.decoder_start_token_id, pad_to_multiple_of=settings.pad_to_multiple_of
            ),
            **kwargs,
        )
        model.criterion = self.meter
        if self.accelerator.distributed_type != DistributedType.DEEPSPEED:
            # the loss is normalised by all tokens of an update; Transformers 5.4 lets accelerate divide it once more
            self.accelerator.gradient_accumulation_steps = 1
        if settings.ema_decay:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise InputError("training.ema_decay: weights that FSDP or DeepSpeed have split are not averaged")
            self.ema = EMACallback(model, settings.ema_decay)
            self.add_callback(self.ema)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As `Seq2SeqTrainer.train`; a fresh model with Admin's shortcuts is profiled on the first batch before."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            checkpoint = Path(resume_from_checkpoint)
            state = read_state(checkpoint) or {}
            self._go_on_from(checkpoint, state)
            if self._is_over(state):
                return self._take_over(checkpoint)
        elif wants_profile(self.model):
            self._profile()
        self._stopwatch = time.perf_counter()
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _go_on_from(self, checkpoint: Path, state: dict[str, Any]) -> None:
        """Take up what Transformers does not: Admin's profile, the epoch, the average and the place in the stream."""
        if wants_profile(self.model):
            set_profile(self.model, type(self.model.config).from_pretrained(checkpoint).admin_profile)
        self._first_epoch = int(state.get("epoch") or 0)
        if self.ema is not None:
            self.ema.load(checkpoint)
        if isinstance(self.train_dataset, StreamedBatches):
            stream = read_json(checkpoint / STREAM_FILE)
            self.train_dataset.start_from(stream)
            self._streamed = (stream["batches"], state["global_step"])

    def _is_over(self, state: dict[str, Any]) -> bool:
        """Whether nothing is left to train after a checkpoint; Transformers would make one more update."""
        stopping = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback", {})
        patience = stopping.get("args", {}).get("early_stopping_patience", math.inf)
        stopped = stopping.get("attributes", {}).get("early_stopping_patience_counter", 0) >= patience
        return stopped or state.get("global_step", 0) >= (self.settings.max_updates or math.inf)

    def _take_over(self, checkpoint: Path) -> TrainOutput:
        """End where training ended: with the state of its last checkpoint and the weights of its best."""
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        load_average(self.model, [Path(self.state.best_model_checkpoint or checkpoint)])
        return TrainOutput(self.state.global_step, math.nan, {})

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        if is_sharded(self.model):
            split, self.model = self.model, gather_full_model(self.model)
            try:
                self._save(output_dir)
            finally:
                self.model = split
        else:
            super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or self.args.output_dir)
        if self.ema is not None and self.args.should_save:
            self.ema.save(folder)
        if isinstance(self.train_dataset, StreamedBatches) and self.args.should_save:
            batches, at_update = self._streamed
            per_update = self.args.gradient_accumulation_steps * self.args.world_size
            consumed = batches + (self.state.global_step - at_update) * per_update
            write_json(folder / STREAM_FILE, self.train_dataset.state(consumed))

    def make_whole(self) -> Any:
        """After training: weights that are split over processes become whole in all of them; returns the model."""
        if is_sharded(self.model):
            self.model = self.model_wrapped = gather_full_model(self.model)
        return self.model

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_fsdp_enabled:
            return super()._prepare_for_training(*args, **kwargs)
        self.accelerator.state.fsdp_plugin.mixed_precision_policy = None  # autocast instead, as everywhere
        with tables_in_root(self.model):
            return super()._prepare_for_training(*args, **kwargs)

    def compute_loss_context_manager(self) -> Any:
        return self.accelerator.autocast() if self.is_fsdp_enabled else super().compute_loss_context_manager()

    def _profile(self) -> None:
        if isinstance(self.train_dataset, StreamedBatches):
            features = next(iter(self.train_dataset))
        else:
            features = [self.train_dataset[i] for i in next(iter(self._train_sampler()))]
        batch = self._prepare_inputs(self.data_collator(features))
        with self.compute_loss_context_manager():
            profile = [profile_admin(self.model, batch)]
        set_profile(self.model, broadcast_object_list(profile)[0])

    def _train_sampler(self) -> TokenBudgetSampler:
        sampler = TokenBudgetSampler(
            self.train_dataset.source_lengths,
            self.train_dataset.target_lengths,
            self.settings.max_tokens,
            seed=self.settings.seed,
            multiple=self.settings.batch_size_multiple,
            corpus=self.train_dataset,
            order=self.settings.batch_order,
            processes=self.args.world_size,
        )
        sampler.set_epoch(
            self._first_epoch
        )  # accelerate forgets to where it skips batches for one of several processes
        return sampler

    def get_train_dataloader(self) -> DataLoader:
        if isinstance(self.train_dataset, StreamedBatches):  # knows its processes by itself
            return DataLoader(
                self.train_dataset,
                batch_size=None,
                collate_fn=self.data_collator,
                pin_memory=self.args.dataloader_pin_memory,
                generator=torch.Generator(),  # else beginning to iterate would take a number from dropout's
            )
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=self._train_sampler(),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            s = self.settings
            self.optimizer = build_optimizer(
                self.model if model is None else model,
                s.optimizer,
                lr=s.lr,
                betas=tuple(s.betas),
                eps=s.eps,
                weight_decay=s.weight_decay,
                weight_decay_on=s.weight_decay_on,
            )
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            s = self.settings
            options: dict[str, Any] = {"warmup_init_lr": s.warmup_init_lr}
            if s.schedule == "linear":
                options["total_steps"] = num_training_steps
            self.lr_scheduler = build_schedule(
                s.schedule, self.optimizer if optimizer is None else optimizer, s.warmup_updates, **options
            )
        return self.lr_scheduler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and "eval_loss" not in logs:
            measured = self.meter.per_token(self._sum_over_processes)
            logs |= {name: round(measured[name], 4) for name in ("nll", "ppl") if name in measured}
            logs["tokens_per_second"] = round(measured.get("tokens", 0) / self._lap(), 1)
            super().log(logs, start_time)
            scale = None if self.accelerator.scaler is None else self.accelerator.scaler.get_scale()
            self.guard.check(self.state.log_history, self.model, self._last_batch, scale)
        else:
            super().log(logs, start_time)

    def _lap(self) -> float:
        """Seconds since the last call, evaluations left out."""
        before, self._stopwatch = self._stopwatch, time.perf_counter()
        return max(self._stopwatch - before, 1e-9)

    def training_step(self, model: Any, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        self._last_batch = inputs
        return super().training_step(model, inputs, *args, **kwargs)

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        return self.accelerator.reduce(tensor.to(self.args.device), reduction="sum")

    def evaluate(
        self,
        eval_dataset: EncodedCorpus | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Loss, NLL and perplexity per target token in nats and, of `valid`, the figures of the scorer.

        Every process takes its share of the batches and each sentence counts once, so the figures do not depend on
        the number of processes.
        """
        started = time.perf_counter()
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        figures = self._evaluate_loss(data)
        if eval_dataset is None and self.scorer is not None and self.decode is not None:
            figures |= self.scorer(self.translate(data))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._stopwatch += time.perf_counter() - started
        return metrics

    @contextmanager
    def _inference(self) -> Iterator[Any]:
        """The model with whole weights, in evaluation mode and in the precision of the run, without gradients."""
        model = gather_full_model(self.model) if is_sharded(self.model) else self.model
        was_training = model.training
        model.eval()
        try:
            averaged = nullcontext() if self.ema is None else self.ema.applied()
            with torch.no_grad(), self.compute_loss_context_manager(), averaged:
                yield model
        finally:
            model.train(was_training)

    def _my_share(self, batches: list[list[int]]) -> list[list[int]]:
        return batches[self.accelerator.process_index :: self.accelerator.num_processes]

    def _evaluate_loss(self, data: EncodedCorpus) -> dict[str, float]:
        budget = max(self.settings.max_tokens, int(max(data.source_lengths.max(), data.target_lengths.max())))
        sampler = TokenBudgetSampler(data.source_lengths, data.target_lengths, budget, shuffle=False)
        training_sums = (self.meter.smoothed, self.meter.nll, self.meter.tokens)
        self.meter.reset()
        with self._inference() as model:
            for batch in self._my_share(list(sampler)):
                model(**self._prepare_inputs(self.data_collator([data[i] for i in batch])))
        measured = self.meter.per_token(self._sum_over_processes)
        self.meter.smoothed, self.meter.nll, self.meter.tokens = training_sums
        return {"loss": measured["smoothed"], "nll": measured["nll"], "ppl": measured["ppl"]}

    def translate(self, data: EncodedCorpus) -> list[str]:
        """Translations of the source side, in its order, the same list in every process."""
        sources = [data[i]["input_ids"] for i in range(len(data))]
        with self._inference() as model:
            found = dict(
                pair
                for rows, options in self._groups(data)
                for pair in generate_ids(
                    model,
                    sources,
                    self.decoding,
                    batches=self._my_share(decoding_batches(data.source_lengths, self.decoding, rows)),
                    synced_gpus=False,  # the weights are whole, and processes have different numbers of batches
                    **options,
                )
            )
        if self.accelerator.num_processes > 1:
            gathered: list[dict[int, list[int]] | None] = [None] * self.accelerator.num_processes
            torch.distributed.all_gather_object(gathered, found)
            found = {index: ids for part in gathered for index, ids in (part or {}).items()}
        return self.decode([found[i] for i in range(len(data))])

    def _groups(self, data: EncodedCorpus) -> Iterator[tuple[Sequence[int], dict[str, int]]]:
        """Sentences that are searched alike, by the tag their translation begins with, and options of `generate`."""
        if not self.forced_tags:
            yield range(len(data)), {}
            return
        first = np.array([int(data[i]["labels"][0]) for i in range(len(data))])
        for tag in np.unique(first).tolist():
            yield np.flatnonzero(first == tag).tolist(), {"forced_bos_token_id": tag}
