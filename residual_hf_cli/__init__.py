# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The console script `residual-hf`, also for launchers: `python -m residual_hf_cli`.

A script inside the package would first run its `__init__`, which imports PyTorch and Transformers and takes seconds.
In a process that begins here, the package registers with Transformers when a verb runs, so that `--help` of every verb
and errors of usage answer at once.
"""

import os

# Threads of PyTorch that wait for each other block: beside another program, threads that spin are many times as slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when PyTorch is imported

from residual_hf.cli import main

__all__ = ["main"]
