"""A command in several processes of this machine, one for each device."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from residual_hf.base.errors import BAD_INPUT

POLL, GRACE, PATIENCE = 0.05, 1.0, 3.0
"""Seconds between looks at the processes, for the first one to end by itself when another has failed, and for each to
end after SIGTERM."""


def run_on_devices(count: int, arguments: Sequence[str]) -> int:
    """Run a `residual-hf` command in `count` processes, as `torchrun` does; returns its exit code.

    The first process has the input and output of this one. If one fails, the others are ended, and its messages are
    shown: the first process may only say that it has lost another.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores // count)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **group, "LOCAL_WORLD_SIZE": str(count)}
    # `-m` would import modules of the working directory
    code = f"import sys; sys.path[:] = {sys.path!r}; from residual_hf_cli import main; sys.exit(main())"
    processes: list[subprocess.Popen] = []
    before = signal.getsignal(signal.SIGINT)
    with ExitStack() as messages:
        errors = [messages.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        try:
            for rank in range(count):
                own = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                others: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.DEVNULL)
                others["stderr"] = errors[rank]
                command = [sys.executable, "-c", code, *arguments]
                processes.append(subprocess.Popen(command, env=own, **(others if rank else {})))
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all processes
            while None in (codes := [process.poll() for process in processes]) and not any(codes):
                time.sleep(POLL)
            failed = next((rank for rank, process in enumerate(processes) if process.poll()), 0)
            with suppress(subprocess.TimeoutExpired):
                processes[0].wait(GRACE)
            if processes[0].poll() == processes[failed].poll() == BAD_INPUT:
                failed = 0  # each process has named the same input
            if failed:
                errors[failed].seek(0)
                print(errors[failed].read().decode(errors="replace"), end="", file=sys.stderr)
            return processes[failed].poll() or 0
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE)
                process.kill()  # in a collective operation, which no signal interrupts
                process.wait()
            signal.signal(signal.SIGINT, before)
