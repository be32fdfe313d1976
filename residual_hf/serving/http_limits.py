"""Limits of HTTP connections: size and time of what a client sends before it gets an answer, and their number."""

import asyncio
import logging
import socket
import time
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from residual_hf.base.errors import InputError

from .server_settings import ServerSettings

OVERHEAD = 65_536  # bytes of a request besides its text
BYTES_PER_CHARACTER = 12  # of a character in JSON, a form or a query, escaped: \\uXXXX\\uXXXX or %XX%XX%XX%XX
BYTES_PER_HEADER = 16  # of headers of the most bytes, at least
MOST_SMALL_CHUNKS, BYTES_PER_CHUNK = 1000, 32  # chunks of fewer bytes than the mean of all may be
RECEIVED = (h11.DONE, h11.MUST_CLOSE, h11.MIGHT_SWITCH_PROTOCOL)  # states of a client whose request is complete


def request_limit(settings: ServerSettings) -> int:
    """Most bytes of the headers of a request, and of its body."""
    return OVERHEAD + BYTES_PER_CHARACTER * settings.char_limit


class PathOnly(logging.Filter):
    """Drops queries from the access log: they have API keys and texts of clients."""

    def filter(self, record: logging.LogRecord) -> bool:
        client, method, path, *others = record.args  # type: ignore[misc]
        record.args = (client, method, str(path).partition("?")[0], *others)
        return True


LOGGING = deepcopy(uvicorn.config.LOGGING_CONFIG)
LOGGING["filters"] = {"path_only": {"()": PathOnly}}
LOGGING["handlers"]["access"]["filters"] = ["path_only"]


def check_address(settings: ServerSettings) -> None:
    """Raise `InputError` for an address that cannot be listened on."""
    try:
        family, _, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address, family=family).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {settings.host} --port {settings.port}: cannot be listened on: {reason}") from error


def uvicorn_config(app: Any, settings: ServerSettings, **options: Any) -> uvicorn.Config:
    """The configuration of uvicorn with all limits."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path or "",
        http=LimitedProtocol,
        ws="none",
        h11_max_incomplete_event_size=request_limit(settings),
        timeout_keep_alive=settings.timeout,  # type: ignore[arg-type]  # any number of seconds
        limit_concurrency=min(settings.max_connections, most_files() // 2),
        timeout_graceful_shutdown=round(settings.timeout) + 5,
        log_config=LOGGING,
        **options,
    )


def most_files() -> int:
    """How many files and connections the process may open."""
    with suppress(ImportError):  # Windows
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit

        soft, _ = getrlimit(RLIMIT_NOFILE)
        if soft != RLIM_INFINITY:
            return soft
    return 1 << 20


class LimitedConnection(h11.Connection):
    """Refuses a body of many chunks of a few bytes, because h11 is slow at them."""

    chunks = received = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.received = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_start
            self.received += len(event.data)
            if self.chunks > MOST_SMALL_CHUNKS + self.received // BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 over one connection, which is closed unless the client does its part in `timeout_keep_alive` seconds.

    Its part is to send a complete request, from the start of the connection or the answer to the last one, and to read
    the answer. At `limit_concurrency` connections, a new one replaces that which has waited longest for its client,
    among those of the address with the most of them. h11 limits the size of the headers; their number is limited by
    their lines, because h11 is slow at them. (uvicorn has no time limit for a request, and refuses new connections
    while others are unfinished.)
    """

    deadline: asyncio.TimerHandle | None = None
    waits_since = 0.0
    lines = 0

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.conn = LimitedConnection(h11.SERVER, self.config.h11_max_incomplete_event_size or OVERHEAD)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_client()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            waiting = [c for c in self.connections if isinstance(c, LimitedProtocol) and c.deadline]
            of_address = Counter(connection.address for connection in waiting)
            min(waiting, key=lambda connection: (-of_address[connection.address], connection.waits_since)).drop()

    @property
    def address(self) -> str | None:
        return self.client[0] if self.client else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is not h11.SEND_BODY:
            self.lines += data.partition(b"\r\n\r\n")[0].count(b"\n")
            if self.lines > (self.config.h11_max_incomplete_event_size or OVERHEAD) // BYTES_PER_HEADER:
                self.drop()
                return
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # nonsense after an answer
            self.drop()

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state in RECEIVED:
            self.lines = 0
            if not self.cycle.response_complete and not self.flow.write_paused:
                self._stop_waiting()

    def on_response_complete(self) -> None:
        self._wait_for_client()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._wait_for_client()
        super().pause_writing()

    def resume_writing(self) -> None:
        if not self.cycle.response_complete:
            self._stop_waiting()
        super().resume_writing()

    def drop(self) -> None:
        """Close the connection at once, also if the client does not read."""
        self._stop_waiting()
        self.connections.discard(self)
        self.transport.abort()

    def _wait_for_client(self) -> None:
        self._stop_waiting()
        self.waits_since = time.perf_counter()  # finer than the clock of the loop
        self.deadline = self.loop.call_later(self.timeout_keep_alive, self.drop)

    def _stop_waiting(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
