"""Function calls in a thread that can be cancelled and do not outlive the program.

At exit a `ThreadPoolExecutor` would wait for its call to finish, which takes a minute for a large block of a stream.
"""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Runs `call(check)` in a thread; `call` must run `check()` regularly, which raises an error after `cancel`.

    A `daemon` is abandoned at exit, within a function of a library that takes minutes.
    """

    def __init__(self, call: Callable[[Callable[[], None]], T], *, daemon: bool = False):
        self._future: Future[T] = Future()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(call,), name="residual_hf-background", daemon=daemon)
        self._thread.start()

    def _run(self, call: Callable[[Callable[[], None]], T]) -> None:
        try:
            self._future.set_result(call(self._check))
        except BaseException as error:  # raised again by `result`
            self._future.set_exception(error)

    def _check(self) -> None:
        # the interpreter waits for its threads on exit, after the main one has ended
        if self._cancelled.is_set() or not threading.main_thread().is_alive():
            raise CancelledError

    def result(self) -> T:
        """Wait for the call; returns its result or raises its error."""
        return self._future.result()

    def cancel(self, timeout: float = 10.0) -> None:
        """Stop the call at its next `check` and wait for it to end, for at most `timeout` seconds."""
        self._cancelled.set()
        self._thread.join(timeout)


def interruptible(call: Callable[[Callable[[], None]], T]) -> T:
    """The result of a call that a signal can interrupt, although it is in a function of a library for minutes.

    Python runs signal handlers in the main thread only, between its own instructions.
    """
    background = BackgroundCall(call, daemon=True)
    try:
        return background.result()
    except BaseException:
        background.cancel(timeout=1.0)
        raise
