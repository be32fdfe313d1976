"""Names of models: folders of a model or of a run, or names on the Hub."""

import os
from pathlib import Path

from .errors import refuse_if
from .files import RECORD, numbered_folders
from .names import check_repository


def model_folder(name: str | Path) -> str | Path:
    """The model folder of a run folder; other names unchanged, with `~` expanded."""
    name = type(name)(os.path.expanduser(name))
    of_run = Path(name, "model")
    holds_run = (of_run / "config.json").is_file() and not Path(name, "config.json").exists()
    return of_run if holds_run and str(name) else name


def check_model_files(name: str | Path, where: str) -> None:
    """Raise `InputError` for a local folder without the files of a model, or a name that cannot be one on the Hub."""
    folder = Path(name)
    problems = {
        f"model: {str(name)!r} given, must be a folder or a name on the Hub": not str(name).strip(),
        f"{where}: must be a folder, not a file": folder.exists() and not folder.is_dir(),
    }
    refuse_if(problems)
    if not folder.is_dir():
        check_repository(str(name), where)
        return
    is_run = (folder / RECORD).exists()
    saved = [str(path) for path in numbered_folders(folder / "checkpoints" if is_run else folder, "checkpoint")]
    if is_run:
        problem = "a run that has not finished: continue it with train --resume"
        use = f", or use a checkpoint: {', '.join(saved)}" if saved else ""
    else:
        problem = "not a saved model: no config.json in it"
        use = f"; use {saved[-1]}, of {len(saved)} checkpoints" if saved else ""
    files = (folder / "tokenizer.json", folder / "tokenizer_config.json")
    problems = {
        f"{where}: {problem}{use}": not (folder / "config.json").exists(),
        f"{where}: no tokenizer (tokenizer.json) in it; save one with tokenizer.save_pretrained": not any(
            file.exists() for file in files
        ),
    }
    refuse_if(problems)
