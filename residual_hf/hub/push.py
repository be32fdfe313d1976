"""Upload a trained model to the Hugging Face Hub as one commit, after all checks."""

import ast
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from residual_hf._version import __version__
from residual_hf.base.errors import InputError, input_errors
from residual_hf.base.files import read_json, read_text, write_atomically
from residual_hf.checkpoint import saved_class, validate_model_folder
from residual_hf.checkpoint_checks import DifferentCodeError
from residual_hf.model.checksums import CHECKSUMS, write_checksums
from residual_hf.model.self_contained import CONFIG_CLASS, import_saved_modes
from residual_hf.records.markdown import literal
from residual_hf.records.secrets import first_secret

from .card import write_card

CARD = "README.md"
MODEL_CODE = Path(__file__).parents[1] / "model"
PICTURE = re.compile(r"!\[[^\[\]]*\]\(([\w.-]+)\)")  # in Markdown, of a file in the same folder
PICTURE_NAME = re.compile(r"(?<![\w.-])\w[\w.-]*\.(png|jpe?g|gif|svg|webp)", re.IGNORECASE)
DOWNLOAD = """## How to use

This is the branch `{revision}`. residual_hf loads it from a folder:

```bash
hf download {repo_id} --revision {revision} --local-dir {revision}
```
"""
TOKENS = 32  # of the input on which two versions of the model code are compared
REASONS = {
    401: "the token is missing or not valid: run `hf auth login` or set HF_TOKEN",
    403: "the token has no write access",
    404: "the repository does not exist, or the token has no access to it",
}


@dataclass(frozen=True)
class Push:
    """The local files of a push by their names in the repository. `url` and `commit` are None in a dry run."""

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
            lines.append(f"not uploaded: {', '.join(self.left_out)}")
        if self.url is None:
            lines.append("dry run: the Hub was not asked about the token, the repository and the card's metadata")
        else:
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
    trust_remote_code: bool = False,
) -> Push:
    """Upload the model of a run, or a model folder, to `repo_id` ("user/name") as one commit.

    Only the config, weights, tokenizer, model code and card are uploaded, never a pickle. Other files of the
    repository are kept. A run without a card gets one, and a folder with the model code of another version the
    installed code. In the uploaded card, the code that loads the model names `repo_id` instead of the local folder.

    Args:
        folder: the output folder of `residual-hf train`, or a folder of `save_checkpoint`.
        private: make a new repository private.
        revision: branch to commit to, created if it does not exist; None is the main branch.
        dry_run: check the folder, write its card and code, and return, without a network.
        token: instead of the one that `hf auth login` or HF_TOKEN set.
        trust_remote_code: run model code in the folder: modes that are not registered, and code that differs from
            the installed code in more than comments, to check that both compute the same.

    Raises:
        InputError: a model folder that would not load elsewhere (see `validate_model_folder`); a file with an access
            token, key or password; model code that computes something else than the installed code or must not be
            run; a name, a token or metadata of the card that the Hub refuses; an existing public repository for
            `private`; no connection.
    """
    with input_errors("repo_id: ", HFValidationError):
        validate_repo_id(repo_id)
    model = _find_model(Path(folder))
    if trust_remote_code:
        with input_errors(f"{model}: ", ValueError):
            import_saved_modes(model)
    try:
        names = validate_model_folder(model)
    except DifferentCodeError as different:
        if not _is_same_program(model, different.code):
            if not trust_remote_code:
                raise
            _check_same_results(model)
        if is_recorded := (model / CHECKSUMS).exists():
            write_checksums(model, (), forget=different.code)  # so that none is wrong if this is interrupted
        for name, text in different.code.items():
            write_atomically(model / name, text)
        if is_recorded:
            write_checksums(model, different.code)
        names = validate_model_folder(model)
    readme = _find_card(Path(folder), model, repo_id)
    card = _read_card(readme)
    pictures = {name: readme.parent / name for name in PICTURE.findall(card.text)}
    for name, path in pictures.items():
        if not PICTURE_NAME.fullmatch(name):
            raise InputError(f"{readme}: {name} is shown as a picture, but does not have the name of one")
        if not path.is_file():
            raise InputError(f"{readme}: no such picture: {name}")
    files = {CARD: readme, **pictures, **{name: model / name for name in names}}
    for name, path in files.items():
        if path.resolve().parent != path.parent.resolve():
            raise InputError(f"{path}: a link to {path.resolve()}, outside of the folder; copy the file")
        installed = MODEL_CODE / name
        is_installed = installed.is_file() and installed.read_bytes() == path.read_bytes()
        if not is_installed and (found := first_secret(path)):
            place, kind = found
            raise InputError(f"{path}: {place}: looks like a secret ({kind}); remove it, and revoke it if it was one")
    left_out = sorted(path.name for path in model.iterdir() if path.name not in files)
    if dry_run:
        return Push(repo_id, files, left_out)

    api = HfApi(token=token)
    with _clear_errors(repo_id, api.endpoint):
        repository = api.create_repo(repo_id, private=private or None, exist_ok=True)
        repo_id = repository.repo_id
        if private and not api.model_info(repo_id).private:
            raise InputError(f"{repo_id}: exists and is public; make it private in its settings on the Hub first")
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        operations: list[Any] = [CommitOperationAdd(name, path) for name, path in files.items() if name != CARD]
        operations.append(CommitOperationAdd(CARD, loading_from(repo_id, readme, revision).encode()))
        if api.file_exists(repo_id, CHECKSUMS, revision=revision):  # of an earlier version
            operations.append(CommitOperationDelete(CHECKSUMS))
        commit = api.create_commit(repo_id, operations, commit_message="Upload model", revision=revision)
    url = str(repository) if revision is None else f"{repository}/tree/{revision}"
    return Push(repo_id, files, left_out, url, commit.oid)


def _find_model(folder: Path) -> Path:
    for model in (folder, folder / "model"):
        if (model / "config.json").is_file():
            return model
    raise InputError(f"{folder}: neither a saved model (no config.json) nor a finished run (no model/config.json)")


def _is_same_program(folder: Path, code: dict[str, str]) -> bool:
    """Whether the files of a folder differ from `code` in comments and layout only."""
    try:
        return all(ast.dump(ast.parse(read_text(folder / name))) == ast.dump(ast.parse(code[name])) for name in code)
    except (InputError, SyntaxError, ValueError, RecursionError):
        return False


@torch.no_grad()
def _check_same_results(folder: Path) -> None:
    """Run the model code in a folder, and raise `InputError` unless its logits are those of the installed code."""
    ours, _ = saved_class(read_json(folder / "config.json"))
    reference = f"{ours.__module__.rpartition('.')[2]}.{ours.__name__}"
    logits = []
    prefix = f"{folder}: the model code in it does not give the results of the installed residual_hf {__version__}: "
    with input_errors(prefix, Exception):  # of any code
        classes: list[Any] = [ours, _class_in(folder, reference)]
        for cls in classes:
            model = cls.from_pretrained(folder).eval()
            config = model.config
            tokens = torch.arange(TOKENS).view(2, -1) % min(config.vocab_size, config.decoder_vocab_size)
            inputs = {"decoder_input_ids": tokens} if config.is_encoder_decoder else {}
            if config.reads_speech:
                frames = torch.linspace(-2, 2, 2 * TOKENS * config.num_mel_bins).sin()
                inputs["input_features"] = frames.view(2, -1, config.num_mel_bins)
            else:
                inputs["input_ids"] = tokens
            logits.append(model(**inputs).logits)
        torch.testing.assert_close(*logits)


def _class_in(folder: Path, reference: str) -> Any:
    """A class of the code in a folder, under a name of its own, by which older Transformers keep code."""
    code = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, f"code_{hashlib.sha256(repr(code).encode()).hexdigest()}")
        copy.mkdir()
        for name, content in code.items():
            (copy / name).write_bytes(content)
        get_class_from_dynamic_module(CONFIG_CLASS, str(copy))  # names the other files for Transformers 5.4
        return get_class_from_dynamic_module(reference, str(copy))


def _find_card(folder: Path, model: Path, repo_id: str) -> Path:
    """The card in the model folder or in the folder of its run, written here for a run without one."""
    for place in (model, folder):
        if (place / CARD).is_file():
            return place / CARD
    if folder == model:
        raise InputError(f"{folder}: no card ({CARD}) in it; push the run folder, from which the card is generated")
    return write_card(folder, model_name=repo_id)


def loading_from(repo_id: str, readme: Path, revision: str | None = None) -> str:
    """A card whose code loads the model from the Hub, or a branch, not by the name in its metadata, a folder's."""
    card = readme.read_text(encoding="utf-8")
    name = ModelCard(card).data.get("model_name")
    if not name:
        return card
    revision = None if revision == "main" else revision
    place, branch = revision or repo_id, f", revision={literal(revision)}" if revision else ""

    def load(match: re.Match[str]) -> str:
        own = literal(place) if match[1] else literal(repo_id) + branch  # residual_hf takes no revision
        return f"{match[1] or ''}{match[2]}{own}"

    card = re.sub(rf"(Translator\.)?(from_pretrained\(|model=){re.escape(literal(name))}", load, card)
    for verb in ("evaluate", "transcribe"):
        card = card.replace(f"residual-hf {verb} {name}", f"residual-hf {verb} {place}")
    if not revision:  # so that a card which comes back from the Hub can be pushed under another name
        card = re.sub(r"^model_name: .*$", f"model_name: {repo_id}", card, count=1, flags=re.MULTILINE)
    else:
        card = card.replace("## How to use\n", f"{DOWNLOAD.format(repo_id=repo_id, revision=revision)}\n", 1)
    return card


def _read_card(path: Path) -> ModelCard:
    """A card with metadata, as far as they can be checked without the Hub."""
    with input_errors(f"{path}: the metadata cannot be read: ", yaml.YAMLError, ValueError):
        card = ModelCard.load(path)
    if not card.data.to_dict():
        raise InputError(f"{path}: no metadata: the card must begin with a block of YAML between lines of ---")
    return card


@contextmanager
def _clear_errors(repo_id: str, endpoint: str) -> Iterator[None]:
    """Errors of the Hub as `InputError` of one sentence."""
    try:
        yield
    except InputError:
        raise
    except OfflineModeIsEnabled as error:
        raise InputError(f"{repo_id}: HF_HUB_OFFLINE is set, unset it to push") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise InputError(f"{repo_id}: {REASONS.get(status, str(error))} ({endpoint} answers {status})") from error
    except HTTPError as error:
        raise InputError(f"{repo_id}: {endpoint} cannot be reached: {error}") from error
    except (RuntimeError, ValueError) as error:  # a file or metadata that the Hub does not accept
        reasons = dict.fromkeys(" ".join(str(e).split()) for e in (error, error.__cause__) if e)
        raise InputError(f"{repo_id}: nothing was committed: {': '.join(reasons)}") from error
