# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A function call in a thread of its own that can be given up, also by the end of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")
JOIN_TIMEOUT = 10.0  # seconds to wait for a call that was given up


class GivenUp(Exception):
    """Nobody waits for the result any more."""


class BackgroundCall(Generic[T]):
    """Runs `call(check)` at once in a thread. The call invokes `check()` now and then, which ends it when given up."""

    def __init__(self, call: Callable[[Callable[[], None]], T]):
        self._future: Future[T] = Future()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(call,), name="residual_hf-background")
        self._thread.start()

    def _run(self, call: Callable[[Callable[[], None]], T]) -> None:
        try:
            self._future.set_result(call(self._check))
        except BaseException as error:  # the one who asks for the result gets it
            self._future.set_exception(error)

    def _check(self) -> None:
        # a program that ends waits for its threads, so they must notice that the main one is gone
        if self._given_up.is_set() or not threading.main_thread().is_alive():
            raise GivenUp

    def result(self) -> T:
        """Wait for the call to end; returns what it returned, raises what it raised."""
        return self._future.result()

    def give_up(self) -> None:
        """Have the call end at its next `check` and wait for that."""
        self._given_up.set()
        self._thread.join(JOIN_TIMEOUT)
