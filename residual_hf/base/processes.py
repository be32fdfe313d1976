"""The processes of `torchrun` and `accelerate launch`."""

from datetime import timedelta

import torch
from accelerate import PartialState

from .launched import in_group


def this_process(*, on_cpu: bool = False) -> PartialState:
    """The state of this process. `on_cpu`: the first call knows that all of several compute on CPUs.

    Without `cpu`, accelerate takes each of several processes on CPUs, or on a Mac with a GPU, for the only one.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    cpu = accelerator is None or (in_group() and (on_cpu or accelerator.type == "mps"))
    # others wait while the first one reads, tokenizes or computes features; NCCL would give up after ten minutes
    return PartialState(cpu=cpu, timeout=timedelta(hours=12))
