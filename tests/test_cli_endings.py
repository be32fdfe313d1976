"""How commands end: by signals, with closed streams and on full disks."""

import errno
import io
import signal
import sys

import pytest
from support.tiny_translator import save_tiny, stdin

from residual_hf.base.interrupts import SIGNALS
from residual_hf.cli import main
from residual_hf.runs.fitting import Interrupted


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_every_command_in_order(number, tmp_path, monkeypatch, capsys):
    """Temporary files and folders are deleted, which the default action of SIGTERM would leave."""
    left, handler = tmp_path / "temporary", signal.getsignal(number)

    def convert(*arguments):
        left.touch()
        try:
            signal.raise_signal(number)
        finally:
            left.unlink()

    monkeypatch.setattr("residual_hf.conversion.convert_transformers", convert)
    assert main(["convert", str(tmp_path), "--output-dir", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "residual-hf convert: interrupted\n"
    assert not left.exists() and signal.getsignal(number) is handler


def test_ctrl_c_in_the_training_of_quickstart(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise Interrupted("stopped at update 4; use --resume to continue")

    monkeypatch.setattr("residual_hf.runs.quickstart.quickstart", interrupted)
    assert main(["quickstart", "--output-dir", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "residual-hf quickstart: interrupted\n"


def test_ctrl_c_that_an_import_turns_into_another_error(tmp_path, monkeypatch, capsys):
    def convert(*arguments):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemError("initialization of _C raised an unreported exception") from None

    monkeypatch.setattr("residual_hf.conversion.convert_transformers", convert)
    assert main(["convert", str(tmp_path), "--output-dir", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "residual-hf convert: interrupted\n"


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_an_empty_one(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", stdin(b"zwei Katzen\n"))
    monkeypatch.setattr(sys, name, None)
    save_tiny(tmp_path / "model")
    assert main(["translate", str(tmp_path / "model")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == (name == "stderr")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space"), "[Errno 28] No space (standard output, or the folder of temporary files "),
        (Exception("No space (os error 28)"), "No space (os error 28)\n"),  # as tokenizers does
    ],
    ids=["standard output", "a library in Rust"],
)
def test_a_full_disk_is_named(error, message, monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text):
            raise error

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["modes"]) == 1
    assert capsys.readouterr().err.startswith(f"residual-hf modes: {message}")
