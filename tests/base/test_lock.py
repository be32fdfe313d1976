# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from residual_hf.base.errors import InputError
from residual_hf.base.lock import Lock

LOCK = "run.lock"


def lock_of(folder):
    return Lock(folder / LOCK, f"output_dir: {folder}")


def write_lock(folder, age=0, **fields):
    path = folder / LOCK
    path.write_text(json.dumps(lock_of(folder).owner | fields))
    os.utime(path, (time.time() - age,) * 2)


def test_a_second_process_is_kept_out_and_sees_the_owner(tmp_path):
    with (
        lock_of(tmp_path / "run"),
        pytest.raises(InputError, match=rf"run is in use by .+ on .+, process {os.getpid()}; .*delete .*run\.lock"),
    ):
        lock_of(tmp_path / "run").__enter__()
    assert not (tmp_path / "run").exists()  # nothing was written to it
    with lock_of(tmp_path / "run"):
        (tmp_path / "run" / "log").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["log"]


@pytest.mark.parametrize("kind", ["process ended", "number used again", "other machine", "never written", "no number"])
def test_a_stale_lock_is_taken_over(tmp_path, kind):
    if kind == "process ended":
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        write_lock(tmp_path, pid=process.pid)
    elif kind == "number used again":
        write_lock(tmp_path, process_started=1.0)
    elif kind == "no number":
        write_lock(tmp_path, pid="damaged")
    elif kind == "other machine":
        write_lock(tmp_path, age=Lock.STALE + 1, host="elsewhere")
    else:
        (tmp_path / LOCK).touch()
        os.utime(tmp_path / LOCK, (1, 1))
    with lock_of(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_one_process_takes_over_a_stale_lock(tmp_path, monkeypatch):
    write_lock(tmp_path, process_started=1.0)
    first, second = lock_of(tmp_path), lock_of(tmp_path)
    is_stale = second._is_stale

    def first_is_faster(holder):
        monkeypatch.setattr(second, "_is_stale", is_stale)
        stale = is_stale(holder)
        first.__enter__()
        return stale

    monkeypatch.setattr(second, "_is_stale", first_is_faster)
    with pytest.raises(InputError, match="in use by"):
        second.__enter__()
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    first.__exit__()


def test_a_clock_that_is_set_releases_no_lock(tmp_path):
    write_lock(tmp_path, process_started=lock_of(tmp_path).owner["process_started"] + 2)
    with pytest.raises(InputError, match=f"in use by .*process {os.getpid()}"):
        lock_of(tmp_path).__enter__()


def test_the_lock_of_another_machine_is_kept_while_it_is_renewed(tmp_path, monkeypatch):
    write_lock(tmp_path, age=Lock.STALE - 60, host="elsewhere")
    with pytest.raises(InputError, match="on elsewhere, process"):
        lock_of(tmp_path).__enter__()
    monkeypatch.setattr(Lock, "RENEWED", 0.01)
    (tmp_path / LOCK).unlink()
    with lock_of(tmp_path):
        os.utime(tmp_path / LOCK, (1, 1))
        deadline = time.time() + 10
        while (tmp_path / LOCK).stat().st_mtime == 1 and time.time() < deadline:
            time.sleep(0.01)
        assert (tmp_path / LOCK).stat().st_mtime > 1
