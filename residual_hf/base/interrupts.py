"""Ctrl-C, SIGTERM and SIGHUP."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def signals_handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Context in which Ctrl-C, SIGTERM and SIGHUP call `handler`. A signal that the process ignores stays ignored."""
    numbers = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    with ExitStack() as restored:
        for number in numbers:
            if (former := signal.getsignal(number)) is not signal.SIG_IGN:
                signal.signal(number, handler)
                restored.callback(signal.signal, number, former)
        yield


@contextmanager
def signals_interrupt() -> Iterator[list[int]]:
    """Context in which SIGTERM and SIGHUP raise `KeyboardInterrupt` like Ctrl-C, so that contexts are left in order.

    Yields a list that receives the numbers of the signals: code that runs in the meantime, such as an import of
    PyTorch, may turn `KeyboardInterrupt` into another error.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    with signals_handled(interrupt):
        yield received
