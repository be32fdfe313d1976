"""A server of the test process, and its client."""

import json
import threading
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import uvicorn

from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.translator import Translator
from residual_hf.serving.app import create_app
from residual_hf.serving.http_limits import uvicorn_config
from residual_hf.serving.server_settings import ServerSettings
from support.tiny_translator import tiny_model, tiny_tokenizer


def tiny_translator(*tags, **fields):
    """A translator with short outputs, of a random model with these fields of the config."""
    tokenizer = tiny_tokenizer(*tags)
    model = tiny_model(tokenizer, **fields)
    model.generation_config.no_repeat_ngram_size = 3  # random weights repeat themselves
    return Translator(model, tokenizer, DecodingSettings(num_beams=2, max_tokens=500, max_length_a=1, max_length_b=5))


class Server:
    """Serves `languages` on a free port."""

    def __init__(self, languages, **settings):
        chosen = ServerSettings(port=0, **settings)
        self.app = create_app(languages, chosen)
        self.uvicorn = uvicorn.Server(uvicorn_config(self.app, chosen, log_level="error"))
        self.thread = threading.Thread(target=self.uvicorn.run, daemon=True)
        self.thread.start()
        while not self.uvicorn.started:
            time.sleep(0.01)
        self.port = self.uvicorn.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"

    def wait_for(self, metric):
        deadline = time.time() + 30
        while metric not in (metrics := self.request("metrics")[2]):
            assert time.time() < deadline, metrics
            time.sleep(0.01)

    def close(self):
        self.uvicorn.should_exit = True
        self.thread.join()

    def request(self, path, body=None, content_type="application/json", method=None):
        """Status, headers and parsed body of an answer; `body` is posted, as JSON unless it is bytes."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            answer = urlopen(Request(self.url + path, data, {"Content-Type": content_type}, method=method), timeout=60)
        except HTTPError as error:
            answer = error
        with answer:
            text = answer.read().decode()
        return answer.status, answer.headers, json.loads(text) if "json" in answer.headers["Content-Type"] else text

    def translate(self, q, **fields):
        return self.request("translate", {"q": q, "source": "de", "target": "en"} | fields)
