"""The processes of `torchrun` and `accelerate launch`."""

import os
from datetime import timedelta

import torch
from accelerate import PartialState

PREPARATION = timedelta(hours=12)
"""How long processes wait for each other: the first one reads, tokenizes or computes features, and NCCL would give up
after ten minutes."""


def this_process(*, on_cpu: bool = False) -> PartialState:
    """The state of this process. `on_cpu`: it is known, when this is called first, that all compute on CPUs.

    Without `cpu`, accelerate takes each of several processes on CPUs, or on a Mac with a GPU, for the only one.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    is_alone = accelerator is None or (several and accelerator.type == "mps")
    return PartialState(cpu=on_cpu or is_alone, timeout=PREPARATION)
