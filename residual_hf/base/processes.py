"""The processes of `torchrun` and `accelerate launch`."""

from datetime import timedelta

import torch
from accelerate import PartialState

PREPARATION = timedelta(hours=12)
"""How long processes wait for the first one, which reads, tokenizes or computes features; NCCL gives up after ten
minutes."""


def this_process() -> PartialState:
    """The state of this process. Without `cpu`, one on a CPU would be alone."""
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=PREPARATION)
