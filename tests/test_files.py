# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import os
import stat

import pytest

from residual_hf import files
from residual_hf.errors import InputError
from residual_hf.files import atomic_file, atomic_folder, read_json, read_json_lines, write_atomically, write_json


@pytest.fixture
def umask():
    previous = os.umask(0o027)
    yield
    os.umask(previous)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_get_the_mode_of_the_umask(tmp_path, umask):
    write_atomically(tmp_path / "text", "one")
    with atomic_file(tmp_path / "array") as temporary:
        temporary.write_bytes(b"")
        temporary.chmod(0o600)  # as safetensors does
    with atomic_folder(tmp_path / "folder") as new:
        (new / "weights").touch(mode=0o600)
    assert [mode(tmp_path / name) for name in ("text", "array", "folder/weights")] == [0o640] * 3
    assert mode(tmp_path / "folder") == 0o750


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "link").read_text() == "new" and not (tmp_path / "link").is_symlink()


def test_a_link_in_place_of_the_temporary_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "guessed")
    (tmp_path / ".guessed.tmp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "text", "new")
    assert not (tmp_path / "elsewhere").exists() and not (tmp_path / "text").exists()


def test_an_error_leaves_the_old_file_and_folder(tmp_path):
    write_atomically(tmp_path / "text", "old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("mine")
    for context, name in ((atomic_file, "text"), (atomic_folder, "folder")):
        with pytest.raises(RuntimeError), context(tmp_path / name):
            raise RuntimeError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "text"]
    assert (tmp_path / "text").read_text() == "old" and (tmp_path / "folder" / "notes").read_text() == "mine"


def test_json(tmp_path):
    write_json(tmp_path / "a.json", {"ä": [1]})
    assert read_json(tmp_path / "a.json") == {"ä": [1]}
    for name, content, message in (
        ("missing", None, "missing: no such file"),
        ("list", b"[]", "list: must be a JSON object, not list"),
        ("cut", b'{"a": ', "cut: not JSON"),
        ("latin", b'{"a": "\xe9"}', "latin: not a UTF-8 file"),
        ("deep", b"[" * 100000, "deep: not JSON"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_json(tmp_path / name)


def test_json_lines_are_named_by_number(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"step": 1}\n\n{"step": 2}\n')
    assert read_json_lines(tmp_path / "a.jsonl") == [{"step": 1}, {"step": 2}]
    (tmp_path / "a.jsonl").write_text('{"step": 1}\n{"st')
    with pytest.raises(InputError, match="a.jsonl: line 2: not JSON"):
        read_json_lines(tmp_path / "a.jsonl")
