import errno
import json
import multiprocessing
import os
import time
from unittest.mock import Mock

import pytest

from residual_hf.base.errors import InputError
from residual_hf.base.files import atomic_folder, emptied_folder, write_json
from residual_hf.base.lock import Lock

LOCK = "run.lock"
processes = multiprocessing.get_context("fork")  # nothing to load again


def hold(path, locked):
    with Lock(path, "output_dir"):
        if os.fork() == 0:  # as a worker that reads data
            locked.set()
        time.sleep(60)
        os._exit(0)


def take_turns(path):
    turns = 0
    while turns < 50:
        try:
            with Lock(path, "output_dir"):
                inside = path.with_name("inside")
                inside.touch(exist_ok=False)
                inside.unlink()
                turns += 1
        except InputError as error:
            assert "in use by" in str(error), error


def lock_of(folder):
    return Lock(folder / LOCK, f"output_dir: {folder}")


def test_a_second_process_is_kept_out_and_sees_the_owner(tmp_path):
    with (
        lock_of(tmp_path / "run"),
        pytest.raises(InputError, match=rf"run is in use by .+ on .+, process {os.getpid()}; wait until it has ended"),
    ):
        lock_of(tmp_path / "run").__enter__()
    assert not (tmp_path / "run").exists()  # nothing was written to it
    with lock_of(tmp_path / "run"):
        (tmp_path / "run" / "log").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["log"]


def test_the_lock_of_a_killed_process_is_free_also_while_its_workers_live(tmp_path):
    locked = processes.Event()
    process = processes.Process(target=hold, args=(tmp_path / LOCK, locked))
    process.start()
    assert locked.wait(60)
    with pytest.raises(InputError, match=f"in use by .*process {process.pid};"):
        lock_of(tmp_path).__enter__()
    process.kill()
    process.join()
    with lock_of(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("content", ["", "damaged" * 100, json.dumps({"owner": "a", "host": "elsewhere", "pid": 1})])
def test_a_file_that_nobody_holds_is_taken_over(content, tmp_path):
    (tmp_path / LOCK).write_text(content)
    with lock_of(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("error", [ImportError, KeyError, OSError])  # of Windows, and of Python until 3.12 and since
def test_a_user_without_a_name(error, tmp_path, monkeypatch):
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=error))
    with lock_of(tmp_path), pytest.raises(InputError, match="in use by a user without a name on"):
        lock_of(tmp_path).__enter__()


def test_processes_take_turns(tmp_path):
    started = [processes.Process(target=take_turns, args=(tmp_path / LOCK,)) for _ in range(3)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks(number, tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    (tmp_path / LOCK).touch()  # left from when it had locks
    with lock_of(tmp_path):
        message = rf"in use by .+, process {os.getpid()}; .* or delete {tmp_path / LOCK}.soft if it no longer exists"
        with pytest.raises(InputError, match=message):
            lock_of(tmp_path).__enter__()
        with emptied_folder(tmp_path, keep=LOCK), pytest.raises(InputError, match="in use by"):
            lock_of(tmp_path).__enter__()
        write_json(tmp_path / "run.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    locked = processes.Event()
    process = processes.Process(target=hold, args=(tmp_path / LOCK, locked))
    process.start()
    assert locked.wait(60)
    process.kill()
    process.join()
    with lock_of(tmp_path), atomic_folder(tmp_path / "model"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "run.json"]
