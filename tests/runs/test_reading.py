"""The folder of a run while it is written, and its log."""

import io
import logging
import sys
from pathlib import Path

import pytest

from residual_hf.base.errors import InputError
from residual_hf.base.files import write_atomically
from residual_hf.runs.reading import TerminalHandler, log_to, run_folder


def test_a_run_of_another_process_is_not_replaced(tmp_path):
    write_atomically(tmp_path / "run.json", "{}")
    with pytest.raises(InputError, match="another process has meanwhile written"), run_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    with run_folder(tmp_path, overwrite=True):
        assert not (tmp_path / "run.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
def test_a_log_on_a_full_disk_is_named_once(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").symlink_to("/dev/full")
    with pytest.raises(OSError, match="run: a file could not be written"), run_folder(tmp_path / "run", resume=True):
        logging.getLogger("residual_hf").info("text")
    assert capsys.readouterr().err == ""


def test_a_closed_terminal_does_not_stop_the_log(monkeypatch):
    class Closed:
        def write(self, text):
            raise OSError(5, "Input/output error")

        flush = isatty = fileno = lambda self: False

    monkeypatch.setattr(sys, "stderr", Closed())
    TerminalHandler().handle(logging.makeLogRecord({"msg": "update 1"}))


def test_where_the_root_logger_prints_each_message_is_still_printed_once(monkeypatch):
    printed, logged = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(), logging.StreamHandler(logged)])
    own = logging.getLogger("residual_hf.runs.run")
    with log_to(TerminalHandler()):
        own.info("update 1")
        logging.warning("of another")
    own.info("not asked for")
    own.warning("after the run")
    messages = ["update 1", "of another", "after the run"]
    assert logged.getvalue().splitlines() == messages
    assert [printed.getvalue().count(each) for each in (*messages, "not asked for")] == [1, 1, 1, 0]
