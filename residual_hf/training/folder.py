# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The output folder of a run: refused, made, and written to."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from residual_hf.errors import InputError


def check_folder(folder: Path, *, overwrite: bool, resume: bool) -> None:
    """Refuse an output folder that is a file, or that holds something unless asked to overwrite it or to resume."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"output_dir: {folder} is a file, must be a folder")
    if folder.exists() and any(folder.iterdir()) and not resume and not overwrite:
        raise InputError(f"output_dir: {folder} exists and is not empty; use --overwrite, --resume or another folder")


def prepare_folder(folder: Path, *, overwrite: bool, resume: bool) -> Path:
    """Create the output folder, emptied if it is overwritten; see `check_folder` for what is refused."""
    check_folder(folder, overwrite=overwrite, resume=resume)
    if folder.exists() and overwrite and not resume:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class TerminalHandler(logging.Handler):
    """Writes to standard error without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class log_file:
    """Context in which messages of this package go to a file as well as to the terminal."""

    def __init__(self, path: Path):
        self.handlers: Sequence[logging.Handler] = (
            logging.FileHandler(path, encoding="utf-8"),
            TerminalHandler(),
        )

    def __enter__(self) -> None:
        package = logging.getLogger("residual_hf")
        package.setLevel(logging.INFO)
        for handler in self.handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
            package.addHandler(handler)

    def __exit__(self, *exception: Any) -> None:
        for handler in self.handlers:
            logging.getLogger("residual_hf").removeHandler(handler)
            handler.close()
