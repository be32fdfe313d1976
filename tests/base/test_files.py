import errno
import math
import os
import shutil
import signal
import stat
import tempfile
from pathlib import Path

import pytest

from residual_hf.base import files
from residual_hf.base.errors import InputError
from residual_hf.base.files import (
    WriteError,
    append_json_lines,
    atomic_file,
    atomic_folder,
    check_output_file,
    check_output_folder,
    delete_replaced,
    emptied_folder,
    entries_until,
    read_json,
    write_atomically,
    write_json,
)


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


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_modes_is_written_to(number, tmp_path, monkeypatch):
    def chmod(path, mode, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.chmod", chmod)
    write_atomically(tmp_path / "text", "one")
    with atomic_folder(tmp_path / "folder") as new:
        (new / "weights").touch(mode=0o600)
    assert (tmp_path / "text").read_text() == "one" and (tmp_path / "folder" / "weights").exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EFBIG, "File too large", "part"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
        Exception("No space left on device (os error 28)"),  # as tokenizers does
    ],
)
def test_a_full_disk_is_named_by_the_file_or_folder_that_was_to_be_written(tmp_path, error):
    def names(path):
        return pytest.raises(WriteError, match=rf"^{path}: a file could not be written, the disk has \d+ MiB free \(")

    with names(tmp_path / "text"), atomic_file(tmp_path / "text"):
        raise error
    with names(tmp_path / "deep" / "folder"), atomic_folder(tmp_path / "deep" / "folder") as new:
        write_atomically(new / "first", "one")
        with atomic_file(new / "second"):
            raise error
    assert [path.name for path in tmp_path.rglob("*")] == ["deep"]
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "text"):
        (tmp_path / "input").read_text()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is full")
def test_a_full_disk_is_named_by_the_file_that_grows():
    with pytest.raises(WriteError, match=r"^/dev/full: a file could not be written, .* \(No space left on device\)$"):
        append_json_lines(Path("/dev/full"), {"step": 1})


def test_an_empty_folder_is_filled_because_mounts_cannot_be_replaced(tmp_path, monkeypatch):
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    with pytest.raises(RuntimeError), atomic_folder(Path()):
        raise RuntimeError
    assert not any(place.iterdir())
    inode = place.stat().st_ino
    with atomic_folder(Path()) as new:
        (new / "weights").touch()
        (new / "code").mkdir()
    assert sorted(path.name for path in place.iterdir()) == ["code", "weights"] and place.stat().st_ino == inode


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "link").read_text() == "new" and not (tmp_path / "link").is_symlink()


def test_a_link_in_place_of_the_temporary_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "guessed")
    (tmp_path / ".text.guessed.tmp").symlink_to(tmp_path / "elsewhere")
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


def test_ctrl_c_while_a_folder_is_replaced_leaves_the_old_one(output, monkeypatch):
    def interrupted(self, target):
        if self.name == "run.json":
            raise KeyboardInterrupt
        os.rename(self, target)

    content = sorted(output.rglob("*"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", interrupted)
        with emptied_folder(output, keep="lock"):
            pass
    assert sorted(output.rglob("*")) == content

    def replace_once(source, target):
        os.rename(source, target)
        if Path(target).name == "old":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files.os, "replace", replace_once)
        with atomic_folder(output):
            pass
    assert sorted(output.rglob("*")) == content


def test_json(tmp_path):
    for value in ({"ä": [1]}, {"name of a file": os.fsdecode(b"caf\xe9")}):
        write_json(tmp_path / "a.json", value)
        assert read_json(tmp_path / "a.json") == value
    for name, content, message in (
        ("missing", None, "no such file: .*missing"),
        ("list", b"[]", "list: must be a JSON object, not list"),
        ("cut", b'{"a": ', "cut: not JSON"),
        ("latin", b'{"a": "\xe9"}', "latin: not a UTF-8 file"),
        ("deep", b"[" * 100000, "deep: not JSON"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_json(tmp_path / name)


def test_entries_of_a_log_until_an_update_without_damaged_ones(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [b'{"step": 5, "loss": 2.0}', b"\0\0\x93", b'{"step": null}', b"[]", b'{"step": 7}', b"[" * 10**5, b'{"st']
    path.write_bytes(b"\n".join(lines))
    assert entries_until(6, path) == [{"step": 5, "loss": 2.0}]
    assert [entry["step"] for entry in entries_until(math.inf, path)] == [5, 7]
    assert entries_until(6, tmp_path / "missing") == []


@pytest.fixture
def output(tmp_path):
    """An earlier output with a file in a folder."""
    folder = tmp_path / "output"
    (folder / "deep").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "deep" / "text").write_text("mine")
    return folder


def refused(folder, message, **options):
    with pytest.raises(InputError, match=message):
        check_output_folder(folder, overwrite=True, holds=["run.json"], **options)


def test_only_an_earlier_output_is_overwritten(output, tmp_path, monkeypatch):
    check_output_folder(output, overwrite=True, holds=["run.json"])
    refused(output, "output holds the input .*text, which --overwrite would", inputs=[output / "deep" / "text"])
    refused(output, "holds the input", inputs=[output])
    (tmp_path / "link").symlink_to(output)
    refused(tmp_path / "link", "link is a link; to overwrite, name the folder")
    refused(tmp_path / "link", "holds the input", inputs=[output / "deep"])
    refused(output / "deep", r"deep has no run\.json: it is not an earlier output")
    refused(output / "run.json", r"run\.json is not a folder")
    refused(output / "run.json" / "deeper", r"run\.json is not a folder")
    refused(tmp_path / os.fsdecode(b"caf\xe9"), "given, must be a name in UTF-8")
    monkeypatch.setenv("HOME", str(output / "deep"))
    refused(output, "holds the home directory")
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    monkeypatch.chdir(output / "deep")
    refused(output, "holds the working directory")
    monkeypatch.chdir(output)
    refused(Path("."), "holds the working directory")
    refused(Path(".."), "holds the working directory")
    with pytest.raises(InputError, match="is not empty; use --overwrite"):
        check_output_folder(output, overwrite=False, holds=["run.json"])


def test_a_folder_that_holds_a_run_is_overwritten_by_none_but_that_run(output, tmp_path):
    (output / "recipe.yaml").touch()
    check_output_folder(output, overwrite=True, holds=["run.json"])
    with pytest.raises(InputError, match="output holds the run .*output, which --overwrite would delete"):
        check_output_folder(output, overwrite=True, holds=["recipe.yaml"])
    (output / "deep" / "run.json").touch()
    refused(output, "output holds the run .*deep, which")
    (output / "deep").rename(output / ".replaced.abc")  # as a killed process leaves an overwritten run
    check_output_folder(output, overwrite=True, holds=["run.json"])


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("start", ["nowhere", "nowhere/deeper/..", "link", "loop", "output/run.json"])
def test_a_folder_is_not_reached_through_one_that_does_not_exist(output, tmp_path, start, overwrite):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for folder in (tmp_path / "link", tmp_path / "link" / "new"):
        refused(folder, "link is not a folder")
    for end in ("..", "../output", "../new"):
        with pytest.raises(InputError, match="no folder|is not a folder"):
            check_output_folder(tmp_path / start / end, overwrite=overwrite, holds=["run.json"])
    check_output_folder(tmp_path / "output" / "../new", overwrite=overwrite, holds=["run.json"])


def test_a_folder_is_emptied_when_its_new_content_is_accepted(output):
    (output / "lock").touch()
    with pytest.raises(RuntimeError), emptied_folder(output, keep="lock"):
        assert [path.name for path in output.glob("[!.]*")] == ["lock"]
        (output / "deep").mkdir()
        (output / "deep" / "new").touch()
        raise RuntimeError
    assert (output / "deep" / "text").read_text() == "mine" and not (output / "deep" / "new").exists()
    assert sorted(path.name for path in output.iterdir()) == ["deep", "lock", "run.json"]
    with pytest.raises(RuntimeError), emptied_folder(output, keep="lock"):
        (output / "new").touch()
        delete_replaced(output)
        raise RuntimeError
    assert sorted(path.name for path in output.iterdir()) == ["lock", "new"]


def test_a_relative_folder_is_emptied_with_every_python(output, monkeypatch):
    make = tempfile.mkdtemp
    monkeypatch.setattr(files.tempfile, "mkdtemp", lambda *given: os.path.abspath(make(*given)))  # as since 3.12
    monkeypatch.chdir(output.parent)
    with emptied_folder(Path(output.name), keep="lock"):
        assert not [path.name for path in output.glob("[!.]*")]
        Path(output.name, "new").touch()
    assert [path.name for path in output.iterdir()] == ["new"]


def test_names_may_be_as_long_as_the_disk_allows(tmp_path):
    write_atomically(tmp_path / f"{'字' * 80}.txt", "new")


def test_a_file_that_another_program_reads_is_replaced_later(tmp_path, monkeypatch):
    """On Windows."""
    replace, refusals = os.replace, [PermissionError, PermissionError]

    def refuse(*paths):
        if refusals:
            raise refusals.pop()
        replace(*paths)

    monkeypatch.setattr(files, "IS_WINDOWS", True)
    monkeypatch.setattr(files.os, "replace", refuse)
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    write_atomically(tmp_path / "text", "new")
    assert (tmp_path / "text").read_text() == "new"


def test_the_old_content_is_back_where_new_files_cannot_be_deleted(output, monkeypatch):
    """As files that are open on NFS."""

    def refuse(path, ignore_errors=False):
        if not ignore_errors:
            raise OSError("Directory not empty")

    monkeypatch.setattr(files.shutil, "rmtree", refuse)
    with pytest.raises(RuntimeError), emptied_folder(output, keep="lock"):
        (output / "deep").mkdir()
        raise RuntimeError
    assert (output / "deep" / "text").read_text() == "mine" and (output / "run.json").exists()


def test_a_second_ctrl_c_waits_until_the_old_content_is_back(output, monkeypatch):
    rename, content = Path.rename, sorted(output.rglob("*"))

    def rename_slowly(self, target):
        signal.raise_signal(signal.SIGINT)
        return rename(self, target)

    with pytest.raises(KeyboardInterrupt), emptied_folder(output, keep="lock"):
        monkeypatch.setattr(Path, "rename", rename_slowly)
        raise KeyboardInterrupt
    assert sorted(output.rglob("*")) == content


def test_an_output_that_cannot_be_written_is_refused(output, tmp_path, monkeypatch):
    for path, message, inputs in (
        (tmp_path / "no" / "text", "no folder .*no$", []),
        (Path("/dev/null"), "is not a regular file", []),
        (output, "is not a regular file", []),
        (output / "deep" / "text", "is the input", [output / "deep" / "text"]),
        (output / "deep" / "text", "is the input .*output, or a file of it", [output]),
        (Path("/proc/text"), "/proc cannot be written to", []),
    ):
        with pytest.raises(InputError, match=message):
            check_output_file(path, overwrite=True, inputs=inputs)
    with pytest.raises(InputError, match=r"text given, must end in \.svg"):
        check_output_file(tmp_path / "text", overwrite=True, suffix=".svg")
    with pytest.raises(InputError, match="/proc cannot be written to"):
        check_output_folder(Path("/proc/runs/1"), overwrite=False, holds=["run.json"])
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(InputError, match="has 0 MiB free, must have 32"):
        check_output_file(tmp_path / "text", overwrite=False)
    with pytest.raises(InputError, match="has 0 MiB free, must have 32"):
        check_output_folder(tmp_path / "new", overwrite=False, holds=["run.json"])


@pytest.mark.parametrize("existing", ["nothing", "empty", "full"])
def test_what_a_killed_process_left_of_a_folder_is_deleted(tmp_path, existing):
    folder = tmp_path / "model[1]"
    if existing != "nothing":
        folder.mkdir()
    if existing == "full":
        (folder / "run.json").touch()
    with pytest.raises(KeyboardInterrupt), atomic_folder(folder) as new:
        (new / "weights").touch()
        shutil.copytree(new.parent, left := new.parent.with_name(".model[1].killed_0"))
        raise KeyboardInterrupt
    (left.parent / ".model[1].killed_1" / "old").mkdir(parents=True)  # while it was deleted
    (left.parent / ".model[1].killed_2").mkdir()  # before anything was written
    (mine := tmp_path / ".model[1].backup_1" / "new").mkdir(parents=True)
    (mine.parent / "notes").touch()
    (tmp_path / ".model[1].12345678").touch()
    assert left.is_dir()
    check_output_folder(folder, overwrite=True, holds=["run.json"])
    with atomic_folder(folder) as other, atomic_folder(folder) as new:  # of which the other one is not left over
        (new / "weights").touch()
        (other / "config").touch()
    assert [path.name for path in folder.iterdir()] in (["config"], ["weights"], ["config", "weights"])
    assert {*tmp_path.glob("**/.model*")} == {mine.parent, *tmp_path.glob("**/.model*12345678")}
