"""The three kinds of divergence, told apart on made curves, and the command."""

import math
import sys

import pytest
import yaml
from stress import StressRun, StressSetting, corpus_of, ranked, survival, table
from support.example_scripts import refusal, run
from support.files import read_json_lines
from support.recipes import make_recipe

from residual_hf.base.environment import commit
from residual_hf.base.errors import InputError
from residual_hf.base.lock import Lock
from residual_hf.model import connections
from residual_hf.model.options import from_mapping
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.verdict import spike

SCRIPT = "papers/stress.py"
SETTING = StressSetting(updates=200, max_lr=0.2)  # the rate at update t is t / 1000
HEALTHY = [6.0 - 4.0 * min(1.0, update / 100) for update in range(200)]


def judge(losses, mode="post_ln"):
    run = StressRun(mode, 6, 1, losses, unigram_entropy=5.0)
    healthy = StressRun("pre_ln", 6, 1, HEALTHY, unigram_entropy=5.0)
    return survival(run, [run, healthy], SETTING)


STAGNANT = [6.0 - 0.5 * min(1.0, update / 50) for update in range(200)]


@pytest.mark.parametrize(
    ("losses", "divergence", "largest"),
    [
        pytest.param(HEALTHY, None, 0.2, id="healthy"),
        pytest.param(HEALTHY[:150] + [6.0] * 50, "spike", 0.155, id="spike that does not return"),
        pytest.param(HEALTHY[:140] + [6.0] * 10 + HEALTHY[150:], None, 0.2, id="spike that returns"),
        pytest.param(HEALTHY[:80], "spike", 0.08, id="not finite"),  # runs end there
        pytest.param(HEALTHY[:80] + [20.0] * 100, "spike", 0.08, id="out of range before it was not finite"),
        pytest.param(STAGNANT, "stagnation", 0.0, id="stagnation"),
        pytest.param(HEALTHY[:60] + [3.6] * 140, "slow-down", 0.08, id="silent slow-down"),
    ],
)
def test_kinds_of_divergence(losses, divergence, largest):
    result = judge(losses)
    assert result.divergence == divergence and result.largest_lr == pytest.approx(largest, abs=0.005)


def test_the_last_update_in_range_is_the_last_that_survives():
    assert spike([5.0, 4.0, 3.0, 9.0]) == 3


def test_table_has_range_and_kind():
    results = [judge(HEALTHY), judge(STAGNANT)]
    assert "| `post_ln` | 0.1 (0-0.2) none, stagnation, 3.75 |" in table(results)
    assert "spike, 2e+10 |" in table([judge([2e10] * 100 + [3e10] * 100)])


def test_modes_are_ranked_by_rate_and_then_by_loss():
    spiked, worse = HEALTHY[:150] + [6.0] * 50, [loss + 0.1 for loss in HEALTHY]
    results = [judge(losses, mode) for mode, losses in {"b2t": spiked, "keel": worse, "post_ln": HEALTHY}.items()]
    assert [result.run.mode for result in ranked(results)] == ["post_ln", "keel", "b2t"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "6", "0"], r"--layers: [6, 0] given, must be at least 1"),
        (["--updates", "0"], "--updates: 0 given, must be an integer >= 1"),
        (["--width", "30"], "--width: 30 given, must be a multiple of 4"),
        (["--max-lr", "nan"], "--max-lr: nan given, must be a number > 0"),
    ],
)
def test_numbers_are_checked(options, message, tmp_path):
    assert message in refusal(SCRIPT, "--output-dir", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_two_commands_do_not_write_one_folder(tmp_path):
    with Lock(tmp_path / "stress.lock", "output"):
        assert f"--output-dir: {tmp_path} is in use by" in refusal(SCRIPT, "--output-dir", tmp_path)


def test_command_continues_its_runs(tmp_path, small_generated_corpus):
    arguments = ["--output-dir", tmp_path / "out", "--layers", 1, "--width", 16, "--updates", 4, "--max-tokens", 128]
    run(SCRIPT, *arguments, "--modes", "post_ln")
    assert "| `resi_dual` |" in run(SCRIPT, *arguments, "--modes", "post_ln", "resi_dual")
    runs = read_json_lines(tmp_path / "out" / "runs.jsonl")
    assert [each["mode"] for each in runs] == ["post_ln", "resi_dual"] and runs[0]["commit"] == commit()
    assert runs[0]["setting"]["max_tokens"] == 128
    assert all(len(each["losses"]) == 4 and math.isfinite(each["losses"][-1]) for each in runs)
    assert (tmp_path / "out" / "stress.png").exists()
    assert "unknown ln_mode 'postln'" in refusal(SCRIPT, *arguments, "--modes", "postln")


def test_corpus_of_a_recipe(tmp_path):
    recipe = make_recipe(tmp_path).as_dict()
    data = recipe["data"] = recipe["data"] | {"cleaning": {"duplicates": "pair"}}
    recipe["tokenizer"] = {"vocab_size": 330, "joint": False}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    arguments = ["--output-dir", tmp_path / "out", "--modes", "pre_ln", "--layers", 1]
    arguments += ["--width", 16, "--updates", 3, "--recipe", tmp_path / "recipe.yaml"]
    for _ in range(2):
        run(SCRIPT, *arguments)
    (result,) = read_json_lines(tmp_path / "out" / "runs.jsonl")
    assert result["setting"]["corpus"].startswith("train.en|train.de (") and len(result["losses"]) == 3
    assert "| `pre_ln` |" in (tmp_path / "out" / "stress.md").read_text()
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**recipe, "data": {**data, "stream": True}}))
    assert "data.stream" in refusal(SCRIPT, *arguments)


def test_modes_of_a_user_are_imported(tmp_path, monkeypatch):
    file = tmp_path / "own_stress.py"
    file.write_text(
        "from residual_hf import register_ln_mode\n"
        "from residual_hf.model.ln_modes import PostLN\n"
        'register_ln_mode("own_stress")(type("OwnStress", (PostLN,), {}))\n'
    )
    arguments = ["--modes", "own_stress", "--recipe", tmp_path / "missing.yaml", "--output-dir", tmp_path / "out"]
    assert "unknown ln_mode 'own_stress'" in refusal(SCRIPT, *arguments)
    monkeypatch.setattr(connections, "LN_MODES", dict(connections.LN_MODES))
    assert "no such file: " in refusal(SCRIPT, *arguments, "--import", file)
    sys.modules.pop("own_stress")


@pytest.mark.parametrize(
    ("task", "column"),
    [("speech_recognition", "tsv"), ("language_modeling", "text")],  # an encoder-decoder would learn to copy the text
)
def test_other_tasks_are_refused(tmp_path, task, column):
    recipe = {"output_dir": "unused", "task": task, "language": "en"}
    recipe["data"] = {split: {column: f"{split}.txt"} for split in ("train", "valid")}
    recipe["training"] = {"label_smoothing": 0, "max_epochs": 1}
    with pytest.raises(InputError, match=f"task: '{task}' given, but the stress test"):
        corpus_of(from_mapping(Recipe, recipe), tmp_path, 128)
