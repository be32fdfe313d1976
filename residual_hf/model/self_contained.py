# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Folders that load where this package is not installed: the model code beside the weights, named in `config.json`.

Transformers finds the classes through `auto_map` and the pipeline through `custom_pipelines`, both with
`trust_remote_code=True`. With the package installed and imported its own classes are used, without that flag.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files, get_relative_imports
from transformers.utils import logging

logger = logging.get_logger(__name__)

NAMES_OF_OTHER_FILES = "From a local folder, Transformers 5.4 takes only files that it finds named in this one:"


def write_model_code(
    folder: str | os.PathLike,
    classes: dict[str, type],
    pipeline_class: type,
    modes: Iterable[type],
    languages: Iterable[tuple[str | None, str | None]] = (),
) -> None:
    """Put the code of the model into a folder with a `config.json`, and its names into that file.

    Args:
        classes: the class for each Auto class; the file of `classes["AutoConfig"]` leads to all others.
        modes: classes of the ln_modes in use. One that is defined elsewhere, in one file that imports nothing of ours
            but names of the model, travels with the folder; for any other there is a warning.
        languages: pairs for which `pipeline("translation_xx_to_yy")` shall work, besides `pipeline("translation")`;
            the pipeline needs a key for each. With more than one key the task must always be named.
    """
    folder = Path(folder)
    entry = Path(inspect.getfile(classes["AutoConfig"]))
    files = {path.name: path.read_text("utf-8") for path in (entry, *map(Path, get_relative_import_files(entry)))}
    hidden = {Path(name).stem for name in files} - {entry.stem, *get_relative_imports(entry)}
    if hidden:
        named = "".join(f"from .{stem} import\n" for stem in sorted(hidden))
        files[entry.name] += f'\n"""{NAMES_OF_OTHER_FILES}\n{named}"""\n'
    for mode in modes:
        if mode.__module__.rpartition(".")[0] != __name__.rpartition(".")[0]:
            _add_mode(files, entry.name, mode)
    for name, text in files.items():
        _write(folder / name, text)

    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["auto_map"] = {auto: _reference(found) for auto, found in classes.items()}
    pipeline = {"impl": _reference(pipeline_class), "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
    tasks = [
        "translation",
        *(f"translation_{source}_to_{target}" for source, target in languages if source and target),
    ]
    config["custom_pipelines"] = dict.fromkeys(tasks, pipeline)
    _write(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


def _reference(found: type) -> str:
    return f"{found.__module__.rpartition('.')[2]}.{found.__name__}"


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, "utf-8")
    os.replace(unfinished, path)


def _add_mode(files: dict[str, str], entry: str, mode: type) -> None:
    """Add the file of a user's mode, imported by the file of the configuration."""
    try:
        if mode.__module__ == "__main__":
            raise ValueError("it stands in the script that runs, not in a file of its own")
        path = Path(inspect.getfile(mode))
        if path.name in files:
            raise ValueError(f"a file of the model is called {path.name} too")
        text = _with_relative_imports(path.read_text("utf-8"))
    except (OSError, TypeError, ValueError, SyntaxError) as error:
        logger.warning(
            f"The code of ln_mode {mode.name!r} ({mode.__module__}.{mode.__qualname__}) is not saved with the model: "
            f"{error}. To load the folder, import it first."
        )
        return
    files[path.name] = text
    files[entry] += f"\nfrom .{path.stem} import {mode.__name__}  # noqa: E402, F401, I001 (registers an ln_mode)\n"


def _with_relative_imports(text: str) -> str:
    """The source of a module with its imports of this package turned to files of one folder.

    Raises `ValueError` for an import of ours that cannot be: a whole module, or a name from outside the model.
    """
    home = __name__.rpartition(".")[0]
    package = home.partition(".")[0]
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == package for alias in node.names):
            raise ValueError(
                f"line {node.lineno} imports a module of {package}: write `from {package} import <names>`"
            )
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            raise ValueError(f"line {node.lineno} imports another file of its folder")
        if node.module.partition(".")[0] == package:
            indent = lines[node.lineno - 1][: node.col_offset]
            imports = [_import_of(node.module, alias, home) for alias in node.names]
            lines[node.lineno - 1 : node.end_lineno] = [
                "\n".join(indent + line for line in imports),
                *[""] * (node.end_lineno - node.lineno),
            ]
    return "\n".join(lines) + "\n"


def _import_of(module: str, alias: ast.alias, home: str) -> str:
    if module.rpartition(".")[0] != home:  # a name that the package offers: where does it come from?
        module = getattr(getattr(sys.modules[module], alias.name), "__module__", module)
    if module.rpartition(".")[0] != home:
        raise ValueError(f"it imports {alias.name}, which is not part of the model code")
    renamed = f" as {alias.asname}" if alias.asname else ""
    return f"from .{module.rpartition('.')[2]} import {alias.name}{renamed}"


__all__ = ["write_model_code"]
