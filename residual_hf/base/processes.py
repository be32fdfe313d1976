"""The processes of `torchrun` and `accelerate launch`."""

from datetime import timedelta

import torch
from accelerate import PartialState

from .launched import in_group

PREPARATION = timedelta(hours=12)
"""How long processes wait for each other: the first one reads, tokenizes or computes features, and NCCL would give up
after ten minutes."""


def this_process(*, on_cpu: bool = False) -> PartialState:
    """The state of this process. `on_cpu`: the first call knows that all of several compute on CPUs.

    Without `cpu`, accelerate takes each of several processes on CPUs, or on a Mac with a GPU, for the only one.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    cpu = accelerator is None or (in_group() and (on_cpu or accelerator.type == "mps"))
    return PartialState(cpu=cpu, timeout=PREPARATION)
