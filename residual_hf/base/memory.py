"""The memory that this process may use: a job of SLURM and a container may have less than the machine."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
FILES = (  # limit, use, and the part of the use that is freed when it is needed, of versions 2 and 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_memory() -> int:
    """Bytes that are free or can be freed."""
    return min([psutil.virtual_memory().available, *(limit - used for limit, used in _limits())])


def total_memory() -> int:
    """Bytes of this machine, or of a lower limit."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def _limits() -> Iterator[tuple[int, int]]:
    """The limits of the control groups that this process is in, and the memory that is used of each."""
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else ():
        _, controllers, path = line.split(":", 2)
        group = GROUPS / controllers / path.lstrip("/")
        for folder in (group, *group.parents):  # in a container, its own may be mounted in place of the first one
            for limit, used, freed in FILES:
                with suppress(OSError, ValueError):  # no such file; no limit
                    parts = dict(each.split() for each in (folder / "memory.stat").read_text().splitlines())
                    yield int((folder / limit).read_text()), int((folder / used).read_text()) - int(parts[freed])
