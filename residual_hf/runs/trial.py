"""A few updates of a recipe on random tokens, to measure the speed and memory of training on this machine."""

import time
from contextlib import nullcontext
from dataclasses import dataclass

import psutil
import torch

from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.training.acceleration import accelerated
from residual_hf.training.launch import keep_freed_memory
from residual_hf.training.optimization import build_optimizer

from .batch_size_finder import bytes_kept_for_backward, random_batch
from .recipe import Recipe

TOKENS = {"cpu": 1024, "cuda": 8192}
"""Batch size of a trial."""
FEWEST = 2
"""Updates after the first one, which also allocates memory."""


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
        begun = now = update()
        updates = 0
        while updates < FEWEST or now - started < seconds:
            now = update()
            updates += 1
    memory = None
    if settings.max_tokens != "auto":  # weights, gradients and two moments; twice what is kept for the backward pass
        parameters = sum(p.numel() * (16 if p.requires_grad else 4) for p in model.parameters())
        memory = resident + parameters + round(2 * kept * settings.max_tokens)
    return Trial(updates * rows * width / (now - begun), memory, seconds=now - started)
