"""Replays of the updates before a spike."""

import json

import pytest
import torch
from replay import Replay, replay, series
from support.example_scripts import run
from support.files import read_json_lines
from support.recipes import make_recipe

from residual_hf import DiagnosticsCallback
from residual_hf.base.errors import InputError
from residual_hf.runs.run import train
from residual_hf.training import spikes as spikes_module
from residual_hf.training.diagnostics import spikes
from residual_hf.training.divergence import TrainingDivergedError


def test_replay_repeats_the_updates_before_a_spike(tmp_path, monkeypatch):
    """On a run that diverged: the same losses, with figures of each update."""
    monkeypatch.setattr(spikes_module, "RECENT", 8)
    settings = {"max_updates": 40, "eval_every": 10, "eval_bleu": False, "divergence_factor": 1.5}
    recipe = make_recipe(tmp_path, diagnostics={"every": 10}, **settings)
    boosted = DiagnosticsCallback.on_step_begin

    def boost(self, args, state, control, **kwargs):
        boosted(self, args, state, control, **kwargs)
        if state.global_step + 1 == 25:
            with torch.no_grad():
                self.model.model.decoder.layers[0].ffn_residual.norm.weight *= 30

    with monkeypatch.context() as patch:
        patch.setattr(DiagnosticsCallback, "on_step_begin", boost)
        with pytest.raises(TrainingDivergedError):
            train(recipe)
    folder = tmp_path / "run"
    assert [path.name for path in spikes(folder)] == ["update-25"]
    before = read_json_lines(folder / "diagnostics.jsonl")
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    printed = run("papers/replay.py", folder)
    assert "Updates 21 to 25" in printed and "decoder 1 feed_forward" in printed
    lines = read_json_lines(folder / "replays" / "update-25" / "diagnostics.jsonl")
    assert [line["step"] for line in lines if "sublayers" in line][-5:] == [21, 22, 23, 24, 25]
    assert list(series(lines, "losses").values())[:24] == pytest.approx(
        list(series(before, "losses").values())[:24], rel=1e-5
    )
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_a_layer_that_was_dropped_in_an_update_has_no_activations(tmp_path):
    place = {"stack": "decoder", "layer": 2, "sublayer": "feed_forward"}
    row = {**place, "gradient": 0.0, "update_ratio": 0.1, "branch_share": None}
    lines = [{"step": 6, "losses": [2.0], "grad_norms": [1.0], "sublayers": [row], "activations": []}]
    assert "decoder 2 feed_forward" in Replay(0, 6, lines, {6: 2.0}, tmp_path).sublayers()


def test_replay_refuses_what_it_cannot_find(tmp_path):
    recipe = make_recipe(tmp_path, max_updates=2, eval_every=2, eval_bleu=False)
    with pytest.raises(InputError, match="no run.json"):
        replay(tmp_path)
    train(recipe)
    with pytest.raises(InputError, match="has no spikes"):
        replay(tmp_path / "run")
    with pytest.raises(InputError, match="--at: 3 given, must be an update of the run, from 1 to 2"):
        replay(tmp_path / "run", 3)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(record | {"updates": None}))
    text = (tmp_path / "run" / "recipe.yaml").read_text().replace("max_updates: 2", "max_updates: null")
    (tmp_path / "run" / "recipe.yaml").write_text(text.replace("max_epochs: null", "max_epochs: 1"))
    with pytest.raises(InputError, match="--at: 9 given, but training ends after 7 updates"):
        replay(tmp_path / "run", 9)
    (source,) = tmp_path.glob("train*.en")
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join([*lines[1:], lines[0]]))
    with pytest.raises(InputError, match="data.train of .*run: other text than that of the run"):
        replay(tmp_path / "run", 2)
