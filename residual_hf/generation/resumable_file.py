"""An output file that grows while lines are translated, so that an interrupted run can continue."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from residual_hf.base.errors import InputError, InputSettings
from residual_hf.base.files import atomic_file, check_output_file, read_json, write_atomically, write_json, writing
from residual_hf.base.lock import Lock
from residual_hf.data.text_files import COMPRESSIONS
from residual_hf.model.options import from_mapping, option

BLOCK = 1 << 20  # bytes that are read at a time
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress(InputSettings):
    """The content of `FILE.partial.json`."""

    made_with: dict = option(help="model and settings")
    lines: int = option(minimum=0, help="number of lines of the source that are translated")
    bytes: int = option(minimum=0, help="size of their translations")
    source_sha256: str = option(help="hash of these lines")
    sha256: str = option(help="hash of their translations")


class ResumableFile:
    """Context of a file that grows as `FILE.partial` and is renamed to `FILE` when it is complete.

    `FILE.partial.json` records what the file is made with, and how many lines of the source it covers. `lock` keeps
    other processes out.

    Args:
        made_with: model and settings; a file is continued with the same ones only.
        overwrite: replace an existing file, complete or not.
        inputs: what the file is made from, which it must not replace.
    """

    def __init__(
        self,
        path: Path,
        made_with: Mapping[str, Any],
        *,
        resume: bool = False,
        overwrite: bool = False,
        inputs: Iterable[Path | str | None] = (),
    ):
        if path.suffix in COMPRESSIONS:
            raise InputError(f"--output: {path} given, must be the name of an uncompressed file")
        inputs = list(inputs)
        check_output_file(path, overwrite=overwrite or resume, inputs=inputs, field="--output")
        self.path, self.partial = path, path.with_name(f"{path.name}.partial")
        self.record, self.made_with = path.with_name(f"{self.partial.name}.json"), dict(made_with)
        texts = [each for each in inputs if each is not None and not Path(each).is_dir()]  # it may lie with the model
        for own in (self.partial, self.record):
            check_output_file(own, overwrite=True, inputs=texts, field="--output")
        self.lock = Lock(path.with_name(f"{self.partial.name}.lock"), f"--output: {path}")
        self.lines, self.size, self.digest, self.written = 0, 0, hashlib.sha256(), hashlib.sha256()
        self.resume, self.overwrite = resume, overwrite

    def __enter__(self) -> "ResumableFile":
        with ExitStack() as stack:
            stack.enter_context(self.lock)
            if self.resume:
                self._read_record()
            elif not self.overwrite and (self.record.exists() or os.path.lexists(self.partial)):
                fault = "is from an interrupted run; use --resume or --overwrite"
                fault = fault if self.record.exists() else "exists, where the output would grow; use another file"
                raise InputError(f"--output: {self.partial} {fault}")
            stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.lines and self.record.exists():
            logger.warning("%s has the output for %d lines; --resume continues", self.partial, self.lines)
        self.lock.__exit__(*exception)

    def remaining(self, source: Iterator[str]) -> Iterator[str]:
        """The lines of the source that are not translated yet. Raises `InputError` if the others have changed."""
        self._hash(islice(source, self.lines))
        if self.lines and self.digest.hexdigest() != self.expected_digest:
            raise InputError(f"--resume: the first {self.lines} lines of the input are not those of {self.partial}")
        return source

    def append(self, source: Sequence[str], text: str) -> None:
        """Add the text for some lines of the source."""
        content = text.encode()
        if not self.size:
            self._write_record()  # so that what a failure leaves is known to be partial
            self.partial.unlink(missing_ok=True)  # of a former run; a link is not followed
        with writing(self.partial), open(self.partial, "r+b" if self.size else "xb") as file:
            file.seek(self.size)
            file.truncate()
            file.write(content)
        self.size += len(content)
        self.written.update(content)
        self.lines += len(source)
        self._hash(source)
        self._write_record()

    def finish(self, make: Callable[[list[str], Path], Any] | None = None) -> None:
        """Give the file its name. `make` writes another file in its place, from its lines."""
        if not self.lines:
            write_atomically(self.partial, "")
        if make is not None:
            lines = self.partial.read_text(encoding="utf-8").split("\n")[:-1]
            with atomic_file(self.path) as temporary:
                make(lines, temporary)
            self.partial.unlink()
        else:
            os.replace(self.partial, self.path)
        self.record.unlink(missing_ok=True)

    def _hash(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.digest.update(line.encode() + b"\n")

    def _write_record(self) -> None:
        digests = self.digest.hexdigest(), self.written.hexdigest()
        write_json(self.record, asdict(Progress(self.made_with, self.lines, self.size, *digests)))

    def _read_record(self) -> None:
        complete = f"; {self.path} is complete, --overwrite replaces it" if self.path.exists() else ""
        record, where = None, f"--resume: {self.record}: "
        if self.record.exists():
            record = from_mapping(Progress, read_json(self.record), where)
        if record is None or (record.bytes and not self.partial.exists()):  # ended before the record was deleted
            missing = self.partial if record else self.record
            raise InputError(f"--resume: nothing to continue, no {missing}{complete}")
        before, now = record.made_with, self.made_with
        changed = [f"{name} {before.get(name)!r}, now {now[name]!r}" for name in now if before.get(name) != now[name]]
        if changed:
            raise InputError(f"--resume: {self.partial} was made with {'; '.join(changed)}")
        if record.bytes:
            with open(self.partial, "rb") as file:
                for start in range(0, record.bytes, BLOCK):
                    self.written.update(file.read(min(BLOCK, record.bytes - start)))
        if self.written.hexdigest() != record.sha256:
            raise InputError(f"--resume: {self.partial} was changed after it was written; use --overwrite")
        self.lines, self.size, self.expected_digest = record.lines, record.bytes, record.source_sha256
