"""Names that users give: of files, of folders of models or runs, and of repositories on the Hub."""

import difflib
import os
import shlex
import subprocess
from pathlib import Path

from .errors import InputError, input_errors
from .files import IS_WINDOWS, RECORD, expanded, numbered_folders


def similar_path(path: Path) -> str:
    """Advice for a path that does not exist, for the end of a message; empty if its folder has nothing similar."""
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


def as_typed(*words: str) -> str:
    """The words of a command as a user types them."""
    return subprocess.list2cmdline(words) if IS_WINDOWS else shlex.join(words)


def check_repository(name: str, where: str, kind: str = "model") -> None:
    """Raise `InputError` for a name of no file or folder here, and which cannot be looked up on the Hub.

    Libraries try for half a minute to connect. A repository in the cache passes; so does one that does not exist,
    which is their error at once. The message begins with `where`; `kind` is that of repositories, model or dataset.
    """
    path = expanded(name)
    if path.exists():
        return
    from huggingface_hub import constants, file_download  # half a second, which local files need not wait for
    from huggingface_hub.utils import HFValidationError, get_session, validate_repo_id

    missing = f"{where}: no such folder{similar_path(path)}"
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise InputError(missing) from None
    cached = Path(constants.HF_HUB_CACHE, file_download.repo_folder_name(repo_id=name, repo_type=kind))
    if constants.HF_HUB_OFFLINE or cached.is_dir():
        return
    with input_errors(f"{missing}; the Hub cannot be reached: ", Exception):
        get_session().head(constants.ENDPOINT, timeout=10)


def model_folder(name: str | Path) -> str | Path:
    """The model folder of a run folder; other names unchanged, with `~` expanded."""
    name = type(name)(os.path.expanduser(name))
    of_run = Path(name, "model")
    holds_run = (of_run / "config.json").is_file() and not Path(name, "config.json").exists()
    return of_run if holds_run and str(name) else name


def check_model_files(name: str | Path, where: str) -> None:
    """Raise `InputError` for a local folder without the files of a model, or a name that cannot be one on the Hub."""
    if not str(name).strip():
        raise InputError(f"model: {str(name)!r} given, must be a folder or a name on the Hub")
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists():
            raise InputError(f"{where}: must be a folder, not a file")
        check_repository(str(name), where)
        return
    if not (folder / "config.json").exists():
        is_run = (folder / RECORD).exists()
        saved = [str(path) for path in numbered_folders(folder / "checkpoints" if is_run else folder, "checkpoint")]
        if is_run:
            use = f", or use a checkpoint: {', '.join(saved)}" if saved else ""
            raise InputError(f"{where}: a run that has not finished: continue it with train --resume{use}")
        use = f"; use {saved[-1]}, of {len(saved)} checkpoints" if saved else ""
        raise InputError(f"{where}: not a saved model: no config.json in it{use}")
    if not (folder / "tokenizer.json").exists() and not (folder / "tokenizer_config.json").exists():
        raise InputError(f"{where}: no tokenizer (tokenizer.json) in it; save one with tokenizer.save_pretrained")
