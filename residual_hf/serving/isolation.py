"""Long texts and documents are taken apart and joined again in a process of their own.

Python runs a pattern, or a library that reads a document, to its end while all other threads wait. In a process of its
own, it takes neither the time nor the memory of the server, and can be ended. The model stays in the server.
"""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from residual_hf.base.errors import InputError

from .layout import Found

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT: Any = multiprocessing.get_context(METHOD)  # not fork: another thread of the server may hold a lock
CONTEXT.set_forkserver_preload(["residual_hf_cli", "residual_hf.serving.preloaded"])  # at the first use
QUIET = 5  # nice: a third of the time of the server, which is enough to read a document while that is busy
LONGEST = 3600  # seconds of a CPU, in case that the server is killed before it ends a process


class Layouts:
    """A process that makes a `layout`, such as `TextLayout`, of what is `given`, and may allocate `memory` bytes.

    `fits` is called in the server. The methods wait for the process. `end` ends it, and them with an `EOFError`.
    """

    def __init__(self, layout: type[Any], given: Any, memory: int, fits: Callable[[str], bool]):
        self._connection, self._theirs = CONTEXT.Pipe()
        self._fits = fits
        self._process = CONTEXT.Process(target=_run, args=(self._theirs, layout, given, memory), daemon=True)
        self._ended = False

    def start(self) -> None:
        """Start the process; the first one of a server takes the seconds of its imports."""
        self._process.start()
        self._theirs.close()
        if self._ended:
            self._process.kill()

    def sentences(self) -> list[tuple[str, bool]]:
        """The sentences. Raises `InputError` for what cannot be read within the limits."""
        return self._result()

    def joined(self, found: Sequence[Found]) -> Any:
        """The result of the layout for these translations of the sentences."""
        self._connection.send(found)
        return self._result()

    def end(self) -> None:
        self._ended = True
        if self._process.pid is not None:
            self._process.kill()

    def _result(self) -> Any:
        while True:
            kind, value = self._connection.recv()
            if kind == "raised":
                raise value
            if kind == "result":
                return value
            self._connection.send(self._fits(value))


def _run(connection: Connection, layout: Any, given: Any, memory: int) -> None:
    """The process. It ends when the server closes the connection, also by its own end."""

    def fits(sentence: str) -> bool:
        connection.send(("fits", sentence))
        return connection.recv()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl+C: the server answers what it has accepted
    _limit(memory)
    with suppress(EOFError, BrokenPipeError):
        try:
            made = layout(given, fits)
            connection.send(("result", made.sentences))
            found = connection.recv()  # of a sample there are none, and the server ends this
            connection.send(("result", made.joined(found)))
        except (InputError, OSError) as error:
            connection.send(("raised", error))
        except (MemoryError, RecursionError) as error:
            reason = f"cannot be read within the limits of the server ({type(error).__name__})"
            connection.send(("raised", InputError(reason)))
        except Exception:
            connection.send(("raised", RuntimeError(traceback.format_exc())))


def _limit(memory: int) -> None:
    with suppress(ImportError, AttributeError):  # Windows
        from resource import RLIM_INFINITY, RLIMIT_CPU, RLIMIT_DATA, getrlimit, setrlimit

        os.nice(QUIET)
        for limit, most in ((RLIMIT_DATA, memory), (RLIMIT_CPU, LONGEST)):
            _, hard = getrlimit(limit)
            with suppress(ValueError, OSError):
                setrlimit(limit, (most if hard == RLIM_INFINITY else min(most, hard), hard))
