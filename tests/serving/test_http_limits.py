"""What clients can send to a server before they are known to have a key is bounded in size, time and number."""

import itertools
import logging
import socket
import sys
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

from support.server import Server, tiny_translator

from residual_hf.serving.http_limits import uvicorn_config
from residual_hf.serving.languages import Languages
from residual_hf.serving.server_settings import ServerSettings

POST = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SECONDS = 0.4  # of the server for a client


@pytest.fixture(scope="module")
def server():
    translator = tiny_translator(source_lang="de", target_lang="en")
    server = Server(Languages({"german": translator}), char_limit=300, timeout=SECONDS, max_connections=8)
    yield server
    server.close()


def test_the_access_log_has_no_queries():
    uvicorn_config(None, ServerSettings())
    (handler,) = logging.getLogger("uvicorn.access").handlers
    values = ("127.0.0.1:1", "GET", "/translate?q=secret&api_key=secret", "1.1", 200)
    record = logging.makeLogRecord({"msg": '%s - "%s %s HTTP/%s" %d', "args": values})
    assert handler.filter(record) and record.getMessage() == '127.0.0.1:1 - "GET /translate HTTP/1.1" 200'


def connect(server, data=b""):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(data)
    return connection


def is_closed(connection):
    try:
        return not connection.recv(1 << 20)
    except ConnectionError:
        return True


def sent_until_closed(connection, parts, pause=0.0):
    """Bytes and seconds after which the server closes the connection."""
    sent, start = 0, time.monotonic()
    with connection:
        for part in parts:
            try:
                connection.sendall(part)
            except ConnectionError:
                return sent, time.monotonic() - start
            sent += len(part)
            assert time.monotonic() - start < 10 and sent < 1 << 26
            time.sleep(pause)
    raise AssertionError("not closed")


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (POST + b"x: ", b"x" * 9999),
        (POST, b"x: x\r\n" * 999),
        (b"GET /", b"x" * 9999),
        (b"", b"x" * 9999),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 999),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2;", b"x" * 9999),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"x: x\r\n" * 999),
    ],
    ids=["header", "headers", "target", "method", "chunks", "extension", "trailers"],
)
def test_endless_requests_are_cut_off(server, start, part):
    buffered = 8 << 20  # by the kernel
    sent, _ = sent_until_closed(connect(server, start), itertools.repeat(part))
    assert sent < buffered
    assert server.request("health")[0] == 200


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (b"", b""),
        (POST, b"x"),
        (POST + b"Content-Length: 999\r\n\r\n", b"x"),
        (b"PUT /none HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n", b"x"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
    ],
    ids=["silent", "header", "body", "answered", "kept"],
)
def test_slow_requests_are_cut_off(server, start, part):
    slow = connect(server, start)
    if part:
        assert sent_until_closed(slow, itertools.repeat(part), 0.02)[1] < SECONDS + 2
    else:
        assert is_closed(slow)


def test_a_client_that_does_not_read_is_cut_off(server):
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.port))
        sent_until_closed(deaf, itertools.repeat(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 99))
    assert server.request("health")[0] == 200


def test_unfinished_requests_do_not_shut_out_others(server):
    waiting = [connect(server, POST) for _ in range(30)]
    for _ in range(3):
        assert server.request("health")[0] == 200
    assert sum(map(is_closed, waiting[:20])) == 20
    for connection in waiting:
        connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of the own machine")
def test_many_connections_of_one_address_do_not_end_those_of_others(server):
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address, timeout=10, source_address=("127.0.0.2", 0)) as patient:
        body = b'{"q": "zwei", "source": "de", "target": "en"}'
        patient.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body[:9])
        others = [connect(server, POST) for _ in range(30)]
        patient.sendall(body[9:])
        assert patient.recv(100).startswith(b"HTTP/1.1 200")
    for connection in others:
        connection.close()


def test_a_short_text_may_come_in_many_chunks(server):
    body = b'{"q": "zwei", "source": "de", "target": "en"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with connect(server, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_large_request_is_answered_before_its_connection_is_closed(server):
    assert server.translate("x" * 3_000_000)[0] == 413
