"""Probes while a model trains, for any `Seq2SeqTrainer`: `DiagnosticsCallback`.

Every update has a loss and the norms of its gradients, before clipping. Every `every` updates, and at the first, the
activations of each sub-layer are measured as well. All of it stays on the device until the trainer writes its log or
a checkpoint, or `every` updates have passed. Then `diagnostics.jsonl` gets lines of three kinds:

- `{"step", "losses", "grad_norms"}`: of the updates up to `step`;
- `{"step", "sublayers", "activations"}`: rows of `SublayerFigures` and `ActivationRange`;
- `{"step", "alert"}`: a spike, see `Alert`.
"""

import logging
import math
import shutil
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType, send_to_device
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from residual_hf.base.errors import InputError
from residual_hf.base.files import (
    append_json_lines,
    atomic_file,
    entries_until,
    number_of,
    numbered_folders,
    write_json,
    write_json_lines,
)
from residual_hf.probes.representations import SiteStatistics, SiteSums, exact
from residual_hf.probes.sites import Place, sublayers, watch

from .spikes import FILE, THRESHOLD, WINDOW, Alert, first_mover, spike_scores
from .training_settings import DiagnosticsSettings

logger = logging.getLogger(__name__)

SPIKES = "spikes"
SAMPLE = 4096
"""Entries of a weight, evenly spaced, of which the update is measured."""
QUIET = 20
"""Updates without a spike after which the next one is a new alert."""


@dataclass(frozen=True)
class SublayerFigures(Place):
    """Figures of one sub-layer at an update.

    Attributes:
        layer: from 1.
        gradient: norm of the gradient of the weights of the branch, before clipping, over all accumulated batches and
            processes.
        update_ratio: norm of the update divided by the norm of the weights.
        branch_share: see `BranchShare`; None where the model does not show it.
        bf16_bits: bits of the branch that remain if it is added to the shortcut in bf16, which has 8; below 0 most of
            the branch is lost.
    """

    gradient: float
    update_ratio: float
    branch_share: float | None
    bf16_bits: float | None


@dataclass
class _Update:
    """Tensors of one update that are still on the device."""

    step: int
    loss: Any = 0.0  # None is unknown
    norms: Tensor | None = None
    scale: float = 1.0
    sites: SiteSums | None = None
    ratios: Tensor | None = None
    batches: list[dict[str, Any]] = field(default_factory=list)
    random_states: list[Tensor] = field(default_factory=list)


class DiagnosticsCallback(TrainerCallback):
    """Writes `diagnostics.jsonl` during training, warns of spikes and stores the batches of an update with a spike.

    Args:
        folder: receives the file and, for each alert, `spikes/update-N` with `alert.json` and `batch-RANK.pt` (the
            batches of a process and the state of its random generators before them); the last ten are kept. A run that
            resumes continues the file.
        every: updates between measurements of activations and updates of weights.
        log: receives a summary of the measurements after each log entry, for trackers: `trainer.log`.

    The batches of the updates since the figures were last read, at most `every`, stay on the device.
    Works with gradient accumulation and checkpointing, DDP, FSDP2 and mixed precision. A model that does not return
    its loss (`label_smoothing_factor` of Transformers) has the loss 1 and spikes of the gradient norm only.

    Raises:
        InputError: with `torch.compile` or DeepSpeed, which have no hooks and no gradients to measure, and for models
            that probes do not know.
    """

    def __init__(self, folder: str | Path, every: int = 100, log: Callable[[dict[str, float]], None] | None = None):
        self.folder, self.every, self.log = Path(folder), DiagnosticsSettings(every).every, log
        self.pending: list[_Update] = []
        self.update: _Update | None = None
        self.statistics: SiteStatistics | None = None
        self.figures: dict[str, float] = {}
        self.hooks = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if args.torch_compile or AcceleratorState().distributed_type == DistributedType.DEEPSPEED:
            raise InputError("diagnostics: not available with torch.compile or DeepSpeed")
        if not hasattr(Variable, "_execution_engine"):  # the only way to act where a backward pass ends, not public
            raise InputError(f"diagnostics: not available with PyTorch {torch.__version__}")
        self.hooks.close()  # of a training that an error ended
        self.update = self.statistics = None
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.is_sharded = any(isinstance(p, DTensor) for p in self.parameters)
        rows = {id(p): row for row, p in enumerate(self.parameters)}
        self.parts = [
            (part, [rows[id(p)] for p in part.branch_parameters() if id(p) in rows]) for part in sublayers(model)
        ]
        self.pending, self.last_spike = [], -math.inf
        self.series: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self.gradients: deque[np.ndarray] = deque(maxlen=WINDOW + QUIET)
        for line in self._earlier_lines(state):
            self.series.extend(zip(line.get("losses", ()), line.get("grad_norms", ()), strict=True))

    def _earlier_lines(self, state: Any) -> list[dict[str, Any]]:
        """The lines of the updates before this start; the process that writes drops the others, and their spikes."""
        kept = entries_until(state.global_step, self.folder / FILE)
        if state.is_world_process_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json_lines(self.folder / FILE, kept)
            for spike in spikes(self.folder):
                if number_of(spike) > state.global_step:
                    shutil.rmtree(spike)
        return kept

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.update = _Update(state.global_step + 1, random_states=random_states())
        # before that of R-Drop and SimCut, which doubles the batch
        before = self.model.register_forward_pre_hook(self._before_forward, prepend=True, with_kwargs=True)
        self.hooks.enter_context(before)
        self.hooks.enter_context(self.model.register_forward_hook(self._after_forward))
        if self.update.step == 1 or self.update.step % self.every == 0:
            self.statistics = SiteStatistics(self.model)
            self.hooks.enter_context(watch(self.model, forward=self.statistics.add))

    def _before_forward(self, model: nn.Module, arguments: Any, batch: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():  # after an update that an error ended
            self.hooks.close()
        elif self.update is not None:
            self.update.batches.append(dict(batch))

    def _after_forward(self, model: nn.Module, arguments: Any, output: Any) -> None:
        loss = getattr(output, "loss", None)
        start = output[0] if loss is None else loss
        if start.requires_grad:
            start.register_hook(partial(self._on_backward, None if loss is None else loss.detach().clone()))

    def _on_backward(self, loss: Tensor | None, gradient: Tensor) -> None:
        """Called where the backward pass of a batch begins; `gradient` has the factors of the loss that is trained."""
        if self.update is None:
            return
        self.update.loss = None if loss is None else self.update.loss + (loss * gradient).detach()
        if GradientState().sync_gradients:  # after DDP and FSDP have queued what makes the gradients complete
            engine = Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._measure_gradients))

    @torch.no_grad()
    def _measure_gradients(self) -> None:
        if self.update is not None:
            zero = torch.zeros((), device=self.parameters[0].device)
            present = [row for row, p in enumerate(self.parameters) if p.grad is not None]
            norms = torch._foreach_norm([_local(self.parameters[row].grad) for row in present])
            found = dict(zip(present, norms, strict=True))
            self.update.norms = torch.stack([found.get(row, zero).float() for row in range(len(self.parameters))])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        assert self.update is not None
        scaler = getattr(optimizer, "scaler", None)
        self.update.scale = 1.0 if scaler is None else scaler.get_scale()
        self.hooks.close()
        if self.statistics is not None:
            self.update.sites = self.statistics.tensors()
            self.weights = self._sampled_weights()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.statistics is not None and self.update is not None:
            pairs = zip(self.weights, self._sampled_weights(), strict=True)
            self.update.ratios = torch.stack(
                [exact(torch.stack([(new - old).norm(), old.norm()])).square() for old, new in pairs]
            )
            self.statistics = None
            del self.weights

    @torch.no_grad()
    def _sampled_weights(self) -> list[Tensor]:
        """Per sub-layer, evenly spaced entries of its weights, times the root of how many each stands for."""
        sampled = []
        for _, rows in self.parts:
            chosen = [torch.zeros(1, device=self.parameters[0].device)]
            for row in rows:
                entries = _local(self.parameters[row]).flatten()
                step = max(1, len(entries) // SAMPLE)
                chosen.append(entries[::step].float() * step**0.5)
            sampled.append(torch.cat(chosen))
        return sampled

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.update is not None:
            self.pending.append(self.update)
            self.update = None
        if control.should_log or control.should_save or len(self.pending) >= self.every:
            self._read(args, state)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Log the summary after an entry of training: at the end of a step it would replace that entry."""
        if self.log is not None and "update_ratio" in self.figures and logs is not None and "loss" in logs:
            figures, self.figures = self.figures, {}
            self.log(figures)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._read(args, state)

    on_train_end = on_save

    def _read(self, args: Any, state: Any) -> None:
        """Fetch the figures of the pending updates from the device, judge and write them."""
        pending, self.pending = [update for update in self.pending if update.norms is not None], []
        if not pending:
            return
        losses, norms = self._fetch(pending, args.world_size)
        totals = np.sqrt((norms**2).sum(axis=1))
        lines: list[dict[str, Any]] = []
        for update, loss, total, norm in zip(pending, losses, totals, norms, strict=True):
            gradients = np.array([math.sqrt((norm[rows] ** 2).sum()) for _, rows in self.parts])
            if update.sites is not None:
                lines.append(self._measurement(update, gradients, args.world_size))
            if args.fp16 and not math.isfinite(total):
                continue  # GradScaler skips this update
            alert = self._alert(update.step, loss, total, gradients)
            if alert is not None:
                logger.warning("%s; its batches are in %s", alert, self._dump(alert, update, args.process_index))
                lines.append({"step": update.step, "alert": asdict(alert)})
        lines.append({"step": pending[-1].step, "losses": losses.tolist(), "grad_norms": totals.tolist()})
        if state.is_world_process_zero:
            append_json_lines(self.folder / FILE, *lines)

    def _fetch(self, updates: list[_Update], processes: int) -> tuple[np.ndarray, np.ndarray]:
        """Losses (updates,) and norms of gradients (updates, parameters) over all processes."""
        norms = exact(torch.stack([update.norms for update in updates if update.norms is not None]))
        scales = torch.tensor([[update.scale] for update in updates], dtype=norms.dtype)
        squares = (norms / scales.to(norms.device)).square()
        known = (update.scale if update.loss is None else update.loss for update in updates)
        losses = torch.stack([torch.as_tensor(loss, dtype=norms.dtype, device=norms.device) for loss in known])
        if processes > 1:
            torch.distributed.all_reduce(losses)
            losses /= processes
            if self.is_sharded:
                torch.distributed.all_reduce(squares)
        return (losses.cpu() / scales[:, 0]).numpy(), squares.sqrt().cpu().numpy()

    def _measurement(self, update: _Update, gradients: np.ndarray, processes: int) -> dict[str, Any]:
        """The line of an update with activations; its summary goes to `figures`."""
        sites, ratios = update.sites, update.ratios
        assert sites is not None and ratios is not None
        if processes > 1:
            sites = sites.over_processes()
            if self.is_sharded:
                torch.distributed.all_reduce(ratios)
        shares = {row.place: row.share for row in sites.branch_shares()}
        ran = {site.place for site in sites.sites}
        rows, trained = [], []
        for (part, weights), gradient, (moved, size) in zip(
            self.parts, gradients, ratios.sqrt().tolist(), strict=True
        ):
            share = shares.get(part.place)
            bits = None if share is None else bits_in_bf16(share)
            row = SublayerFigures(*part.place, float(gradient), moved / size if size else 0.0, share, bits)
            rows.append(row)
            if weights and part.place in ran:  # neither frozen nor dropped
                trained.append(row)
        ranges = sites.activation_ranges()
        for stack in dict.fromkeys(row.stack for row in trained):
            norms = [row.gradient for row in trained if row.stack == stack]
            self.figures[f"{stack}_gradient_ratio"] = min(norms) / max(norms) if max(norms) > 0 else 0.0
        self.figures["update_ratio"] = median(row.update_ratio for row in trained or rows)
        self.figures["fp16_headroom"] = min(row.fp16_headroom for row in ranges)
        return {
            "step": update.step,
            "sublayers": [as_line(row) for row in rows],
            "activations": [as_line(row) for row in ranges],
        }

    def _alert(self, step: int, loss: float, total: float, gradients: np.ndarray) -> Alert | None:
        """Score an update; an alert for the first one of a spike."""
        loss_score, total_score = spike_scores(np.array([loss, total]), np.array(self.series).reshape(-1, 2)).tolist()
        self.series.append((loss, total))
        self.gradients.append(gradients)
        for name, score in (("loss_score", loss_score), ("grad_norm_score", total_score)):
            self.figures[name] = max(score, self.figures.get(name, -math.inf))
        if max(loss_score, total_score) <= THRESHOLD:
            return None
        last, self.last_spike = self.last_spike, step
        if step - last <= QUIET:
            return None
        first = None
        if (found := first_mover(np.array(self.gradients))) is not None:
            back, row, score = found
            stack, layer, sublayer = self.parts[row][0].place
            first = {"stack": stack, "layer": layer, "sublayer": sublayer, "step": step - back, "score": score}
        return Alert(step, loss_score, total_score, first)

    def _dump(self, alert: Alert, update: _Update, rank: int) -> Path:
        folder = self.folder / SPIKES / f"update-{alert.step}"
        folder.mkdir(parents=True, exist_ok=True)
        batches = send_to_device(update.batches, "cpu")
        with atomic_file(folder / f"batch-{rank}.pt") as path:
            torch.save({"batches": batches, "random_states": update.random_states}, path)
        if rank == 0:
            write_json(folder / "alert.json", asdict(alert))
            for old in spikes(self.folder)[:-10]:
                shutil.rmtree(old)
        return folder


def as_line(row: Any) -> dict[str, Any]:
    """A row as plain values, numbers with five digits."""
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in vars(row).items()}


def spikes(folder: Path) -> list[Path]:
    """The folders of the alerts of a run, the first one first."""
    return numbered_folders(folder / SPIKES, "update")


def bits_in_bf16(share: float) -> float:
    """Bits of a branch with this share that remain of 8 if it is added to the shortcut in bf16."""
    return 8 + (math.log2(share / (1 - share)) if 0 < share < 1 else math.copysign(math.inf, share - 0.5))


def random_states() -> list[Tensor]:
    """States of the random generators of the CPU and, if it is used, of the GPU."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else states


def _local(tensor: Any) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
