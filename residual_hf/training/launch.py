"""The processes of a run: what `accelerate launch` asked for, numerics and memory settings, and a clean exit."""

import ctypes
import gc
import logging
import os
import sys
from typing import Any

import torch
import torch.distributed.nn.functional
from accelerate.utils import disable_fsdp_ram_efficient_loading, parse_flag_from_env

from residual_hf.base.errors import InputError, input_errors

from .training_settings import TrainingSettings

logger = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
LARGEST = 2**31 - 1


def check_launch(settings: TrainingSettings) -> None:
    """Raise `InputError` for a library that is missing, and for unsupported options of `accelerate launch`."""
    with input_errors("training."):
        settings.check_libraries()
    fsdp, deepspeed = map(parse_flag_from_env, ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"))
    if fsdp:
        disable_fsdp_ram_efficient_loading()  # which takes buffers for sharded weights; every process has full weights
    if fsdp and os.environ.get("FSDP_VERSION", "1") != "2":
        raise InputError("fsdp_config.fsdp_version: 1 given to accelerate launch, must be 2")
    refuse_average(settings, fsdp or deepspeed or settings.deepspeed is not None)
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", settings.precision):
        raise InputError(
            f"training.precision: the recipe has {settings.precision}, but accelerate launch was given "
            f"mixed_precision {precision}; remove mixed_precision"
        )


def refuse_average(settings: TrainingSettings, is_sharded: bool) -> None:
    """Raise `InputError` for an average or adapters of weights that are sharded."""
    for name in ("lora", "ema_decay") if is_sharded else ():
        if getattr(settings, name):
            raise InputError(f"training.{name}: not supported with FSDP or DeepSpeed, which shard the weights")


def use_one_gpu(arguments: Any) -> None:
    """Keep `Trainer` from `DataParallel`, whose copies of the model in one process share what sums the loss."""
    if arguments.n_gpu > 1:
        count = arguments.n_gpu
        logger.warning("%d GPUs are visible, one is used: torchrun --nproc-per-node %d uses them all", count, count)
        arguments._n_gpu = 1


def shutdown_process_group(code: int = 0) -> None:
    """Destroy the process group, if there is one. Call it when nothing refers to the trainer any more.

    With an exit `code` of an error under NCCL, end the process instead: the other processes may wait for this one in
    the middle of something, while it would wait for them to destroy the group.

    gloo's threads need the interpreter's lock to release the tensors of the last collective. A process whose
    interpreter exits while they still run hangs or aborts. Destroying the group joins them, but only if nothing else
    holds it: DDP does until it is collected, and so do the default arguments of `torch.distributed.nn.functional` if
    that module is first imported (by DDP) when the group exists.
    """
    if torch.distributed.is_initialized():
        if code and torch.distributed.get_backend() == "nccl":
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        gc.collect()
        torch.distributed.destroy_process_group()


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory instead of returning it to the kernel at once.

    A training step allocates and frees the same large tensors again and again; by default each of them is mapped,
    zeroed and unmapped every time. The process then stays at its peak size. Returns False, and does nothing, with
    another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, LARGEST))
