# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The lock of an output that grows: one process at a time writes it."""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from .errors import InputError
from .files import read_json


class Lock:
    """Context in which no other process holds the lock file `path`, whose folder is created if it does not exist.

    The file names its owner, and is renewed every `RENEWED` seconds. A lock is stale, and is taken over, if its
    process on this machine has ended, or if another machine has not renewed it for `STALE` seconds.

    Args:
        path: the lock file.
        output: what it protects, in messages.

    Raises `InputError` naming the owner of a lock that is not stale.
    """

    RENEWED, STALE, CLOCK = 30, 300, 60  # seconds

    def __init__(self, path: Path, output: str):
        self.path, self.output = path, output
        self.new_folder = False
        self.ended = threading.Event()
        self.owner = {
            "owner": _user(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process_started": psutil.Process().create_time(),
        }

    def __enter__(self) -> None:
        self.new_folder = not self.path.parent.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self._create():
            holder = self._read(self.path)
            if not self._is_stale(holder):
                user = "another process" if holder is None else "{owner} on {host}, process {pid}".format(**holder)
                raise InputError(f"{self.output} is in use by {user}; if it has ended, delete {self.path}")
            self._remove(holder)
        threading.Thread(target=self._renew, daemon=True).start()

    def __exit__(self, *exception: Any) -> None:
        self.ended.set()
        if self._read(self.path) == self.owner:
            self.path.unlink()
        if self.new_folder:
            with suppress(OSError):  # not empty
                self.path.parent.rmdir()

    def _create(self) -> bool:
        try:
            with self.path.open("x", encoding="utf-8") as file:
                json.dump(self.owner, file)
        except FileExistsError:
            return False
        return True

    def _remove(self, holder: dict[str, Any] | None) -> None:
        """Remove the lock of `holder`, but not that of a process which has taken it over since."""
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            self.path.rename(aside)
            if self._read(aside) == holder:
                aside.unlink()
            else:
                aside.rename(self.path)

    def _read(self, path: Path) -> dict[str, Any] | None:
        """The owner of a lock; None for a file that is missing, not written yet or damaged."""
        try:
            holder = read_json(path)
        except InputError:
            return None
        return holder if holder.keys() >= self.owner.keys() else None

    def _is_stale(self, holder: dict[str, Any] | None) -> bool:
        if holder is None or holder.get("host") != self.owner["host"]:
            try:
                return time.time() - self.path.stat().st_mtime > self.STALE
            except FileNotFoundError:
                return True
        try:
            started = psutil.Process(holder.get("pid")).create_time()  # moves when the clock of the machine is set
            return abs(started - holder["process_started"]) > self.CLOCK
        except (psutil.NoSuchProcess, TypeError, ValueError, OverflowError):  # ended, or no process identifier
            return True

    def _renew(self) -> None:
        while not self.ended.wait(self.RENEWED):
            with suppress(OSError):
                os.utime(self.path)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in containers
        return str(os.getuid())
