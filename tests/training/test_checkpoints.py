import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from support.files import read_json_lines, same_weights
from support.processes import VERB, run_forked
from support.recipes import make_recipe
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.runs.final_model import average_run
from residual_hf.runs.run import train
from residual_hf.training.checkpoints import (
    KeepCheckpoints,
    average_weights,
    best_checkpoints,
    choose_checkpoints,
    complete_checkpoints,
)


def make_checkpoints(folder, nlls):
    history = []
    for i, nll in enumerate(nlls, start=1):
        checkpoint = folder / f"checkpoint-{5 * i}"
        checkpoint.mkdir(parents=True)
        history.append({"step": 5 * i, "eval_nll": nll})
        (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        weights = {"a": torch.full((2,), float(i)), "h": torch.full((2,), i + 1 / 3).half(), "n": torch.tensor(i)}
        save_file(weights, checkpoint / "model.safetensors")
    return folder


def names(checkpoints):
    return [checkpoint.name for checkpoint in checkpoints]


def keep_one(folder):
    """Delete what a run does not keep that has saved the last of these checkpoints."""
    state = SimpleNamespace(is_world_process_zero=True, best_model_checkpoint=None)
    KeepCheckpoints(folder, keep_last=1, keep_best=1, metric="nll").on_save(None, state, None)


def test_choosing(tmp_path):
    folder = make_checkpoints(tmp_path, [3.0, 1.0, 2.0, 1.0])
    assert names(complete_checkpoints(folder)) == [f"checkpoint-{n}" for n in (5, 10, 15, 20)]
    best = best_checkpoints(complete_checkpoints(folder), "nll")
    assert names(best[:3]) == [f"checkpoint-{n}" for n in (10, 20, 15)]
    assert names(choose_checkpoints(folder, 2)) == ["checkpoint-15", "checkpoint-20"]
    assert names(choose_checkpoints(folder, 2, of="best")) == ["checkpoint-10", "checkpoint-20"]
    with pytest.raises(InputError, match="5 last checkpoints requested, but only 4 were kept"):
        choose_checkpoints(folder, 5)


def test_checkpoints_that_were_not_kept_are_not_replaced_by_others(tmp_path, caplog):
    folder = make_checkpoints(tmp_path, [3.0, 1.0, 1.5, 2.0, 2.5])
    for deleted in (1, 3):
        shutil.rmtree(folder / f"checkpoint-{5 * deleted}")
    with pytest.raises(InputError, match="3 last checkpoints requested, but only 2 were kept"):
        choose_checkpoints(folder, 3)
    with pytest.raises(InputError, match="3 best by nll checkpoints requested, but only 2 were kept"):
        choose_checkpoints(folder, 3, of="best")
    assert names(choose_checkpoints(folder, 3, fewer=True)) == ["checkpoint-20", "checkpoint-25"]


def test_a_copy_of_a_checkpoint_is_none(tmp_path):
    folder = make_checkpoints(tmp_path, [3.0, 2.0, 1.0])
    shutil.copytree(folder / "checkpoint-5", folder / "checkpoint-best-15")
    assert names(choose_checkpoints(folder, 2)) == ["checkpoint-10", "checkpoint-15"]
    keep_one(folder)
    assert {path.name for path in folder.iterdir()} == {"checkpoint-15", "checkpoint-best-15"}


def test_a_checkpoint_that_cannot_be_deleted_is_none_and_training_goes_on(tmp_path, monkeypatch):
    """As on NFS, where a file that another process has open stays."""
    folder = make_checkpoints(tmp_path, [3.0, 2.0, 1.0])

    def refuse(*arguments, **options):
        raise OSError("Directory not empty")

    monkeypatch.setattr(os, "rmdir", refuse)
    keep_one(folder)
    assert names(complete_checkpoints(folder)) == ["checkpoint-15"]


def test_the_last_checkpoint_before_a_spike_is_kept(tmp_path):
    folder = make_checkpoints(tmp_path / "checkpoints", [4.0, 3.0, 2.0, 1.0])
    for update in (7, 15):
        (tmp_path / "spikes" / f"update-{update}").mkdir(parents=True)
    keep_one(folder)
    assert names(complete_checkpoints(folder)) == ["checkpoint-10", "checkpoint-20"]


def test_of_a_linked_checkpoint_only_the_link_is_deleted(tmp_path):
    folder = make_checkpoints(tmp_path / "run" / "checkpoints", [3.0, 2.0, 1.0])
    moved = shutil.move(folder / "checkpoint-5", tmp_path / "archive")
    (folder / "checkpoint-5").symlink_to(moved)
    before = sorted(path.name for path in Path(moved).iterdir())
    keep_one(folder)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-15"]
    assert sorted(path.name for path in Path(moved).iterdir()) == before


def test_a_checkpoint_that_was_cut_off_is_not_whole(tmp_path):
    folder = make_checkpoints(tmp_path, [3.0, 1.0, 2.0])
    (folder / "checkpoint-15" / "trainer_state.json").write_text('{"log_his')
    (folder / "checkpoint-20").mkdir()
    assert names(complete_checkpoints(folder)) == ["checkpoint-5", "checkpoint-10"]


def test_average_is_the_mean_in_the_types_of_the_weights(tmp_path):
    averaged = average_weights(complete_checkpoints(make_checkpoints(tmp_path, [1.0] * 3)))
    assert torch.equal(averaged["a"], torch.full((2,), 2.0))
    assert averaged["h"].dtype == torch.float16
    torch.testing.assert_close(averaged["h"], torch.full((2,), 2 + 1 / 3).half())
    assert averaged["n"] == 3


def test_weights_that_do_not_fit_are_named(tmp_path):
    checkpoints = complete_checkpoints(make_checkpoints(tmp_path, [1.0] * 3))
    save_file({"a": torch.zeros(3)}, checkpoints[1] / "model.safetensors")
    with pytest.raises(InputError, match="checkpoint-10 has other weights than .*checkpoint-5"):
        average_weights(checkpoints)
    (checkpoints[1] / "model.safetensors").write_bytes(b"\x08\x00\x00")
    with pytest.raises(InputError, match="checkpoint-10/model.safetensors: not a readable safetensors file"):
        average_weights(checkpoints)
    (checkpoints[1] / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"checkpoint-10/model.safetensors: .*No such file"):
        average_weights(checkpoints)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("averaged")
    settings = {"max_updates": 12, "eval_every": 2, "keep_last": 3, "keep_best": 2, "average": 3, "eval_bleu": False}
    train(make_recipe(folder, **settings))
    return folder / "run"


def test_a_run_keeps_the_last_and_the_best_and_ends_in_their_average(run):
    checkpoints = complete_checkpoints(run / "checkpoints")
    nll = {r["step"]: r["eval_nll"] for r in read_json_lines(run / "metrics.jsonl") if "eval_nll" in r}
    best = sorted(nll, key=nll.get)[:2]
    assert {int(c.name.split("-")[1]) for c in checkpoints} == {8, 10, 12, *best}
    weights = [load_file(c / "model.safetensors") for c in checkpoints[-3:]]
    final = load_file(run / "model" / "model.safetensors")
    for name, tensor in final.items():
        torch.testing.assert_close(tensor, sum(w[name] for w in weights) / 3)


def test_command(run, tmp_path, capsys, refused):
    average = "average", str(run)
    assert main([*average, "--last", "3", "--output-dir", str(tmp_path / "model")]) == 0
    assert main(["push", str(tmp_path / "model"), "somebody/a", "--dry-run"]) == 0
    assert "checkpoint-8, checkpoint-10, checkpoint-12" in capsys.readouterr().out
    averaged, final = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (tmp_path / "model", run / "model"))
    assert all(torch.equal(a, b) for a, b in zip(averaged.parameters(), final.parameters(), strict=True))
    refused("is not empty; use --overwrite", *average, "--best", "1", "--output-dir", tmp_path / "model")
    refused("9 best by nll checkpoints requested", *average, "--best", "9", "--output-dir", tmp_path / "other")
    for target in (run, run / "checkpoints" / "checkpoint-12", run / "tokenizer"):
        refused("--overwrite would delete", *average, "--last", "1", "--output-dir", target, "--overwrite")
    refused("is for the model of the run", *average, "--last", "1", "--output-dir", run / "model", "--overwrite")


def test_an_average_searches_as_the_recipe_says_at_last(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["decoding"] |= {"num_beams": 3, "length_penalty": 0.7}
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    average_run(tmp_path / "run", tmp_path / "model", 2)
    generation = GenerationConfig.from_pretrained(tmp_path / "model")
    assert (generation.num_beams, generation.length_penalty) == (3, 0.7)


def test_a_damaged_checkpoint_is_not_averaged(run, tmp_path, refused):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "checkpoint-10" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    average = "average", tmp_path / "run", "--output-dir", tmp_path / "model", "--last"
    refused("checkpoint-10/model.safetensors is damaged or was changed", *average, "3")
    tokenizer = tmp_path / "run" / "tokenizer" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    refused("run/tokenizer: other files than", *average, "1")


def test_checkpoints_of_a_moving_average_are_not_averaged(run, tmp_path, refused):
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["training"] |= {"ema_decay": 0.9, "average": 0}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    refused("ema_decay: 0.9 given, must be 0", "average", tmp_path, "--last", "1", "--output-dir", tmp_path / "model")


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(tmp_path):
    """kill -9 within an epoch: the resumed run ends in the weights of one that nobody killed, bit for bit.

    That one trains here, after whatever tests came before: a state of the process that they leave must change no bit.
    """
    settings = {"max_updates": 24, "eval_every": 5, "log_every": 1, "eval_bleu": False}
    killed, records = tmp_path / "killed" / "run", tmp_path / "killed" / "run" / "metrics.jsonl"
    recipes = [write_recipe(tmp_path / name, settings) for name in ("whole", "killed")]
    assert main(["train", recipes[0]]) == 0
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train_elsewhere, recipes[1])
        deadline = time.time() + 120
        while time.time() < deadline and not (records.exists() and '"step": 7,' in records.read_text()):
            time.sleep(0.005)
        os.kill(int((tmp_path / "killed" / "pid").read_text()), signal.SIGKILL)
        assert training.result().returncode == -signal.SIGKILL
    assert not (killed / "metrics.json").exists()
    reached = complete_checkpoints(killed / "checkpoints")
    assert names(reached)[0] == "checkpoint-5"
    # what remains of a process that is killed while it saves
    (reached[-1].parent / "checkpoint-23").mkdir()
    assert train_elsewhere(recipes[1], "--resume").returncode == 0
    folders = [tmp_path / name / "run" for name in ("whole", "killed")]
    assert [json.loads((folder / "metrics.json").read_text())["updates"] for folder in folders] == [24, 24]
    assert same_weights(*(folder / "model" / "model.safetensors" for folder in folders))


def write_recipe(folder, settings):
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump(make_recipe(folder, **settings).as_dict()))
    return str(folder / "recipe.yaml")


def train_elsewhere(recipe, *options):
    """`residual-hf train` in a process that no other test has touched."""
    return run_forked("-c", VERB, "train", recipe, *options, cwd=Path(recipe).parent, check=False)
