# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A finished model as one folder that carries everything: what one uploads, or hands to a colleague."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from residual_hf.errors import InputError

from .validation import refuse_larger


def save_checkpoint(
    model: Any,
    tokenizer: Any,
    folder: str | os.PathLike,
    *,
    languages: Sequence[tuple[str, str]] | None = None,
    overwrite: bool = False,
) -> Path:
    """Save weights (safetensors), config, generation config, tokenizer, model code and pipeline as one folder.

    With `residual_hf` imported it loads as it is; elsewhere with `trust_remote_code=True`. The folder appears complete
    or not at all.

    Args:
        languages: pairs (source, target) for which `pipeline("translation_xx_to_yy")` shall work without
            `residual_hf`; None is the pair of the config. `pipeline("translation")` always works.
        overwrite: replace a folder that is there, all of it.

    Raises:
        InputError: another model, a tokenizer with more tokens than the model has, a folder with files in it.
    """
    folder = Path(folder)
    _check(model, tokenizer, folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as workplace:
        made = Path(workplace) / "new"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        if languages is not None:
            model.config.write_code(made, languages)
        old = Path(workplace) / "old"
        if folder.exists():
            os.replace(folder, old)
        try:
            os.replace(made, folder)
        except OSError:
            if old.exists():
                os.replace(old, folder)
            raise
    return folder


def _check(model: Any, tokenizer: Any, folder: Path, overwrite: bool) -> None:
    if type(model).__name__ != "ResidualForConditionalGeneration":  # here, or loaded with the code of a folder
        raise InputError(
            f"model: a {type(model).__name__} given, allowed is a ResidualForConditionalGeneration; an adapter must "
            "be merged first (merge_and_unload)"
        )
    source_rows, target_rows = (rows.weight.shape[0] for rows in (model.get_input_embeddings(), model.lm_head))
    refuse_larger(tokenizer, source_rows, target_rows, "tokenizer")
    if folder.is_file():
        raise InputError(f"folder: {folder} is a file")
    if not overwrite and folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"folder: {folder} is not empty; name another, or pass overwrite=True to replace it")
