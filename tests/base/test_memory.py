"""The files of control groups as Linux writes them, in a folder in place of /sys/fs/cgroup."""

from types import SimpleNamespace

import psutil
import pytest

from residual_hf.base import memory
from residual_hf.base.memory import available_memory, total_memory

MIB = 2**20
STAT = "anon 1048576\n{}inactive_file {}\nactive_file 0\n"


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Makes a control group of one version, with its limit, its use and the part that can be freed."""
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")

    def make(place, limit, used, freed):
        folder = tmp_path / "groups" / place
        folder.mkdir(parents=True, exist_ok=True)
        version_1 = place.startswith("memory")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version_1 else ("memory.max", "memory.current")
        for name, value in zip(names, (limit, used), strict=True):
            (folder / name).write_text(f"{value}\n")
        (folder / "memory.stat").write_text(STAT.format("inactive_file 0\ntotal_" if version_1 else "", freed))

    return make


VERSION_1 = "9:name=systemd:/\n4:memory:/slurm/uid_1/job_5/step_0\n1:cpu,cpuacct:/\n0::/\n"


@pytest.mark.parametrize(
    ("own", "groups"),
    [
        ("0::/job_5/step_0\n", {"": None, "job_5": (16, 9, 1), "job_5/step_0": None}),
        ("0::/job_5/step_0\n", {"job_5": (64, 9, 1), "job_5/step_0": (16, 8, 0)}),
        ("0::/\n", {"": (16, 9, 1)}),
        (VERSION_1, {"memory": None, "memory/slurm/uid_1/job_5": (16, 9, 1), "memory/slurm/uid_1/job_5/step_0": None}),
        ("4:memory:/docker/0a1b\n", {"memory": (16, 9, 1)}),
    ],
    ids=["job", "step", "container", "version 1", "container of version 1"],
)
def test_the_smallest_limit_of_the_groups_of_this_process(own, groups, group, tmp_path):
    (tmp_path / "own").write_text(own)
    for place, sizes in groups.items():
        unlimited = 9223372036854771712 if place.startswith("memory") else "max"
        group(place, *((unlimited, 9 * MIB, 0) if sizes is None else (size * MIB for size in sizes)))
    assert (total_memory(), available_memory()) == (16 * MIB, 8 * MIB)


@pytest.mark.parametrize("own", [None, "0::/\n", "0::/user.slice\n1:name=systemd:/\n"])
def test_without_a_limit_it_is_that_of_the_machine(own, group, tmp_path, monkeypatch):
    if own is not None:
        (tmp_path / "own").write_text(own)
        group("user.slice", "max", 1, 0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=5 * MIB, available=3 * MIB))
    assert (total_memory(), available_memory()) == (5 * MIB, 3 * MIB)
