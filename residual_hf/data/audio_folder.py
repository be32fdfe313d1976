# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Recordings and their texts in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from residual_hf.base.errors import InputError

from .pair_rows import Pair
from .text_files import iter_lines

AUDIO_FILES = (".flac", ".wav", ".ogg", ".mp3")


def folder_pairs(folder: Path) -> Iterator[Pair]:
    """Path from the folder and text of each recording: of LibriSpeech's `*.trans.txt`, or of `x.txt` beside `x.wav`.

    Raises `InputError` for a recording without a text, and a text without a recording.
    """
    files = {path.with_suffix(""): path for path in sorted(folder.rglob("*")) if path.suffix.lower() in AUDIO_FILES}
    texts = dict(_texts(folder))
    for stem, path in files.items():
        if stem not in texts:
            raise InputError(f"{path}: has no text, neither in {stem.name}.txt nor in a *.trans.txt")
        yield str(path.relative_to(folder)), texts.pop(stem)
    if texts:
        raise InputError(f"{next(iter(texts))}: has a text, but no audio file ({', '.join(AUDIO_FILES)})")


def _texts(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*.txt")):
        lines = iter_lines(path)
        if path.name.endswith(".trans.txt"):
            yield from ((path.parent / name, text) for name, _, text in (line.partition(" ") for line in lines))
        else:
            yield path.with_suffix(""), " ".join(lines)
