"""`serve --workers`: several processes behind one port, one of which is killed."""

import http.client
import json
import logging
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import pytest
from support.processes import descendants
from support.tiny_translator import SENTENCES, save_tiny

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

import uvicorn
from uvicorn.supervisors import multiprocess

from residual_hf.serving import workers

LONG = {"q": [" ".join(SENTENCES)] * 40, "source": "de", "target": "en"}
SHORT = LONG | {"q": SENTENCES[0]}


class Workers:
    def __init__(self, model):
        command = [sys.executable, "-m", "residual_hf.cli", "serve", str(model), "--port", "0", "--workers", "2"]
        self.process = subprocess.Popen([*command, "--num-beams", "5"], stderr=subprocess.PIPE, text=True)
        self.log = []
        for line in self.process.stderr:
            if match := re.search(r"http://\S+:(\d+)", line):
                self.port = int(match[1])
                break
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def request(self, path, body=None):
        """The answer over a new connection, or the error that the client gets."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except ConnectionError as error:
            return None, error
        finally:
            connection.close()

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)", self.request("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else 0

    def processes(self):
        return descendants(self.process, "spawn_main")

    def wait_for(self, condition):
        deadline = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log
            time.sleep(0.05)


def test_a_worker_that_ends_during_a_health_check_is_found_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocess, "SIGNALS", {})
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    config = uvicorn.Config("no:app", timeout_worker_healthcheck=20)
    process = multiprocess.Process(config, [])
    unanswered = process.child_conn.recv  # reads the request of the health check, and ends
    process.process = multiprocessing.get_context("spawn").Process(target=unanswered)
    process.start()
    supervisor = workers.Supervisor(config, [])
    supervisor.processes = [process]
    monkeypatch.setattr(multiprocess, "Process", Mock())
    start = time.monotonic()
    supervisor.keep_subprocess_alive()
    assert supervisor.processes == [multiprocess.Process()] and time.monotonic() - start < 15


class Noisy:
    """Logs a warning when it is imported."""

    def __reduce__(self):
        return imported, ()


def imported():
    logging.getLogger("a library").warning("an extension does not load")
    return partial(str, "app")


def test_what_libraries_log_on_import_is_not_shown(monkeypatch, caplog):
    monkeypatch.setattr(workers, "end_with_supervisor", lambda: None)
    assert workers.worker_app(pickle.dumps(Noisy()), 2) == "app" and not caplog.records
    logging.getLogger("a library").warning("shown")
    assert len(caplog.records) == 1


@pytest.mark.slow  # starts four processes that import PyTorch
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_worker_is_replaced_and_the_others_answer(tmp_path):
    save_tiny(tmp_path / "model", source_lang="de", target_lang="en")
    server = Workers(tmp_path / "model")
    translated = 'residual_hf_requests_total{path="/translate",status="200"}'
    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: server.request("/translate", SHORT), range(24)))
            assert len(set(answers)) == 1 and answers[0][0] == 200, server.log
            server.wait_for(lambda: server.metric(translated) == 24)
            server.wait_for(lambda: len(server.processes()) == 2)
            before = server.processes()
            running = [pool.submit(server.request, "/translate", LONG) for _ in range(8)]
            server.wait_for(lambda: server.metric("residual_hf_waiting_requests") > 4)
            os.kill(min(before), signal.SIGKILL)
            answers = [future.result() for future in running]
            assert all(status == 200 or isinstance(error, ConnectionError) for status, error in answers)
            done = 24 + sum(status == 200 for status, _ in answers)
            server.wait_for(lambda: len(server.processes() - before) == 1)
            assert server.request("/translate", SHORT)[0] == 200
            server.wait_for(lambda: server.metric("residual_hf_waiting_requests") == 0)
            server.wait_for(lambda: server.metric(translated) == done + 1)
            accepted = pool.submit(server.request, "/translate", LONG)
            server.wait_for(lambda: server.metric("residual_hf_waiting_requests") == 1)
            server.process.send_signal(signal.SIGTERM)
            assert accepted.result()[0] == 200
        assert server.process.wait(60) == 0
        assert "Traceback" not in "".join(server.log)
    finally:
        server.process.kill()
