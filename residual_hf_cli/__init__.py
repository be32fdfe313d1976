"""The console script `residual-hf`, also for launchers: `python -m residual_hf_cli`.

A script inside the package would first run its `__init__`, which imports PyTorch and Transformers and takes seconds.
In a process that begins here, the package registers with Transformers when a verb runs, so that `--help` of every verb
and errors of usage answer at once.
"""

import os

# Threads of PyTorch wait for each other in a loop for some 0.1 ms, in which most others end, and then block: beside
# another program, threads that only loop are many times as slow. Both are read when PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

from residual_hf.cli import main

__all__ = ["main"]
