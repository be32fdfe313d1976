"""`residual-hf` with CPU processes that accelerate takes for GPUs: it leaves FSDP and DeepSpeed alone on the CPU.

accelerate launch --config_file examples/launch/fsdp2.yaml --num_processes 2 launched_as_gpus.py train recipe.yaml
"""

import os
import sys
from typing import Any

import torch
import transformers
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from residual_hf.base import processes
from residual_hf.cli import main
from residual_hf.runs import preparation, run


class Arguments(transformers.Seq2SeqTrainingArguments):
    def __init__(self, *args: Any, use_cpu: bool = False, **kwargs: Any):
        super().__init__(*args, use_cpu=False, **kwargs)


PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)
PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
transformers.Seq2SeqTrainingArguments = Arguments
processes.this_process = preparation.this_process = run.this_process = PartialState

if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # DTensor's caches keep the process group, and so gloo's threads; see shutdown_process_group
