"""Updates on random tokens: the largest batch that fits into memory (`max_tokens: auto`), the speed of training."""

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from accelerate.utils.memory import clear_device_cache
from torch import Tensor

from residual_hf.base.errors import InputError
from residual_hf.base.memory import available_memory
from residual_hf.data.encoding import Lengths
from residual_hf.data.subword_regularization import GROWTH
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.records.run_record import RunRecord
from residual_hf.training.acceleration import accelerated
from residual_hf.training.launch import keep_freed_memory
from residual_hf.training.optimization import build_optimizer
from residual_hf.training.training_settings import TrainingSettings

from .recipe import Recipe

logger = logging.getLogger(__name__)

CEILING = 65536
"""Larger batches make no device faster."""
PROBE = 2048
"""Tokens of the batch measured on a CPU."""
RESERVE = 0.1
"""Share of a GPU's memory to leave free."""
TOKENS = {"cpu": 1024, "cuda": 8192}
"""Batch size of a trial."""


def tokens_that_fit(
    model: Any,
    lengths: Lengths,
    *,
    ceiling: int = CEILING,
    autocast: Callable[[], Any] = nullcontext,
    copies: int = 0,
    sharing: int = 1,
) -> int:
    """The largest `max_tokens` up to `ceiling`, in steps of 256, with which an update fits in memory.

    Measures forward and backward passes on sentences of maximum and of median length, with space for two moments
    of each parameter. On a GPU, it tries sizes until the memory is full. A CPU would swap instead: there it counts the
    tensors saved for the backward pass of a small batch, and allows twice their size to fill half of the free memory.

    Args:
        model: on its device, in the precision of training.
        lengths: tokens of the longer side of each training pair.
        autocast: makes the context of mixed precision.
        copies: further tensors that a GPU holds, each as large as all trained weights.
        sharing: processes that share the memory of a CPU.

    Raises `InputError` if the longest sentence does not fit.
    """
    lengths = sorted(lengths)
    widths = sorted({int(lengths[-1]), int(lengths[len(lengths) // 2])})
    device = next(model.parameters()).device

    def step(tokens: int, width: int, reserved: int = 0) -> None:
        held = torch.empty(reserved, dtype=torch.uint8, device=device)
        try:
            with autocast():
                loss = model(**random_batch(model.config, max(1, tokens // width), width, device)).loss
            loss.backward()
        finally:
            model.zero_grad(set_to_none=True)
        del held

    if device.type == "cpu":
        probe = max(PROBE, widths[-1])
        kept = max(bytes_kept_for_backward(partial(step, probe, width)) for width in widths) / probe
        found = int(0.5 * available_memory() / sharing / (2 * kept))
    else:
        trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        properties = getattr(torch.get_device_module(device), "get_device_properties", None)
        if properties is None:
            raise InputError(f"training.max_tokens: auto, but the memory of {device} is unknown, must be a number")
        reserved = int((2 + copies) * trained + RESERVE * properties(device).total_memory)

        def is_full(tokens: int) -> bool:
            try:
                for width in widths:
                    step(tokens, width, reserved)
            except torch.OutOfMemoryError:
                return True
            finally:
                clear_device_cache(garbage_collection=True)
            return False

        sizes = [*range(widths[-1], ceiling, max(1, widths[-1] // 16)), max(widths[-1], ceiling)]
        fitting = bisect_left(sizes, True, key=is_full)
        found = sizes[fitting - 1] if fitting else 0
    if found < widths[-1]:
        raise InputError(
            f"training.max_tokens: auto, but a sentence of {widths[-1]} tokens does not fit into the memory of "
            f"{device}: lower data.max_length or use a smaller model"
        )
    found = ceiling if found >= ceiling else max(found - found % 256, widths[-1])
    logger.info("max_tokens: auto is %d on %s", found, device)
    return found


def random_batch(config: Any, rows: int, width: int, device: torch.device) -> dict[str, Tensor]:
    """Sentence pairs, or the text of a decoder alone, of random tokens, all of the same length; of speech `width`
    frames, with a token for every fourth."""
    if config.reads_speech:
        length = min(-(-width // 4), config.max_position_embeddings)
        labels = torch.randint(4, config.vocab_size, (rows, length), device=device)
        features = torch.randn(rows, width, config.num_mel_bins, device=device)
        return {"input_features": features, "labels": labels}
    source = torch.randint(4, config.vocab_size, (rows, width), device=device)
    if config.is_decoder_only:
        return {"input_ids": source, "labels": source}
    labels = torch.randint(4, config.decoder_vocab_size, (rows, width), device=device)
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "labels": labels,
        "decoder_input_ids": labels.roll(1, dims=1),
    }


def bytes_kept_for_backward(run: Callable[[], None]) -> int:
    """Size of the tensors that autograd saves for the backward pass, counting each storage once."""
    sizes: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf or not tensor.requires_grad:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        run()
    return sum(sizes.values())


def split_update(
    tokens_per_update: int | None, max_tokens: int, update_freq: int, processes: int, *, adjustable: bool = False
) -> tuple[int, int]:
    """`max_tokens` and `update_freq` for a number of processes.

    With `tokens_per_update`, an update has the same budget for any number of processes: `update_freq` is computed from
    it, and an `adjustable` `max_tokens` is lowered to a divisor of it.

    Raises `InputError` if `tokens_per_update` is not a multiple of `max_tokens` times the number of processes.
    """
    if tokens_per_update is None:
        return max_tokens, update_freq
    if adjustable:
        times = -(-tokens_per_update // (max_tokens * processes))
        return tokens_per_update // (times * processes), times
    times, rest = divmod(tokens_per_update, max_tokens * processes)
    if rest or times == 0:
        raise InputError(
            f"training.tokens_per_update: {tokens_per_update} given, must be a multiple of max_tokens ({max_tokens}) "
            f"times the number of processes ({processes})"
        )
    return max_tokens, times


def resolve_batch_size(recipe: Recipe, model: Any, lengths: Lengths, folder: Path) -> TrainingSettings:
    """The settings with numbers for `max_tokens: auto` and `tokens_per_update`, which are also recorded.

    `lengths`: tokens of the longer side of each training pair. A resumed run keeps its batches.
    """
    settings, processes = recipe.training, PartialState()
    found = None
    if settings.max_tokens == "auto":
        found = RunRecord.read(folder).max_tokens_found or find_max_tokens(recipe, model, lengths)
    max_tokens, update_freq = split_update(
        settings.tokens_per_update,
        settings.token_budget if found is None else found,
        settings.update_freq,
        processes.num_processes,
        adjustable=found is not None,
    )
    if found is not None and max_tokens < (longest := int(max(lengths))):
        field = "max_tokens" if settings.tokens_per_update is None else "tokens_per_update"
        raise InputError(
            f"training.{field}: {getattr(settings, field)} given, leaves batches of {max_tokens} tokens, "
            f"but a sentence has {longest}"
        )
    if processes.is_main_process:
        RunRecord.update(
            folder,
            parameters=sum(p.numel() for name, p in model.named_parameters() if "lora_" not in name),
            max_tokens=max_tokens,
            max_tokens_found=found,
            tokens_per_update=max_tokens * update_freq * processes.num_processes,
        )
    return replace(settings, max_tokens=max_tokens, update_freq=update_freq, tokens_per_update=None)


def find_max_tokens(recipe: Recipe, model: Any, lengths: Lengths) -> int:
    """The size that fits on the devices of all processes, and leaves room for longer random segmentations and for the
    second pass of R-Drop and SimCut."""
    settings, processes = recipe.training, PartialState()
    device = torch.device(processes.device or "cpu")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.precision)
    model.criterion = settings.loss_meter()  # stores no logits
    ceiling = CEILING
    if settings.tokens_per_update is not None:
        ceiling = min(ceiling, settings.tokens_per_update // processes.num_processes)
    autocast = nullcontext if dtype is None or device.type == "cpu" else partial(torch.autocast, device.type, dtype)
    accumulates = settings.update_freq > 1 or settings.tokens_per_update is not None
    copies = accumulates + (processes.num_processes > 1) + (settings.ema_decay > 0)  # gradients, DDP's buckets, EMA
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    options = {"ceiling": ceiling, "autocast": autocast, "copies": copies, "sharing": sharing}
    fitting = min(gather_object([tokens_that_fit(model.to(device), lengths, **options)]))
    growth = 1.0 if recipe.data.subword_regularization is None else GROWTH
    return int(fitting / growth / (2 if settings.r_drop or settings.simcut else 1))


@dataclass(frozen=True)
class Trial:
    """`tokens_per_second` counts tokens of the longer side; `memory` is in bytes, None for a GPU, which is filled."""

    tokens_per_second: float
    memory: int | None
    seconds: float


def measure(recipe: Recipe, model: ResidualForConditionalGeneration, width: int, seconds: float) -> Trial:
    """Train the model of a recipe on pairs of `width` random tokens for about this many seconds."""
    keep_freed_memory()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    started, resident = time.perf_counter(), psutil.Process().memory_info().rss
    settings = recipe.training
    model.to(device).train()
    model.criterion = settings.loss_meter()
    optimizer = build_optimizer(model, settings)
    rows = max(1, TOKENS[device.type] // width)
    batch = random_batch(model.config, rows, width, device)
    on_gpu = device.type == "cuda"
    autocast = torch.autocast("cuda", torch.bfloat16) if on_gpu and settings.precision == "bf16" else nullcontext()

    def backward() -> None:
        with autocast:
            loss = model(**batch).loss
        loss.backward()

    def update() -> float:
        backward()
        optimizer.step()
        optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    with accelerated(model, settings.precision):
        kept = bytes_kept_for_backward(backward) / (rows * width)
        begun = now = update()  # which also allocates memory
        updates = 0
        while updates < 2 or now - started < seconds:
            now = update()
            updates += 1
    memory = None
    if settings.max_tokens != "auto":  # weights, gradients and two moments; twice what is kept for the backward pass
        parameters = sum(p.numel() * (16 if p.requires_grad else 4) for p in model.parameters())
        memory = resident + parameters + round(2 * kept * settings.max_tokens)
    return Trial(updates * rows * width / (now - begun), memory, seconds=now - started)
