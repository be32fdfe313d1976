"""Pages in a headless Chromium, by its protocol for tools."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or find_spec("websockets") is None, reason="Chromium or websockets is not installed"
)


class Page:
    """A page that a browser shows.

    Args:
        address: of the browser's web socket.
    """

    def __init__(self, address: str):
        from websockets.sync.client import connect

        self.socket = connect(address, max_size=None)
        self.number, self.session = 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        session = {} if self.session is None else {"sessionId": self.session}
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters} | session))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == self.number:
                return answer["result"]

    def value(self, script: str) -> Any:
        options = {"returnByValue": True, "userGesture": True}
        return self.call("Runtime.evaluate", expression=script, **options)["result"].get("value")

    def wait_for(self, script: str, seconds: float = 60) -> Any:
        """The first true value of a script."""
        end = time.monotonic() + seconds
        while not (found := self.value(script)):
            assert time.monotonic() < end, f"{script} is {found!r} after {seconds} s"
            time.sleep(0.05)
        return found

    def open(self, url: str, width: int) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=url)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a browser whose settings are in a folder."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    process = subprocess.Popen([CHROMIUM, *options, "about:blank"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = next(line for line in process.stderr if line.startswith("DevTools listening on ")).split()[-1]
        page = Page(address)
        yield page
        page.socket.close()
    finally:
        process.kill()
        process.communicate()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of the files of a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
