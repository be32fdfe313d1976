"""Names that users mistype: of files, folders and repositories on the Hub."""

import difflib
import os
from pathlib import Path

from .errors import InputError, input_errors
from .files import expanded

NETWORK_TIMEOUT = 10  # seconds


def similar_path(path: Path) -> str:
    """Advice for a path that does not exist, for the end of a message; empty if its folder has nothing similar."""
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(close[0])}?" if close else ""


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
        get_session().head(constants.ENDPOINT, timeout=NETWORK_TIMEOUT)
