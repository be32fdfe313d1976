"""Checkpoints that are damaged, and disks that are full."""

import resource
import signal

import pytest
import yaml
from safetensors import SafetensorError
from support.files import flip
from support.recipes import SMALL, changed, make_recipe

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.data import encoding
from residual_hf.model.checksums import CHECKSUMS
from residual_hf.runs import fitting
from residual_hf.runs.final_model import average_run
from residual_hf.runs.run import train
from residual_hf.training.checkpoints import check_intact, complete_checkpoints


def test_an_incomplete_checkpoint_is_deleted(run):
    recipe, folder = run
    left = folder / "checkpoints" / "checkpoint-3"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    train(changed(recipe, "training", max_updates=6), resume=True)
    assert not left.exists()


@pytest.mark.parametrize(
    "name", ["trainer_state.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", CHECKSUMS]
)
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_is_refused_and_kept(run, name, damage):
    path = run[1] / "checkpoints" / "checkpoint-4" / name
    if damage == "flipped":
        flip(path)
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
        if name == CHECKSUMS:  # as those of earlier versions: only what can be seen is checked
            check_intact(path.parent)
            return
    with pytest.raises(InputError, match=r"checkpoint-4/.*; delete \S+checkpoint-4 to continue"):
        check_intact(complete_checkpoints(run[1] / "checkpoints")[-1])


@pytest.mark.parametrize("name", ["optimizer.pt", "config.json", "trainer_state.json"])
def test_a_damaged_file_does_not_send_a_run_back(run, name):
    recipe, folder = run
    path = folder / "checkpoints" / "checkpoint-4" / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=rf"checkpoint-4/{name}(:| is) .*; delete \S+checkpoint-4 to continue from"):
        train(changed(recipe, "training", max_updates=6), resume=True)
    assert path.exists() and not (folder / "checkpoints" / "checkpoint-6").exists()


@pytest.mark.parametrize(
    "state",
    ["{}", "[]", '{"log_history": 3}', '{"log_history": [{"step": "4"}]}', '{"log_history": [], "global_step": 9}']
    + ['{"log_history": [], "stateful_callbacks": []}', '{"log_history": [], "other": 1}', '{"log_history": [}'],
)
def test_a_state_must_hold_what_resuming_needs(tmp_path, state):
    """Also in a checkpoint of an earlier version, without checksums."""
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "trainer_state.json").write_text(state)
    with pytest.raises(InputError, match=r"checkpoint-4/trainer_state\.json.*delete \S+checkpoint-4 to continue"):
        complete_checkpoints(tmp_path)


def test_a_state_that_a_killed_process_was_writing_is_skipped_with_a_warning_and_kept(run, caplog):
    recipe, folder = run
    checkpoint = folder / "checkpoints" / "checkpoint-4"
    state = checkpoint / "trainer_state.json"
    state.write_text(state.read_text()[:200])
    (checkpoint / CHECKSUMS).unlink()
    train(changed(recipe, "training", max_updates=3), resume=True)
    assert "checkpoint-4 is skipped and kept" in caplog.text and state.exists()


def test_a_disk_without_space_for_the_checkpoints_is_refused(tmp_path, monkeypatch):
    recipe = make_recipe(tmp_path, **SMALL)
    monkeypatch.setattr(fitting, "bytes_to_write", lambda *arguments: 2**60)
    with pytest.raises(InputError, match=r"MiB free, must have \d+"):
        train(recipe)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("limit", "failing"), [(60_000, "weights"), (200_000, "optimizer")])
def test_a_full_disk_is_named_and_the_run_resumes(tmp_path, capsys, limit, failing):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(make_recipe(tmp_path, **SMALL).as_dict()))
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGTERM)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # writing more to a file is an error
    try:
        assert main(["train", str(path)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "a file could not be written, the disk has" in capsys.readouterr().err
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-2"
    assert (checkpoint / "optimizer.pt").exists() == (failing == "optimizer")
    assert signal.getsignal(signal.SIGTERM) is handler
    assert main(["train", str(path), "--resume"]) == 0


def test_a_disk_that_fills_before_training_is_named(tmp_path, capsys, monkeypatch):
    def fail(*arguments):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(make_recipe(tmp_path, **SMALL).as_dict()))
    monkeypatch.setattr(encoding, "save_file", fail)
    assert main(["train", str(path)]) == 1
    assert "a file could not be written, the disk has" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [0, -1])
def test_average_names_damaged_weights_without_checksums(run, tmp_path, number):
    _, folder = run
    checkpoint = complete_checkpoints(folder / "checkpoints")[number]
    (checkpoint / CHECKSUMS).unlink()
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(InputError, match=rf"{checkpoint.name}.model.safetensors: damaged or truncated"):
        average_run(folder, tmp_path / "average", 2)
