"""Load on a server over loopback: lost requests, throughput against offline translation, latency and memory.

python examples/serve/load.py runs/my_run/model --input text.en --clients 64 --seconds 60
"""

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from residual_hf.generation.translator import Translator

BATCH_TOKENS = 4000  # the default of `residual-hf serve`


class Client(threading.Thread):
    """Sends one sentence after the other over one connection; `seconds` are those of the translations it gets."""

    def __init__(self, port: int, languages: dict[str, str], sentences: list[str], end: float, seed: int):
        super().__init__()
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.languages, self.sentences, self.end, self.random = languages, sentences, end, random.Random(seed)
        self.seconds: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        while time.monotonic() < self.end:
            body = json.dumps({"q": self.random.choice(self.sentences), **self.languages})
            start = time.monotonic()
            try:
                self.connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
                answer = self.connection.getresponse()
                text = answer.read().decode()
                if answer.status == 200 and "translatedText" in json.loads(text):
                    self.seconds.append(time.monotonic() - start)
                else:
                    self.errors.append(f"{answer.status} {text}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.errors.append(repr(error))
                self.connection.close()


def offline_rate(model: str, sentences: list[str]) -> float:
    """Sentences per second of `Translator.translate` with the batches of the server."""
    translator = Translator.from_pretrained(model, max_tokens=BATCH_TOKENS)
    translator.translate(sentences[:8])
    start = time.monotonic()
    translator.translate(sentences)
    return len(sentences) / (time.monotonic() - start)


def summary(clients: Sequence[Client], seconds: float, offline: float) -> str:
    """What the clients got in some seconds, beside the sentences per second of offline translation."""
    latencies = [second for client in clients for second in client.seconds]
    errors = [error for client in clients for error in client.errors]
    rate = len(latencies) / seconds
    lines = [
        f"{len(latencies)} translations, {len(errors)} errors {errors[:3] or ''}",
        f"served {rate:.1f} sentences/s, offline {offline:.1f}: {rate / offline:.2f}",
    ]
    if len(latencies) > 1:
        quantiles = statistics.quantiles(latencies, n=100)
        lines.append(f"latency: median {quantiles[49]:.3f} s, 99th percentile {quantiles[98]:.3f} s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--input", type=Path, required=True, help="source sentences, one a line")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    sentences = [line for line in options.input.read_text(encoding="utf-8").splitlines() if line.strip()]
    offline = offline_rate(options.model, random.Random(0).choices(sentences, k=2000))

    command = [sys.executable, "-m", "residual_hf_cli", "serve", options.model, "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    port = int(next(match[1] for line in server.stderr if (match := re.search(r"http://\S+:(\d+)", line))))
    threading.Thread(target=server.stderr.read, daemon=True).start()
    listed = http.client.HTTPConnection("127.0.0.1", port)
    listed.request("GET", "/languages")
    source = next(language for language in json.load(listed.getresponse()) if language["targets"])
    languages = {"source": source["code"], "target": source["targets"][0]}

    memory = psutil.Process(server.pid).memory_info
    start = time.monotonic()
    clients = [Client(port, languages, sentences, start + options.seconds, seed) for seed in range(options.clients)]
    for client in clients:
        client.start()
    time.sleep(options.seconds / 3)
    early = memory().rss
    for client in clients:
        client.join()
    seconds, late = time.monotonic() - start, memory().rss
    server.terminate()
    server.wait(60)

    print(summary(clients, seconds, offline))
    print(f"resident memory: {early / 2**20:.0f} MiB after a third, {late / 2**20:.0f} MiB at the end")


if __name__ == "__main__":
    main()
