# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A trained model to the Hugging Face Hub: checked first, then uploaded as one commit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from residual_hf.checkpoint import validate_model_folder
from residual_hf.errors import InputError

from .card_check import validate_card

CARD = "README.md"
PICTURE = re.compile(r"!\[[^\]]*\]\(([\w.-]+)\)")  # of Markdown, in the same folder
HTTPError = HfHubHTTPError.__mro__[1]  # of httpx, from huggingface_hub 2 on of httpx2
REASONS = {
    401: "the token is missing or not valid: run `hf auth login` or set HF_TOKEN",
    403: "the token may not write there",
    404: "there is no such repository, or the token may not see it",
}


@dataclass(frozen=True)
class Push:
    """What a push uploads: local files by their name in the repository. `url` and `commit` are None in a dry run."""

    repo_id: str
    files: dict[str, Path]
    left_out: list[str]
    url: str | None = None
    commit: str | None = None

    def __str__(self) -> str:
        sizes = {name: path.stat().st_size for name, path in self.files.items()}
        lines = [f"{size:>12,} {name}" for name, size in sizes.items()]
        lines.append(f"{sum(sizes.values()):>12,} bytes in {len(sizes)} files for {self.repo_id}")
        if self.left_out:
            lines.append(f"left out: {', '.join(self.left_out)}")
        if self.url is not None:
            lines.append(f"{self.url} (commit {self.commit})")
        return "\n".join(lines)


def push_run(
    folder: str | os.PathLike,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
    token: str | None = None,
    commit_message: str = "Upload model",
) -> Push:
    """Upload the model of a run, or of a saved model folder, to `repo_id` ("user/name") as one commit.

    Only what belongs to the model is uploaded: config, weights, tokenizer, model code and card, never a pickle. What
    is in the repository besides stays there. Everything is checked first, see `validate_model_folder`; a run without
    a card gets one. A dry run ends after the checks and needs no network.

    Args:
        folder: the output folder of `residual-hf train`, or a folder of `save_checkpoint`.
        private: make the repository private if it is new.
        revision: branch to commit to, made if it is not there; None is the main branch.
        token: instead of the one that `hf auth login` or HF_TOKEN set.

    Raises:
        InputError: a folder that would not load elsewhere, a card without metadata, a name or a token that the Hub
            refuses, a repository that is public although `private` is asked for, a Hub that cannot be reached.
    """
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"repo_id: {error}") from error
    model = find_model(folder)
    names = validate_model_folder(model)
    files = card_files(find_card(Path(folder), model, repo_id)) | {name: model / name for name in names}
    left_out = sorted(path.name for path in model.iterdir() if path.name not in files)
    if dry_run:
        return Push(repo_id, files, left_out)

    api = HfApi(token=token)
    with _clear_errors(repo_id, api.endpoint):
        repository = api.create_repo(repo_id, private=private or None, exist_ok=True)
        repo_id = repository.repo_id
        if private and not api.model_info(repo_id).private:
            raise InputError(f"{repo_id}: it exists and is public; make it private in its settings on the Hub first")
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        operations = [CommitOperationAdd(name, path) for name, path in files.items()]
        commit = api.create_commit(repo_id, operations, commit_message=commit_message, revision=revision)
    url = str(repository) if revision is None else f"{repository}/tree/{revision}"
    return Push(repo_id, files, left_out, url, commit.oid)


def find_model(folder: str | os.PathLike) -> Path:
    """The folder of the model: the folder itself, or `model/` in that of a run."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder")
    for model in (folder, folder / "model"):
        if (model / "config.json").is_file():
            return model
    raise InputError(f"{folder}: neither a saved model (no config.json) nor a finished run (no model/config.json)")


def find_card(folder: Path, model: Path, repo_id: str) -> Path:
    """The card of a model, beside its weights or in the folder of its run; a run without one gets it here."""
    for place in (model, folder):
        if (place / CARD).is_file():
            return place / CARD
    if folder == model:
        raise InputError(f"{folder}: no card ({CARD}) in it; give the folder of the run, which holds its figures")
    from .card import write_card

    return write_card(folder, model_name=repo_id)


def card_files(card: Path) -> dict[str, Path]:
    """The card, its metadata checked, and the pictures beside it that it shows."""
    validate_card(card)
    pictures = {name: card.parent / name for name in PICTURE.findall(card.read_text("utf-8"))}
    for name, path in pictures.items():
        if not path.is_file():
            raise InputError(f"{card}: it shows {name}, which is not beside it")
    return {CARD: card, **pictures}


@contextmanager
def _clear_errors(repo_id: str, endpoint: str) -> Iterator[None]:
    """What the Hub answers, in one sentence."""
    try:
        yield
    except InputError:
        raise
    except OfflineModeIsEnabled as error:
        raise InputError(f"{repo_id}: the Hub is not asked while HF_HUB_OFFLINE is set") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise InputError(f"{repo_id}: {REASONS.get(status, str(error))} ({endpoint} answers {status})") from error
    except HTTPError as error:
        raise InputError(f"{repo_id}: {endpoint} cannot be reached: {error}") from error
    except (RuntimeError, ValueError) as error:  # a file that the Hub did not take; there is no commit then
        raise InputError(f"{repo_id}: nothing is committed: {error} {error.__cause__ or ''}".rstrip()) from error
