"""`examples/scale/` on a local Ray with two workers, one of which is killed."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support import ROOT
from support.processes import descendants, with_paths
from support.tiny_translator import SENTENCES, save_tiny

from residual_hf.generation.translator import Translator

pytest.importorskip("ray", reason="needs Ray: pip install 'ray[data,serve]'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")]

RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model") / "model", source_lang="de", target_lang="en")


@contextmanager
def running(log, *command):
    """A process that is interrupted at the end, with its Ray."""
    environment = with_paths(RAY | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])})
    with log.open("ab") as file:
        process = subprocess.Popen([sys.executable, *map(str, command)], env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)


def wait_for(condition, process, log):
    deadline = time.monotonic() + 240
    while not (found := condition()):
        assert time.monotonic() < deadline and process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.05)
    return found


def test_a_corpus_is_translated_once_though_a_worker_and_the_run_are_killed(model, tmp_path):
    lines = [f"{first} {second}" for first in SENTENCES for second in SENTENCES] * 40
    source, output, log = tmp_path / "text.de", tmp_path / "text.en", tmp_path / "log"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    script = ROOT / "examples/scale/translate_corpus.py"
    command = [script, model, "--input", source, "--output", output, "--shard-lines", 4]

    def shards():
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("text.en.shards/*.txt")}

    with running(log, *command) as process:
        wait_for(lambda: len(shards()) > 5, process, log)
        os.kill(min(descendants(process, "ray::MapWorker")), signal.SIGKILL)
        before = len(shards())
        wait_for(lambda: len(shards()) > before + 10, process, log)
    first = shards()
    assert not output.exists()
    with running(log, *command) as process:
        assert process.wait(240) == 0, log.read_text()[-3000:]
    assert first.items() <= shards().items()  # none is written again
    expected = dict(zip(lines, Translator.from_pretrained(model).translate(lines), strict=True))
    assert output.read_text(encoding="utf-8").splitlines() == [expected[line] for line in lines]


def test_the_api_answers_though_a_replica_is_killed(model, tmp_path):
    log, port = tmp_path / "log", socket.create_server(("127.0.0.1", 0)).getsockname()[1]
    program = (
        "import time, ray; from ray import serve; from examples.scale.serve_api import Arguments, app; "
        f"ray.init(num_cpus=2, include_dashboard=False); serve.start(http_options={{'port': {port}}}); "
        f"serve.run(app(Arguments(models={str(model)!r}, min_replicas=2, cpus=.5))); print('it-serves', flush=True); "
        "time.sleep(600)"
    )

    def translate(_):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps({"q": SENTENCES[0], "source": "de", "target": "en"})
        try:
            client.request("POST", "/translate", body, {"Content-Type": "application/json"})
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        finally:
            client.close()

    def answered():
        with ThreadPoolExecutor(8) as pool:
            return dict.fromkeys(pool.map(translate, range(16)))

    with running(log, "-c", program) as process:
        wait_for(lambda: "it-serves" in log.read_text(), process, log)
        ((status, text),) = answered()
        assert status == 200 and json.loads(text)["translatedText"]
        replicas = descendants(process, "ray::ServeReplica")
        os.kill(min(replicas), signal.SIGKILL)
        wait_for(lambda: descendants(process, "ray::ServeReplica") - replicas, process, log)
        wait_for(lambda: list(answered()) == [(status, text)], process, log)
