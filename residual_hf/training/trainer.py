"""`Seq2SeqTrainer` with the batches, loss, optimizers and schedules of fairseq."""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, broadcast_object_list
from torch.utils.data import DataLoader
from transformers.trainer_callback import TrainerControl, TrainerState
from transformers.trainer_utils import TrainOutput

from residual_hf.base.errors import InputError
from residual_hf.base.tables import figure
from residual_hf.checkpoint_checks import check_undamaged
from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler, evaluation_batches
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.streaming import StreamedBatches
from residual_hf.model.evaluation_mode import evaluation_mode
from residual_hf.model.length_limits import position_limit
from residual_hf.model.profiling import profile_admin, set_profile, wants_profile

from .acceleration import accelerated, cpu_precision
from .callbacks import BranchWarmupCallback, StepsOfTheSettings, StreamPosition, is_out_of_patience
from .checkpoints import RecordChecksums, check_intact, complete_checkpoints, load_average, read_state
from .divergence import DivergenceGuard
from .ema import EMACallback
from .launch import refuse_average, use_one_gpu
from .lora import load_trained, merged, save_trained
from .optimization import build_optimizer
from .schedules import build_schedule
from .sharding import ShardedTrainer, gather_full_model, is_sharded
from .training_settings import TrainingSettings

logger = logging.getLogger(__name__)


def refuse_other_model(checkpoint: Path, saved: Any, built: Any) -> None:
    """Raise `InputError` for a model that would compute another function with the weights of a checkpoint."""
    old, new = (json.loads(config.to_json_string(use_diff=False)) for config in (saved, built))
    for each in fields(saved):
        name, is_own = each.name, each.name in type(saved).__annotations__ and each.name != "use_cache"
        if is_own and not each.metadata.get("may_change") and old[name] != new[name]:
            raise InputError(f"{checkpoint}: its model has {name} {old[name]!r}, the one to train {new[name]!r}")


class ResidualTrainer(ShardedTrainer):
    """Trains on batches of a token budget and evaluates the loss per target token, and scores of translations.

    Args:
        model: a `ResidualForConditionalGeneration` or `ResidualForCausalLM`.
        settings: the training section of a recipe; it also makes the `Seq2SeqTrainingArguments`.
        output_dir: folder of the checkpoints.
        train: encoded corpus or a stream of batches.
        valid: encoded corpus.
        score: figures of a model on `valid`, by name, for each evaluation; without it, only the loss is computed.
        kwargs: further arguments of `Seq2SeqTrainer`, such as `callbacks` and `processing_class`.

    The loss is computed by `model.criterion`, which stays: until it is None again, the model returns no logits with
    labels.

    Raises `InputError` for `ema_decay` or `lora` with FSDP or DeepSpeed.
    """

    optimizer: torch.optim.Optimizer | None
    lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None
    control: TrainerControl

    def __init__(
        self,
        model: Any,
        settings: TrainingSettings,
        output_dir: str,
        train: EncodedCorpus | StreamedBatches,
        valid: EncodedCorpus,
        *,
        score: Callable[[Any, EncodedCorpus], dict[str, float]] | None = None,
        **kwargs: Any,
    ):
        streamed = isinstance(train, StreamedBatches)
        drops_layers = any(own.layerdrop for own in model.config.stack_configs)
        torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
        arguments = settings.to_arguments(
            output_dir, ignore_data_skip=streamed, ddp_find_unused_parameters=drops_layers
        )
        use_one_gpu(arguments)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=train,
            eval_dataset=valid,
            data_collator=Seq2SeqCollator(
                model.config.pad_token_id,
                model.config.decoder_start_token_id,
                pad_to_multiple_of=settings.pad_to_multiple_of,
                max_length=position_limit(model.config),
                max_frames=model.config.max_source_positions,
            ),
            **kwargs,
        )
        self.settings = settings
        on_cpu, autocasts = self.args.device.type == "cpu", settings.compile and settings.precision == "bf16"
        self.is_native = on_cpu and not settings.compile
        self.precision = cpu_precision(settings.precision) if on_cpu and not autocasts else settings.precision
        self.score = score
        self.meter = model.criterion = settings.loss_meter(model)
        self.ema = EMACallback(model, settings.ema_decay) if settings.ema_decay else None
        refuse_average(settings, self.is_fsdp_enabled or self.is_deepspeed_enabled)
        stream_position = StreamPosition() if streamed else None
        guard = DivergenceGuard(settings.divergence_factor)
        is_given = any(isinstance(each, BranchWarmupCallback) for each in self.callback_handler.callbacks)
        warmup = None if is_given else BranchWarmupCallback()
        own = (StepsOfTheSettings(), warmup, self.ema, stream_position, guard, RecordChecksums())
        for callback in filter(None, own):
            self.add_callback(callback)
        if self.accelerator.distributed_type != DistributedType.DEEPSPEED:
            # the loss is already divided by all tokens of an update; Transformers 5.4 lets accelerate divide it again
            self.accelerator.gradient_accumulation_steps = 1

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Like `Seq2SeqTrainer.train`. A fresh model in mode "admin" is first profiled on a batch; resuming from the
        last checkpoint of a finished run makes no further update."""
        if resume_from_checkpoint is True and (complete := complete_checkpoints(Path(self.args.output_dir))):
            resume_from_checkpoint = str(complete[-1])
        if resume_from_checkpoint and resume_from_checkpoint is not True:
            checkpoint = Path(resume_from_checkpoint)
            self.state = TrainerState(**read_state(checkpoint))
            self.state.is_world_process_zero = self.is_world_process_zero()  # that of the process which has saved it
            self.state.is_local_process_zero = self.is_local_process_zero()
            finished = is_finished(self.state, self.settings)
            check_undamaged(checkpoint) if finished else check_intact(checkpoint)
            config = type(self.model.config).from_pretrained(checkpoint)
            if wants_profile(self.model):
                set_profile(self.model, config.admin_profile)
            refuse_other_model(checkpoint, config, self.model.config)
            if finished:
                best = Path(self.state.best_model_checkpoint or checkpoint)
                best = self._or_last(checkpoint.with_name(best.name), checkpoint)  # it may have been moved or copied
                if self.settings.lora is None:
                    load_average(self.model, [best])
                else:
                    load_trained(self.model, best)
                if self.ema is not None:
                    self.ema.load(best)
                self.model.to(self.args.device)  # FSDP and DeepSpeed would move it at the first update
                return TrainOutput(self.state.global_step, math.nan, {})
            if self.ema is not None:
                self.ema.load(checkpoint)
        elif wants_profile(self.model):
            self._profile_admin()
        self.meter.reset()
        with accelerated(self.model, self.precision) if self.is_native else nullcontext():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Override of Transformers for a run of fp16 that goes on without a GPU, in fp32."""
        if self.accelerator.scaler is not None:
            super()._load_scaler(checkpoint)

    def _profile_admin(self) -> None:
        data = self.train_dataset
        if isinstance(data, StreamedBatches):
            features = next(iter(data))
        else:
            sampler = train_sampler(data, self.settings, self.args.world_size)
            features = [data[row] for row in next(iter(sampler))]
        batch = {name: tensor.to(self.model.device) for name, tensor in self.data_collator(features).items()}
        with self.compute_loss_context_manager():
            profile = [profile_admin(self.model, batch)]
        set_profile(self.model, broadcast_object_list(profile)[0])

    def get_train_dataloader(self) -> DataLoader:
        data, pin_memory = self.train_dataset, self.args.dataloader_pin_memory
        if isinstance(data, StreamedBatches):  # distributes its batches over the processes by itself
            generator = torch.Generator()  # without it, each iteration would draw a seed from the generator of dropout
            return DataLoader(
                data, batch_size=None, collate_fn=self.data_collator, pin_memory=pin_memory, generator=generator
            )
        sampler = train_sampler(data, self.settings, self.args.world_size)
        statistics = sampler.statistics(self.settings.pad_to_multiple_of)
        logger.info("epoch: %s", ", ".join(f"{k} {figure(v)}" for k, v in statistics.items()))
        # several processes that resume skip batches before accelerate sets the epoch of the sampler
        sampler.set_epoch(int(self.state.epoch or 0))
        loader = DataLoader(
            data,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            worker_init_fn=leave_group,
            pin_memory=pin_memory,
        )
        return self.accelerator.prepare(loader)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """Like `Trainer`'s. With both limits given, updates, schedule and progress end at the one reached first."""
        epochs, updates = self.settings.max_epochs, self.settings.max_updates
        if epochs and updates:
            of_an_epoch = math.ceil(len(dataloader) / args.gradient_accumulation_steps)
            args.max_steps = min(updates, epochs * of_an_epoch)
        return super().set_initial_training_values(args, dataloader)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = build_optimizer(self.model if model is None else model, self.settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            optimizer = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = build_schedule(self.settings, optimizer, num_training_steps)
            self._created_lr_scheduler = True  # another call of `train` begins with another
        return self.lr_scheduler

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """Like `Trainer`'s; the gradient is zero where all layers with parameters to train are dropped."""
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if torch.is_grad_enabled() and not loss.requires_grad:
            loss = loss + 0 * next(p for p in model.parameters() if p.requires_grad).sum()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add `nll`, `ppl`, `tokens_per_second` and, with fp16, `loss_scale` to the entries of training."""
        logs.pop("train_samples_per_second", None)  # Transformers does not know how many are in a batch
        if "loss" in logs:
            figures = self.meter.read()
            digits = {"nll": 4, "ppl": 4, "tokens_per_second": 1}
            logs |= {name: round(figures[name], digits[name]) for name in digits if name in figures}
            if self.accelerator.scaler is not None:
                logs["loss_scale"] = self.accelerator.scaler.get_scale()
        super().log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model that `evaluate` scores; in a checkpoint the weights, with their average beside them."""
        is_checkpoint = _internal_call and output_dir is not None
        averaged = nullcontext() if self.ema is None or is_checkpoint else self.ema.applied()
        with averaged, merged(self.model):
            super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or self.args.output_dir)
        if is_checkpoint and self.args.should_save:
            if self.ema is not None:
                self.ema.save(folder)
            if self.settings.lora is not None:
                save_trained(self.model, folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.settings.lora is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            load_trained(self.model, Path(resume_from_checkpoint))

    def _or_last(self, best: Path, last: Path) -> Path:
        """The best checkpoint, from now on the last one if it is missing."""
        if not best.is_dir():
            logger.warning("%s, the best checkpoint, is missing: the last one takes its place", best)
            best = last
        self.state.best_model_checkpoint = str(best)
        return best

    def _load_best_model(self) -> None:
        best = Path(self.state.best_model_checkpoint)
        if not best.is_dir():  # newer Transformers find this out when a run is resumed
            best = self._or_last(best, complete_checkpoints(Path(self.args.output_dir))[-1])
        check_undamaged(best)
        if self.settings.lora is None:
            super()._load_best_model()
        else:
            load_trained(self.model, best)
        if self.ema is not None:
            self.ema.load(best)

    def evaluate(
        self,
        eval_dataset: EncodedCorpus | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Loss, NLL and perplexity per target token in nats and, on the validation corpus, the figures of `score`.

        Every process computes a part, and each sentence counts once: the figures do not depend on the number of
        processes.
        """
        with self.meter.paused():
            with self.inference() as model:
                data = self.eval_dataset if eval_dataset is None else eval_dataset
                batches = evaluation_batches(data, self.settings.token_budget)
                for rows in batches[self.args.process_index :: self.args.world_size]:
                    model(**self._prepare_inputs(self.data_collator([data[row] for row in rows])))
                figures = {name: value for name, value in self.meter.read().items() if name in ("loss", "nll", "ppl")}
                if eval_dataset is None and self.score is not None:
                    figures |= self.score(model, self.eval_dataset)
            metrics = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
            self.log(dict(metrics))
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @contextmanager
    def inference(self) -> Iterator[Any]:
        """Context with the model for evaluation: full weights, averaged if `ema_decay` is set, in evaluation mode,
        under the autocast of training, and without gradients."""
        model = gather_full_model(self.model) if is_sharded(self.model) else self.model
        averaged = nullcontext() if self.ema is None else self.ema.applied()
        with evaluation_mode(model), torch.no_grad(), averaged, merged(model), self.compute_loss_context_manager():
            yield model


def train_sampler(corpus: EncodedCorpus, settings: TrainingSettings, processes: int) -> TokenBudgetSampler:
    return TokenBudgetSampler(
        corpus.source_lengths,
        corpus.target_lengths,
        settings.token_budget,
        seed=settings.seed,
        multiple=settings.batch_size_multiple,
        corpus=corpus,
        order=settings.batch_order,
        processes=processes,
    )


def leave_group(worker: int) -> None:
    """Leave signals to the process group to the main process, which saves a checkpoint; SIGTERM would end a worker."""
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()


def is_finished(state: TrainerState, settings: TrainingSettings) -> bool:
    """Whether a run in this state has reached its last update; Transformers would make one more after a resume."""
    stopped = is_out_of_patience(state.log_history, settings.patience, settings.metric)
    epochs = settings.max_epochs or math.inf
    return stopped or state.global_step >= (settings.max_updates or math.inf) or (state.epoch or 0) >= epochs
