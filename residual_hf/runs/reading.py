"""The first stage of a run: its output folder is checked before any long work, and its log begins."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tqdm.auto import tqdm

from residual_hf.base.errors import InputError
from residual_hf.base.files import RECORD, check_output_folder, check_space, emptied_folder, expanded, writing
from residual_hf.base.interrupts import signals_interrupt
from residual_hf.base.lock import Lock
from residual_hf.checkpoint import WEIGHT_FILES

from .recipe import Recipe

logger = logging.getLogger(__name__)

LOCK = "run.lock"


def check_folder(recipe: Recipe, *, overwrite: bool, resume: bool, inputs: Iterable[Path]) -> Path:
    """The output folder of a run. Raises `InputError` for one that cannot be used, see `train`."""
    folder = expanded(recipe.output_dir)
    if resume:
        if not (folder / RECORD).is_file():
            advice = "must be the folder of a run; start a run without --resume"
            raise InputError(f"--resume: {folder} has no {RECORD}, {advice}")
        check_space(folder)
        check_output_folder(folder / "model", overwrite=True, holds=WEIGHT_FILES)
    else:
        check_output_folder(
            folder,
            overwrite=overwrite,
            holds=[RECORD],
            inputs=[*inputs, *recipe.input_paths],
            options="--overwrite, --resume",
        )
    # what is before ".." may be a part of an earlier run, which is moved
    return folder.resolve() if ".." in folder.parts else folder


@contextmanager
def run_folder(folder: Path, *, resume: bool = False, overwrite: bool = False) -> Iterator[None]:
    """Context in which this process has a run folder for itself and logs to it.

    Unless `resume`, the folder is empty; what was in it is kept until the first update, see `emptied_folder`.

    Raises `InputError` if, without `resume` or `overwrite`, another process has run in it since it was checked.
    """
    with writing(folder), signals_interrupt(), Lock(folder / LOCK, f"output_dir: {folder}"):
        if not (resume or overwrite) and (folder / RECORD).exists():
            raise InputError(f"output_dir: another process has meanwhile written {folder}; use another folder")
        with (
            nullcontext() if resume else emptied_folder(folder, keep=LOCK),
            log_to(LogFile(folder / "train.log", encoding="utf-8")),
        ):
            yield


class LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Keep a message that a full disk refuses: it is written with the next one, or an error at the end."""


class TerminalHandler(logging.Handler):
    """Writes to standard error without breaking a progress bar, in place of the root logger, which prints in Colab."""

    def __init__(self) -> None:
        super().__init__()
        printed = (sys.stdout, sys.stderr)
        self.others = [each for each in logging.root.handlers if getattr(each, "stream", None) in printed]
        for each in self.others:
            each.addFilter(_is_foreign)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except OSError:  # the terminal was closed
            self.handleError(record)

    def close(self) -> None:
        for each in self.others:
            each.removeFilter(_is_foreign)
        super().close()


def _is_foreign(record: logging.LogRecord) -> bool:
    return not record.name.startswith("residual_hf.")


@contextmanager
def log_to(handler: logging.Handler) -> Iterator[None]:
    """Context in which the messages of this package also go to `handler`, with their time."""
    package = logging.getLogger("residual_hf")
    level = package.level
    package.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()
