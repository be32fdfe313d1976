"""Output files and folders, written completely or not at all, and JSON files."""

import errno
import glob
import json
import logging
import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, SoftFileLock, Timeout

from .errors import InputError, input_errors, refuse_if
from .interrupts import signals_handled

logger = logging.getLogger(__name__)

IS_WINDOWS = os.name == "nt"
RECORD = "run.json"
"""The record of a run, in its folder."""
REPLACED = ".replaced."
"""The beginning of the name of a folder for the former content of another, see `emptied_folder`."""
ATTEMPT = "lock"
"""The lock file in a folder while its content is written."""
SOFT = ".soft"
"""The end of the name of the second file of a lock, see `acquire_lock`."""
RESERVE = 32 * 2**20
"""Bytes that must be free on the disk of an output."""
LARGEST_TEXT = 256 * 2**20
"""Bytes of a file that is read into memory at once; the largest tokenizers have a tenth."""
SOON = 10
"""Seconds of waiting for a lock, after which a message says so."""
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WRITE_ERROR = re.compile(r"PytorchStreamWriter failed|iostream error|unexpected pos|os error (5|27|28|122)\b")
"""Messages of libraries in C++ and Rust that cannot write."""


class WriteError(OSError):
    """A file that could not be written, as when the disk is full."""

    def __init__(self, path: Path, reason: str):
        free = shutil.disk_usage(next(each for each in path.absolute().parents if each.exists())).free / 2**20
        super().__init__(f"{path}: a file could not be written, the disk has {free:.0f} MiB free{reason}")
        self.unwritten = reason


@contextmanager
def writing(path: Path, advice: Callable[[], str] = str) -> Iterator[None]:
    """Context in which an error of a full disk, of any library, is a `WriteError` with the path and `advice`."""
    try:
        yield
    except Exception as error:
        is_full = getattr(error, "errno", None) in NO_SPACE or WRITE_ERROR.search(str(error))
        if isinstance(error, InputError) or not (is_full or isinstance(error, WriteError)):
            raise
        reason = f" ({getattr(error, 'strerror', None) or error})"
        raise WriteError(path, getattr(error, "unwritten", reason) + advice()) from error


def expanded(path: str | Path) -> Path:
    """A path with the home directory for `~`; the path of an unknown user as it is."""
    return Path(os.path.expanduser(path))


def check_output_file(
    path: Path,
    *,
    overwrite: bool,
    inputs: Iterable[Path | str | None] = (),
    field: str = "output",
    suffix: str = "",
) -> None:
    """Raise `InputError` for an output file that cannot be written, would replace something else, or has not `suffix`.

    Its folder exists, is writable and has space. A file that exists is replaced only if `overwrite`, and if it is a
    regular file that is neither one of `inputs` nor in a folder of them.
    """
    exists, given = path.exists(), [Path(each) for each in inputs if each is not None]
    used = next((g for g in given if exists and g.exists() and (_contains(g, path) or path.samefile(g))), None)
    problems = {
        f"given, must end in {suffix}": not path.name.endswith(suffix),
        f"cannot be written: no folder {path.parent}": not path.parent.is_dir(),
        "is not a regular file": exists and not path.is_file(),
        f"is the input {used}, or a file of it; use another file": used,
        "exists; use --overwrite or another file": exists and not overwrite,
    }
    refuse_if({f"{field}: {path} {problem}": so for problem, so in problems.items()})
    check_space(path.parent, field=field)


def check_output_folder(
    folder: Path,
    *,
    overwrite: bool,
    holds: Sequence[str],
    inputs: Iterable[Path | str | None] = (),
    field: str = "output_dir",
    options: str = "--overwrite",
) -> None:
    """Raise `InputError` for an output folder that cannot be written or must not be emptied.

    A folder that is not empty is emptied only if `overwrite` and if it is an earlier output: it has one of the files
    `holds`, is not a link, and neither is nor contains an input, the working directory, the home directory or a run.
    With `RECORD` in `holds` it may itself be a run.

    Args:
        field: the setting that the message names.
        options: what the message offers to use instead of another folder.
    """
    gaps = [path.parent for path in (folder, *folder.parents) if path.name == ".." and not path.parent.is_dir()]
    ancestor = next((path for path in (folder, *folder.absolute().parents) if os.path.lexists(path)), None)
    if ancestor is None:  # on Windows
        raise InputError(f"{field}: {folder}: no such drive")
    problems = {
        " given, must be a name in UTF-8": str(folder).encode(errors="ignore").decode() != str(folder),  # for Rust
        **{f": no folder {gap}": True for gap in gaps},  # once that is created, `folder` may name a full folder
        f": {ancestor} is not a folder": not ancestor.is_dir(),
    }
    refuse_if({f"{field}: {folder}{problem}": so for problem, so in problems.items()})
    check_space(ancestor, field=field)
    if not folder.is_dir() or not content_of(folder):
        return
    kept = [("the working directory", Path.cwd()), ("the home directory", Path(os.path.expanduser("~")))]
    kept += [("the input", Path(given)) for given in inputs if given is not None]
    own = [folder / name for name in holds]
    problems = {
        f"exists and is not empty; use {options} or another folder": not overwrite,
        **{f"holds {what} {path}, which --overwrite would delete": _contains(folder, path) for what, path in kept},
        "is a link; to overwrite, name the folder that it points to": folder.is_symlink(),
        f"has no {' or '.join(holds)}: it is not an earlier output, and --overwrite would delete it; use another "
        "folder": not any(map(Path.is_file, own)),
    }
    refuse_if({f"{field}: {folder} {problem}": so for problem, so in problems.items()})
    for record in sorted(folder.rglob(RECORD)):
        if record not in own and not record.relative_to(folder).parts[0].startswith(REPLACED):
            raise InputError(f"{field}: {folder} holds the run {record.parent}, which --overwrite would delete")


def check_space(folder: Path, needed: int = RESERVE, *, field: str = "output_dir") -> None:
    """Raise `InputError` unless files of `needed` bytes can be written to a folder that exists."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"{field}: {folder} cannot be written to: {error.strerror}") from error
    free = shutil.disk_usage(folder).free
    if free < needed:
        sizes = f"has {free / 2**20:.0f} MiB free, must have {needed / 2**20:.0f}"
        raise InputError(f"{field}: the disk of {folder} {sizes}")


def _contains(folder: Path, path: Path) -> bool:
    return path.exists() and folder.resolve() in (path.resolve(), *path.resolve().parents)


def replace_file(new: Path, path: Path) -> None:
    """`os.replace`; on Windows, where a file that another program reads cannot be replaced, for a second."""
    for _ in range(10 * IS_WINDOWS):
        with suppress(PermissionError):
            return os.replace(new, path)
        time.sleep(0.1)
    os.replace(new, path)


def acquire_lock(path: Path, **options: Any) -> AcquireReturnProxy:
    """Acquire the lock of a file; the result is a context that releases it at the end.

    On a file system without locks, such as NFS without its lock service, a second file is the lock while it exists,
    also after its process was killed. Raises `Timeout`, which names the file.
    """
    try:
        return FileLock(path, fallback_to_soft=False, **options).acquire()
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        lock = SoftFileLock(f"{path}{SOFT}", **options)
        try:
            return lock.acquire(timeout=options.get("timeout", SOON))
        except Timeout:
            if "timeout" in options:
                raise
        logger.warning("waiting for %s: delete it if no process holds it any more", lock.lock_file)
        return lock.acquire()


@contextmanager
def emptied_folder(folder: Path, keep: str) -> Iterator[None]:
    """Context in which an existing folder is empty except for the lock file `keep`.

    The former content is deleted by `delete_replaced`, at the end of the context if not before. If an error ends the
    context before, it is put back in place of the new.
    """
    made = (tempfile.mkdtemp(suffix, REPLACED, folder) for suffix in ("", "~"))
    former, failed = (folder / Path(path).name for path in made)  # relative in a relative folder, unlike `made`
    emptied = False

    def content() -> list[Path]:
        kept = (former, failed, folder / keep, folder / f"{keep}{SOFT}")
        return [path for path in folder.iterdir() if path not in kept]

    try:
        for path in content():
            path.rename(former / path.name)
        emptied = True
        yield
    except BaseException:
        with signals_handled(signal.SIG_IGN):  # nor is a second Ctrl-C to leave the former content hidden
            if former.exists():
                for path in content() if emptied else ():
                    path.rename(failed / path.name)
                for path in former.iterdir():
                    path.rename(folder / path.name)
                former.rmdir()
                shutil.rmtree(failed, ignore_errors=True)  # on NFS, files that are open stay
        raise
    delete_replaced(folder)


def delete_replaced(folder: Path) -> None:
    """Delete the former content of a folder, also that which a killed process has left."""
    for former in folder.glob(f"{REPLACED}*"):
        # under another name, as a part of it must not be put back; files that are open stay on some disks
        shutil.rmtree(former.rename(f"{former}~"), ignore_errors=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Context with a temporary file next to `path`, which replaces `path` at the end, or is deleted after an error.

    The temporary file is new, so that no link is followed, and keeps the file mode of the user's umask.
    """
    temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.tmp")  # names have 255 bytes
    with writing(path):
        temporary.open("xb").close()
        mode = temporary.stat().st_mode
        try:
            yield temporary
            _set_mode(temporary, mode)
            replace_file(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Context with a new, empty folder, which replaces `folder` at the end, or is deleted after an error.

    A `folder` that is empty is filled instead: the working directory and mounts cannot be replaced. The files get the
    file mode of the user's umask. What a killed process left of an attempt is deleted at the end.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    is_empty = folder.is_dir() and not content_of(folder)
    place = folder if is_empty else folder.parent
    with (
        writing(folder),
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=place, ignore_cleanup_errors=True) as workplace,
        acquire_lock(Path(workplace, ATTEMPT)),
    ):
        new, old = Path(workplace, "new"), Path(workplace, "old")
        new.mkdir()
        yield new
        set_usual_mode(new)
        if is_empty:
            for path in new.iterdir():
                os.replace(path, folder / path.name)
        else:
            try:
                if folder.exists():
                    os.replace(folder, old)
                os.replace(new, folder)
            except BaseException:
                if old.exists() and not folder.exists():
                    os.replace(old, folder)
                raise
        for path in _attempts(place, folder.name):
            with suppress(Timeout, OSError), acquire_lock(path / ATTEMPT, timeout=0):  # no process holds it any more
                shutil.rmtree(path)


def _attempts(place: Path, name: str) -> list[Path]:
    """The folders in which processes write, or were killed while they wrote, the content of a folder `name`."""
    found = place.glob(f".{glob.escape(name)}.{'[a-z0-9_]' * 8}")  # as `tempfile` names them
    names = {"new", "old", ATTEMPT, f"{ATTEMPT}{SOFT}"}
    return [path for path in found if path.is_dir() and {p.name for p in path.iterdir()} <= names]


def content_of(folder: Path) -> list[Path]:
    """The content of a folder, apart from attempts to fill it."""
    attempts = _attempts(folder, folder.name)
    return [path for path in folder.iterdir() if path not in attempts]


def numbered_folders(folder: Path, name: str) -> list[Path]:
    """The folders `NAME-N` in a folder, in the order of N."""
    found = (path for path in folder.glob(f"{name}-*") if path.name.removeprefix(f"{name}-").isdecimal())
    return sorted(filter(Path.is_dir, found), key=number_of)


def number_of(folder: Path) -> int:
    """N of a folder `NAME-N`."""
    return int(folder.name.split("-")[-1])


def set_usual_mode(folder: Path, pattern: str = "*") -> None:
    """Give files in a new folder, at any depth, the mode of the umask; safetensors makes them private."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob(pattern):
        if path.is_file():
            _set_mode(path, mode)


def _set_mode(path: Path, mode: int) -> None:
    with suppress(OSError):  # SMB and object storage refuse it
        path.chmod(mode)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8; bytes of file names that are not UTF-8 are escaped as in JSON."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `InputError` for a file that is missing or holds anything else."""
    with input_errors(f"{path}: not JSON: ", ValueError, RecursionError):
        value = json.loads(read_text(path))
    if not isinstance(value, dict):
        raise InputError(f"{path}: must be a JSON object, not {type(value).__name__}")
    return value


def undamaged_entries(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file with one per line that a process may have left with a part of a line."""
    entries = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else ():
        with suppress(ValueError, RecursionError):
            entries.append(json.loads(line))
    return [entry for entry in entries if isinstance(entry, dict)]


def entries_until(update: float, path: Path) -> list[dict[str, Any]]:
    """The undamaged entries of a log up to an update (`step`)."""
    steps = ((entry, entry.get("step")) for entry in undamaged_entries(path))
    return [entry for entry, step in steps if isinstance(step, int) and step <= update]


def write_json_lines(path: Path, values: Iterable[Any]) -> None:
    """Write a file with one JSON value per line."""
    write_atomically(path, "".join(f"{json.dumps(value)}\n" for value in values))


def append_json_lines(path: Path, *values: Any) -> None:
    """Append one line per value to such a file, which need not exist."""
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(value)}\n" for value in values)


def read_text(path: Path) -> str:
    """Read a UTF-8 file. Raises `InputError` for a file that is missing, too large or cannot be read."""
    with readable(path):
        if (size := path.stat().st_size) > LARGEST_TEXT:
            raise InputError(f"{path}: has {size / 2**20:,.0f} MiB, must have at most {LARGEST_TEXT / 2**20:,.0f}")
        with input_errors(f"{path}: not a UTF-8 file: ", UnicodeDecodeError):
            return path.read_text(encoding="utf-8")


def read_page(path: Path) -> str:
    """A web page with the style that all pages of the package share in the place of a comment."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return path.read_text(encoding="utf-8").replace("/* page.css */\n", style)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Context that reads a file. Raises `InputError` for one that is missing or cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """The values in nested mappings and in lists of mappings by dotted name: `{"data.train[0].source": "a.en"}`."""
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        parts = {f"{name}[{number}]": entry for number, entry in enumerate(value)}
    elif isinstance(value, dict):
        parts = {f"{name}.{key}".lstrip("."): entry for key, entry in value.items()}
    else:
        return {name: value}
    return {inner: leaf for place, part in parts.items() for inner, leaf in leaves(part, place).items()}
