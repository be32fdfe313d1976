# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Messages of this package in a terminal and in a file, with their time."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm.auto import tqdm


class TerminalHandler(logging.Handler):
    """Writes to standard error without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except OSError:  # the terminal was closed
            self.handleError(record)


@contextmanager
def log_to(handler: logging.Handler) -> Iterator[None]:
    """Context in which the messages of this package also go to `handler`, with their time."""
    package = logging.getLogger("residual_hf")
    package.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)
        handler.close()
