"""Memory of a process."""

import re
import resource
import sys
from pathlib import Path


def peak_memory() -> float:
    """The most MiB of memory that this process had at a time."""
    status = Path("/proc/self/status")
    if status.exists():  # the other figure may be that of the process that started this one
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 1024)
