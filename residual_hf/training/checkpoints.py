"""The checkpoints of a run: list, check, delete and average them."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback, TrainerState

from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import number_of, numbered_folders, read_json
from residual_hf.checkpoint_checks import check_undamaged
from residual_hf.model.checksums import CHECKSUMS, find_damage, write_checksums

from .callbacks import evaluations
from .diagnostics import spikes

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The trainer's state of a checkpoint. Raises `InputError` for one that is damaged or holds other values."""
    path, update = checkpoint / STATE, number_of(checkpoint)
    state = read_json(path)
    log = state.get("log_history")
    is_usable = (
        state.keys() <= {field.name for field in fields(TrainerState)}
        and state.get("global_step", update) == update
        and isinstance(state.get("stateful_callbacks", {}), dict)
        and isinstance(log, list)
        and all(isinstance(entry, dict) and isinstance(entry.get("step"), int) for entry in log)
    )
    if not is_usable:
        raise InputError(f"{path}: not the state of a trainer at update {update}")
    return state


def has_state(checkpoint: Path) -> bool:
    try:
        return bool(read_state(checkpoint))
    except InputError:
        return False


def is_incomplete(checkpoint: Path) -> bool:
    """Whether a killed process was writing or deleting a checkpoint: its state is written last and deleted first."""
    return not (checkpoint / STATE).exists() and not (checkpoint / CHECKSUMS).exists()


def complete_checkpoints(folder: Path) -> list[Path]:
    """The `checkpoint-N` folders in the order of N, without those that a killed process left incomplete.

    Raises `InputError` naming a checkpoint whose state is missing or damaged.
    """
    complete = []
    for checkpoint in numbered_folders(folder, "checkpoint"):
        try:
            if not is_incomplete(checkpoint):
                read_state(checkpoint)
                complete.append(checkpoint)
        except InputError as error:
            if (checkpoint / CHECKSUMS).exists() or not _is_cut_off(checkpoint / STATE):
                raise InputError(f"{error}; {advice(checkpoint)}") from error
            logger.warning("%s; %s is skipped and kept", error, checkpoint)
    return complete


def _is_cut_off(path: Path) -> bool:
    """Whether a file has the beginning of a JSON object, as one that a process was writing when it was killed."""
    text = path.read_bytes().strip() if path.exists() else b"}"
    return text[:1] in (b"", b"{") and not text.endswith(b"}")


def advice(checkpoint: Path) -> str:
    return f"delete {checkpoint} to continue from the checkpoint before it"


def updates_from_best(checkpoints: Sequence[Path], metric: str) -> list[int]:
    """The updates of all evaluations of a run, from best to worst by `metric` (`nll`, `bleu`, ...); ties from early to
    late."""
    if not checkpoints:
        return []
    found = evaluations(read_state(checkpoints[-1])["log_history"], metric)
    return sorted(found, key=lambda step: (found[step], step))


def best_checkpoints(checkpoints: Sequence[Path], metric: str) -> list[Path]:
    """The evaluated checkpoints from best to worst by `metric`."""
    kept = {number_of(checkpoint): checkpoint for checkpoint in checkpoints}
    return [kept[update] for update in updates_from_best(checkpoints, metric) if update in kept]


def check_intact(checkpoint: Path) -> None:
    """Raise `InputError` for a checkpoint with a file that is missing or not as it was recorded."""
    if damage := find_damage(checkpoint):
        raise InputError(f"--resume: {damage}; {advice(checkpoint)}")


class RecordChecksums(TrainerCallback):
    """Writes the checksums of a checkpoint when all processes have written their files."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            write_checksums(Path(args.output_dir, f"checkpoint-{state.global_step}"))


class KeepCheckpoints(TrainerCallback):
    """Deletes all checkpoints except the last `keep_last`, the best `keep_best`, and the last before a spike.

    A checkpoint without an evaluation (saved at an interruption) is deleted when the next one is saved, so that a
    resumed run keeps and averages the same checkpoints as one that was not interrupted. One that a killed process left
    incomplete is deleted too. Of a checkpoint that is a link, only the link is deleted.
    """

    def __init__(self, folder: Path, keep_last: int, keep_best: int, metric: str):
        self.folder = folder
        self.keep_last, self.keep_best = keep_last, keep_best
        self.metric = metric

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        folders = numbered_folders(self.folder, "checkpoint")
        checkpoints = [folder for folder in folders if has_state(folder)]
        best = best_checkpoints(checkpoints, self.metric)
        regular = [checkpoint for checkpoint in checkpoints if checkpoint in best or checkpoint == checkpoints[-1]]
        kept = {*regular[-self.keep_last :], *best[: self.keep_best], Path(state.best_model_checkpoint or "")}
        spike = max(map(number_of, spikes(self.folder.parent)), default=0)
        kept |= {*[checkpoint for checkpoint in checkpoints if number_of(checkpoint) < spike][-1:]}
        for checkpoint in folders:
            if checkpoint not in kept and (checkpoint in checkpoints or is_incomplete(checkpoint)):
                if checkpoint.is_symlink():
                    checkpoint.unlink()
                    continue
                for name in (CHECKSUMS, STATE):  # without them it is incomplete if the process is killed now
                    (checkpoint / name).unlink(missing_ok=True)
                shutil.rmtree(checkpoint, ignore_errors=True)  # of one with open files on NFS, the rest later


def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of checkpoints, computed in fp64 and returned in the types of the last checkpoint.

    Tensors of integers are taken from the last checkpoint. Raises `InputError` naming the file for weights that are
    missing or damaged, or have other names or shapes than those of the first checkpoint.
    """
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
    check_undamaged(checkpoint)
    for path in sorted(checkpoint.glob("model*.safetensors")) or [checkpoint / "model.safetensors"]:
        weights |= read_file(path)
    return weights


def read_file(path: Path) -> dict[str, Tensor]:
    with input_errors(f"{path}: not a readable safetensors file: ", SafetensorError, OSError):
        return load_file(path)


def read_tensors(path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file. Raises `InputError` unless they have the names and shapes of others."""
    saved = read_file(path)
    if {name: tensor.shape for name, tensor in saved.items()} != {name: tensor.shape for name, tensor in like.items()}:
        raise InputError(f"{path}: not the weights of this model")
    return saved


def choose_checkpoints(
    folder: Path, count: int, *, of: str = "last", metric: str = "nll", fewer: bool = False
) -> list[Path]:
    """The last or the best (`of`) checkpoints of a run by evaluations, in the order of training.

    Raises `InputError` if not all of them were kept; with `fewer`, only if none was.
    """
    checkpoints = complete_checkpoints(folder)
    updates = updates_from_best(checkpoints, metric)
    if of == "last":
        updates = sorted({*updates, *map(number_of, checkpoints)}, reverse=True)
    found = [checkpoint for checkpoint in checkpoints if number_of(checkpoint) in updates[:count]]
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
    if other := sorted({*unexpected, *missing} - tied):
        raise InputError(f"{checkpoints[0]}: not the weights of this model: {other[:5]}")
    average = "the average of " if len(checkpoints) > 1 else ""
    logger.info("weights: %s%s", average, ", ".join(checkpoint.name for checkpoint in checkpoints))
