"""The lock of an output that grows: one process at a time writes it."""

import getpass
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import Timeout

from .errors import InputError
from .files import acquire_lock, read_json


class Lock:
    """Context in which no other process holds the lock file `path`, whose folder is created if it does not exist.

    The file names its owner. The operating system releases the lock when the process ends, however it ends. On a file
    system without locks a second file, `PATH.soft`, is the lock, and that of a killed process on another machine must
    be deleted.

    Raises `InputError` naming the owner, and the `output` that it protects.
    """

    def __init__(self, path: Path, output: str):
        self.path, self.output = path, output
        self.owner = {"owner": _user(), "host": socket.gethostname(), "pid": os.getpid()}

    def __enter__(self) -> None:
        self.new_folder = not self.path.parent.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.file = acquire_lock(self.path, timeout=0.1, thread_local=False).lock
        except Timeout as timeout:
            advice = f"wait until it has ended, or delete {timeout.lock_file} if it no longer exists"
            raise InputError(f"{self.output} is in use by {self._holder()}; {advice}") from None
        with suppress(OSError):  # Windows
            self.path.write_text(json.dumps(self.owner), encoding="utf-8")

    def __exit__(self, *exception: Any) -> None:
        with suppress(OSError):  # deleted by hand, or open, on Windows
            self.path.unlink()
        self.file.release()
        if self.new_folder:
            with suppress(OSError):  # not empty
                self.path.parent.rmdir()

    def _holder(self) -> str:
        try:
            return "{owner} on {host}, process {pid}".format(**read_json(self.path))
        except (InputError, KeyError):  # not written yet
            return "another process"


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # an id without a name, as in containers; no `pwd`, on Windows
        return "a user without a name"
