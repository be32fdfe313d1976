"""Settings of a server."""

import re
from dataclasses import dataclass
from pathlib import Path

from residual_hf.base.errors import InputSettings
from residual_hf.data.text_files import iter_lines
from residual_hf.model.options import option


@dataclass(frozen=True)
class ServerSettings(InputSettings):
    """Address and limits of a server."""

    host: str = option("127.0.0.1", help="address to listen on; the default is reachable from this machine only")
    port: int = option(5000, minimum=0, maximum=65535, help="port to listen on; 0: any free one")
    root_path: str | None = option(None, help="path, such as /mt, that a reverse proxy removes from URLs")
    workers: int = option(
        1,
        minimum=1,
        help="processes, each with its own copy of the models and limits; SIGHUP replaces them one by one",
    )
    char_limit: int = option(5000, minimum=1, help="most characters of a request")
    max_queue: int = option(256, minimum=1, help="most requests that wait; further ones get status 429")
    timeout: float = option(
        60.0, above=0, help="seconds for a client to send a request, and until the request gets status 504"
    )
    max_connections: int = option(
        1000, minimum=2, help="most connections, or half of the files that the process may open if that is less"
    )
    file_size: int = option(10, minimum=1, help="most MiB of a document; a tenth for formats of text")
    file_char_limit: int = option(1_000_000, minimum=1, help="most characters of a document")
    api_keys: Path | None = option(None, help="file with one API key per line; without it no key is required")

    def check(self) -> None:
        is_path = self.root_path is None or re.fullmatch(r"(/[\w.~-]+)+", self.root_path, re.ASCII)
        self.require(is_path, "root_path", "a path such as /mt")
        self.read_keys()

    @property
    def file_bytes(self) -> int:
        return self.file_size * 2**20

    def read_keys(self) -> list[bytes]:
        """The API keys, empty if none is required. Raises `InputError` for a file that is missing or has none."""
        if self.api_keys is None:
            return []
        lines = iter_lines(self.api_keys) if self.api_keys.is_file() else ()
        keys = [line.strip().encode() for line in lines if line.strip()]
        self.require(keys, "api_keys", "a file with one key per line")
        return keys
