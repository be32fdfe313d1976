# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The checkpoints of a run: list, check, delete and average them."""

from __future__ import annotations

import logging
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import TrainerCallback

from residual_hf.base.errors import InputError
from residual_hf.base.files import read_json

from .callbacks import evaluations
from .diagnostics import spikes, update_of

logger = logging.getLogger(__name__)

WRITE_ERROR = re.compile(r"PytorchStreamWriter failed|iostream error|unexpected pos|I/O error|os error \d+")


def read_state(checkpoint: Path) -> dict[str, Any] | None:
    """The trainer's state of a checkpoint; None for an incomplete checkpoint: this file is written last."""
    try:
        return read_json(checkpoint / "trainer_state.json")
    except InputError:
        return None


def complete_checkpoints(folder: Path) -> list[Path]:
    """The `checkpoint-N` folders in the order of N, without those that a killed process left incomplete."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.split("-")[-1].isdigit()]
    return sorted(filter(read_state, found), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[-1])


def updates_from_best(checkpoints: Sequence[Path], metric: str) -> list[int]:
    """The updates of all evaluations of a run, from best to worst by `metric` (`nll`, `bleu`, ...); ties from early to
    late."""
    if not checkpoints:
        return []
    found = evaluations((read_state(checkpoints[-1]) or {}).get("log_history", []), metric)
    return sorted(found, key=lambda step: (found[step], step))


def best_checkpoints(checkpoints: Sequence[Path], metric: str) -> list[Path]:
    """The evaluated checkpoints from best to worst by `metric`."""
    ranks = {step: rank for rank, step in enumerate(updates_from_best(checkpoints, metric))}
    return sorted((c for c in checkpoints if step_of(c) in ranks), key=lambda c: ranks[step_of(c)])


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Context that raises `OSError` where torch or safetensors could not write to the disk of a run folder."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        if not WRITE_ERROR.search(str(error)):
            raise
        free = shutil.disk_usage(folder).free / 2**20
        more = "; continue with --resume" if complete_checkpoints(folder / "checkpoints") else ""
        raise OSError(f"{folder}: a file could not be written, the disk has {free:.0f} MiB free{more}") from error


def check_intact(checkpoint: Path) -> None:
    """Raise `InputError` for a checkpoint with a missing or damaged file."""
    sharded = any(path.is_dir() for path in checkpoint.iterdir())  # by FSDP or DeepSpeed
    for name in () if sharded else ("model*.safetensors", "optimizer.pt", "scheduler.pt", "rng_state*.pth"):
        if not any(checkpoint.glob(name)):
            raise InputError(_damaged(checkpoint / name, "missing"))
    for path in sorted(checkpoint.iterdir()):
        try:
            if path.name == "config.json":
                read_json(path)
            elif path.suffix in (".pt", ".pth"):
                with zipfile.ZipFile(path) as archive:
                    if wrong := archive.testzip():
                        raise zipfile.BadZipFile(f"wrong checksum of {wrong}")
            elif path.suffix == ".safetensors":
                safe_open(path, "pt").__exit__(None, None, None)
        except InputError as error:
            raise InputError(_damaged(path, "damaged")) from error
        except (zipfile.BadZipFile, SafetensorError, OSError, EOFError, NotImplementedError) as error:
            raise InputError(_damaged(path, f"damaged ({error})")) from error


def _damaged(path: Path, state: str) -> str:
    return f"--resume: {path} is {state}; delete {path.parent} to continue from the checkpoint before it"


class KeepCheckpoints(TrainerCallback):
    """Deletes all checkpoints except the last `keep_last`, the best `keep_best`, and the last before a spike.

    A checkpoint without an evaluation (saved at an interruption) is deleted when the next one is saved, so that a
    resumed run keeps and averages the same checkpoints as one that was not interrupted. One that a killed process left
    incomplete is deleted too.
    """

    def __init__(self, folder: Path, keep_last: int, keep_best: int, metric: str):
        self.folder = folder
        self.keep_last, self.keep_best = keep_last, keep_best
        self.metric = metric

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        checkpoints = complete_checkpoints(self.folder)
        best = best_checkpoints(checkpoints, self.metric)
        regular = [checkpoint for checkpoint in checkpoints if checkpoint in best or checkpoint == checkpoints[-1]]
        kept = {*regular[-self.keep_last :], *best[: self.keep_best], Path(state.best_model_checkpoint or "")}
        spike = max(map(update_of, spikes(self.folder.parent)), default=0)
        kept |= {*[checkpoint for checkpoint in checkpoints if step_of(checkpoint) < spike][-1:]}
        for checkpoint in self.folder.glob("checkpoint-*"):
            if checkpoint not in kept and checkpoint.is_dir():
                (checkpoint / "trainer_state.json").unlink(missing_ok=True)  # incomplete if the process is killed now
                shutil.rmtree(checkpoint)


@torch.no_grad()
def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of checkpoints, computed in fp64 and returned in the types of the last checkpoint.

    Tensors of integers are taken from the last checkpoint. Raises `InputError` naming the file for weights that are
    missing or damaged, or have other names or shapes than those of the first checkpoint.
    """
    if not checkpoints:
        raise InputError("average: no checkpoint given")
    sums: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        weights = read_weights(checkpoint)
        if sums and {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in sums.items()}:
            raise InputError(f"average: {checkpoint} has other weights than {checkpoints[0]}")
        for name, weight in weights.items():
            sums[name] = sums.get(name, 0) + weight.double() if weight.is_floating_point() else weight
    return {
        name: (total / len(checkpoints)).to(weights[name].dtype) if weights[name].is_floating_point() else total
        for name, total in sums.items()
    }


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, from one file or several."""
    weights: dict[str, Tensor] = {}
    for path in sorted(checkpoint.glob("model*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                weights |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a readable safetensors file: {error}") from error
    if not weights:
        raise InputError(f"{checkpoint}: no model*.safetensors file in it")
    return weights


def choose_checkpoints(
    folder: Path,
    count: int,
    *,
    of: str = "last",
    metric: str = "nll",
    fewer: bool = False,
) -> list[Path]:
    """The last or the best (`of`) checkpoints of a run by evaluations, in the order of training.

    Raises `InputError` if not all of them were kept; with `fewer`, only if none was.
    """
    checkpoints = complete_checkpoints(folder)
    updates = updates_from_best(checkpoints, metric)
    if of == "last":
        updates = sorted({*updates, *map(step_of, checkpoints)}, reverse=True)
    found = [checkpoint for checkpoint in checkpoints if step_of(checkpoint) in updates[:count]]
    if len(found) < count:
        kind = f"best by {metric}" if of == "best" else "last"
        problem = f"{folder}: {count} {kind} checkpoints requested, but only {len(found)} were kept"
        if not found or not fewer:
            raise InputError(f"{problem} (keep_last, keep_best)")
        logger.warning("%s: averaging these", problem)
    return found


def load_average(model: torch.nn.Module, checkpoints: Sequence[Path]) -> None:
    """Load the mean of checkpoints into a model. Raises `InputError` for weights of another model."""
    missing, unexpected = model.load_state_dict(average_weights(checkpoints), strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    if unexpected or set(missing) - tied:
        raise InputError(
            f"{checkpoints[0]}: not the weights of this model: {sorted({*unexpected, *missing} - tied)[:5]}"
        )
    logger.info(
        "weights: %s%s",
        "the average of " if len(checkpoints) > 1 else "",
        ", ".join(checkpoint.name for checkpoint in checkpoints),
    )
