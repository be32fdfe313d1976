# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Recordings and their texts in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from residual_hf.base.errors import InputError, for_all

from .pair_rows import Pair
from .text_files import iter_lines

AUDIO_FILES = (".flac", ".wav", ".ogg", ".mp3")


def folder_pairs(folder: Path) -> Iterator[Pair]:
    """Path from the folder and text of each recording: of LibriSpeech's `*.trans.txt`, or of `x.txt` beside `x.wav`.

    Raises `InputError` naming recordings that have not one text, and texts that have not one recording.
    """
    files: dict[Path, list[Path]] = {}
    texts: dict[Path, list[str]] = {}
    for path in sorted(folder.rglob("[!.]*")):
        if path.suffix.lower() in AUDIO_FILES:
            files.setdefault(path.with_suffix(""), []).append(path)
        elif path.suffix == ".txt":
            for stem, text in _texts(path):
                texts.setdefault(stem, []).append(text)

    def pair(stem: Path) -> Pair:
        found, said = files.get(stem, []), texts.get(stem, [])
        if not found:
            raise InputError(f"{stem}: has a text, but no audio file ({', '.join(AUDIO_FILES)})")
        if not said:
            raise InputError(f"{found[0]}: has no text, neither in {stem.name}.txt nor in a *.trans.txt")
        if len(found) + len(said) > 2:
            raise InputError(f"{stem}: has {len(found)} audio files and {len(said)} texts, must have one of each")
        return str(found[0].relative_to(folder)), said[0]

    return iter(for_all(pair, dict.fromkeys([*files, *texts])))


def _texts(path: Path) -> Iterator[tuple[Path, str]]:
    lines = iter_lines(path)
    if path.name.endswith(".trans.txt"):
        yield from ((path.parent / name, text) for name, _, text in (line.partition(" ") for line in lines))
    else:
        yield path.with_suffix(""), " ".join(lines)
