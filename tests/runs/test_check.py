"""The rules of the verdict on made curves, and the command on a small recipe."""

import itertools
import re
from types import SimpleNamespace

import pytest
import torch
import yaml
from support.recipes import make_recipe
from support.tiny_translator import tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.model.options import from_mapping
from residual_hf.runs import check
from residual_hf.runs.preparation import prepare_first_pairs
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.verdict import CheckReport, ModeCheck, judge

RATES = [1e-3] * 40 + [1e-3 * 4 ** ((i + 1) / 20) for i in range(20)]
HEALTHY = [6.0 - 3.0 * update / 60 for update in range(60)]
NOTHING = [6.0 - 0.05 * update / 60 for update in range(60)]
STUCK = [6.0 - 0.9 * min(1.0, update / 10) for update in range(60)]

VALUES = {"output_dir": "run", "source_lang": "en", "target_lang": "de"}
VALUES |= {"data": {split: {"tsv": f"{split}.tsv"} for split in ("train", "valid")}}
"""Of a recipe, except for its model and training."""


def measured(losses, mode="post_ln", ratio=0.5, headroom=10.0):
    return ModeCheck(mode, ratio, "decoder self_attention", headroom, losses, RATES[:60], 40)


def verdict(losses, others=(), precision="fp32", **figures):
    return judge(measured(losses, **figures), others, unigram_entropy=5.0, precision=precision)


@pytest.mark.parametrize(
    ("losses", "others", "figures", "expected", "finding"),
    [
        (HEALTHY, [], {}, "trains", ""),
        # slow modes look like this in their first updates, so it is no evidence that they will not train
        (STUCK, [HEALTHY], {}, "at risk", "the loss falls to 5.10 in 60 updates, not below 4.85; pre_ln"),
        (STUCK, [STUCK], {}, "undecided", ".*too few"),
        (STUCK, [], {"ratio": 0.01}, "at risk", ""),
        (NOTHING, [STUCK], {}, "will not train", "nothing is .* falls to 5.95 in 60 updates, that of pre_ln to 5.10$"),
        (NOTHING, [NOTHING], {}, "undecided", ""),
        (HEALTHY[:20], [], {}, "will not train", ".*diverges at update"),  # then it is not finite
        (HEALTHY[:30] + [9.0] * 30, [], {}, "will not train", ".*diverges at update"),
        (HEALTHY[:52] + [9.0] * 8, [], {}, "at risk", r".*diverges at 2\."),  # in the ramp
        (HEALTHY, [], {"ratio": 0.05}, "trains", ""),
        (HEALTHY, [], {"ratio": 0.0499}, "at risk", "the gradient vanishes: decoder self_attention"),
        (HEALTHY, [], {"headroom": 1.0}, "trains", ""),
        (HEALTHY, [], {"headroom": 1.0, "precision": "fp16"}, "at risk", ""),
    ],
)
def test_verdict_on_a_curve(losses, others, figures, expected, finding):
    found, findings = verdict(losses, [measured(curve, "pre_ln") for curve in others], **figures)
    assert found == expected and re.match(finding, findings[0])


def test_better_modes_are_those_with_a_lower_loss():
    faster = measured([loss - 0.5 for loss in HEALTHY], "deep_norm")
    own, equal, broken = measured(HEALTHY), measured(HEALTHY, "pre_ln"), measured(HEALTHY[:5], "xskip")
    report = CheckReport("trains", [], own, [equal, broken, faster], 3, 5.0, "")
    assert [m.mode for m in report.better] == ["deep_norm"]
    assert "updates: deep_norm (3 modes tried, 3 to the end). So few updates do not tell" in str(report)


def test_command(tmp_path, capsys, refused, monkeypatch):
    recipe = make_recipe(tmp_path, max_updates=100, warmup_updates=10, clip_norm=1.0)
    recipe.model.update(d_model=16, decoder_layers=2, ln_mode="admin")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe.as_dict()), encoding="utf-8")
    monkeypatch.setattr(check, "FEWEST_UPDATES", 6)
    arguments = ["check", str(tmp_path / "recipe.yaml"), "--seconds", "0.01"]
    assert main([*arguments, "--set", "training.lr=0.003"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("verdict: undecided\n- 6 updates are too few")
    assert "admin " in printed and "modes tried, 2 to the end" in printed and "6 updates of 300 tokens" in printed
    assert printed.splitlines()[-1].startswith("native kernels: ")
    assert not (tmp_path / "run").exists()
    assert main([*arguments, "--modes", "postln"]) == 2
    refused("seconds: 0.0 given, must be more than 0", *arguments[:2], "--seconds", "0")
    refused("seconds: inf given", *arguments[:2], "--seconds", "inf")


def test_another_optimizer_is_refused(tmp_path):
    recipe = make_recipe(tmp_path, optimizer="sgd")
    with pytest.raises(InputError, match="training.optimizer: 'sgd' given, must be another for a check"):
        check.check(recipe)


def test_other_modes_do_not_have_the_options_of_a_preset():
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_ln_mode": "b2t"}
    recipe = from_mapping(Recipe, {**VALUES, "model": {"preset": "resi_dual_opus100", **sizes}})
    assert recipe.build_config().ln_mode_options == {"dual_scale": 0.05}
    measurements = check.Check(recipe, tiny_tokenizer(), SimpleNamespace(device="cpu"))
    config = measurements.model("keel").config
    assert [config.of(stack).ln_mode for stack in config.stacks] == ["keel", "keel"]


@pytest.mark.parametrize("schedule", ["linear", "stagewise_0"])
def test_branches_are_measured_without_their_warm_up_and_warm_up_within_the_check(schedule):
    ids = torch.arange(4, 20).view(2, 8)
    corpus = SimpleNamespace(device="cpu", train=lambda seed: itertools.repeat({"input_ids": ids, "labels": ids}))
    sizes = {"d_model": 16, "encoder_layers": 3, "decoder_layers": 3, "ln_mode": "post_ln"}

    def checked(**model):
        training = {"lr": 1e-30, "warmup_init_lr": 0.0, "max_updates": 9}
        recipe = from_mapping(Recipe, {**VALUES, "model": {**sizes, **model}, "training": training})
        return check.Check(recipe, tiny_tokenizer(), corpus)

    plain, warmed = checked(), checked(branch_warmup={"schedule": schedule, "updates": 1000})
    expected, found = (each.measure(None, "post_ln", 9) for each in (plain, warmed))
    assert (found.gradient_ratio, found.fp16_headroom) == (expected.gradient_ratio, expected.fp16_headroom)
    assert found.losses[0] != expected.losses[0]
    assert found.losses[3:] == pytest.approx(expected.losses[3:])


def test_only_the_first_pairs_are_read(tmp_path):
    (tmp_path / "text").write_text("a b\tc d\n" * 9 + "not a pair\n")
    corpus = {"tsv": str(tmp_path / "text"), "limit": 9}
    data = {"train": {"tsv": corpus["tsv"]}, "valid": corpus, "stream": True}
    recipe = from_mapping(Recipe, VALUES | {"data": data, "tokenizer": {"vocab_size": 280}})
    assert len(prepare_first_pairs(recipe, 8, tmp_path).encoded["train"]) == 8
