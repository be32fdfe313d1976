# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The rules of the verdict on made curves, and the command on a small recipe."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import yaml
from support.recipes import make_recipe
from support.tiny_translator import tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.data.synthetic import generate_corpus
from residual_hf.model.options import from_mapping
from residual_hf.runs import check
from residual_hf.runs.preparation import prepare_first_pairs
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.verdict import CheckReport, ModeCheck, judge

RATES = [1e-3] * 40 + [1e-3 * 4 ** ((i + 1) / 20) for i in range(20)]
HEALTHY = [6.0 - 3.0 * update / 60 for update in range(60)]
NOTHING = [6.0 - 0.05 * update / 60 for update in range(60)]
STUCK = [6.0 - 0.9 * min(1.0, update / 10) for update in range(60)]


def measured(losses, mode="post_ln", ratio=0.5, headroom=10.0):
    return ModeCheck(mode, ratio, "decoder self_attention", headroom, losses, RATES[:60], 40)


def verdict(losses, others=(), precision="fp32", **figures):
    return judge(measured(losses, **figures), others, unigram_entropy=5.0, precision=precision)


def test_healthy_curve():
    assert verdict(HEALTHY)[0] == "trains"


def test_a_loss_at_the_entropy_of_the_word_frequencies_is_a_risk_where_another_mode_learns():
    """Slow modes look like this in their first updates, so it is no evidence that they will not train."""
    found, findings = verdict(STUCK, [measured(HEALTHY, "pre_ln")])
    assert found == "at risk" and findings[0].startswith(
        "the loss falls to 5.10 in 60 updates, not below 4.85; pre_ln"
    )


def test_too_few_updates_leave_the_verdict_open():
    found, findings = verdict(STUCK, [measured(STUCK, "pre_ln")])
    assert found == "undecided" and "too few" in findings[0]
    assert verdict(STUCK, ratio=0.01)[0] == "at risk"


def test_a_loss_that_does_not_fall_where_that_of_another_mode_does():
    found, findings = verdict(NOTHING, [measured(STUCK, "pre_ln")])
    assert found == "will not train" and findings[0] == (
        "nothing is learned: the loss falls to 5.95 in 60 updates, that of pre_ln to 5.10"
    )
    assert verdict(NOTHING, [measured(NOTHING, "pre_ln")])[0] == "undecided"


@pytest.mark.parametrize("losses", [HEALTHY[:20], HEALTHY[:30] + [9.0] * 30], ids=["not finite", "spike"])
def test_divergence_at_the_rate_of_the_recipe(losses):
    found, findings = verdict(losses)
    assert found == "will not train" and "diverges at update" in findings[0]


def test_divergence_in_the_ramp_is_a_risk():
    found, findings = verdict(HEALTHY[:52] + [9.0] * 8)
    assert found == "at risk" and "diverges at 2." in findings[0]


def test_vanishing_gradient_and_range_are_risks():
    assert verdict(HEALTHY, ratio=0.01)[1][0].startswith("the gradient vanishes: decoder self_attention")
    assert [verdict(HEALTHY, ratio=ratio)[0] for ratio in (0.05, 0.0499)] == ["trains", "at risk"]
    assert verdict(HEALTHY, headroom=1.0)[0] == "trains"
    assert verdict(HEALTHY, precision="fp16", headroom=1.0)[0] == "at risk"


def test_better_modes_are_those_with_a_lower_loss():
    faster = measured([loss - 0.5 for loss in HEALTHY], "deep_norm")
    own, equal, broken = measured(HEALTHY), measured(HEALTHY, "pre_ln"), measured(HEALTHY[:5], "xskip")
    report = CheckReport("trains", [], own, [equal, broken, faster], 3, 5.0, "")
    assert [m.mode for m in report.better] == ["deep_norm"]
    assert "updates: deep_norm (3 modes tried, 3 to the end). So few updates do not tell" in str(report)


def test_command(tmp_path, capsys, monkeypatch):
    for name, pairs in generate_corpus({"train": 300, "valid": 12, "test": 1}).items():
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2}
    recipe = {
        "output_dir": str(tmp_path / "run"),
        "source_lang": "en",
        "target_lang": "de",
        "data": {
            split: {"source": str(tmp_path / f"{split}.en"), "target": str(tmp_path / f"{split}.de")}
            for split in ("train", "valid")
        },
        "tokenizer": {"vocab_size": 400},
        "model": {**sizes, "ln_mode": "admin", "max_position_embeddings": 64},
        "training": {"max_tokens": 300, "max_updates": 100, "warmup_updates": 10, "clip_norm": 1.0},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    monkeypatch.setattr(check, "FEWEST_UPDATES", 6)
    arguments = ["check", str(tmp_path / "recipe.yaml"), "--seconds", "0.01"]
    assert main([*arguments, "--set", "training.lr=0.003"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("verdict: undecided\n- 6 updates are too few")
    assert "admin " in printed and "modes tried, 2 to the end" in printed and "6 updates of 300 tokens" in printed
    assert printed.splitlines()[-1].startswith("native kernels: ")
    assert not (tmp_path / "run").exists()
    assert main([*arguments, "--modes", "postln"]) == 2
    assert main([*arguments[:2], "--seconds", "0"]) == 2
    assert "seconds: 0.0 given, must be more than 0" in capsys.readouterr().err
    assert main([*arguments[:2], "--seconds", "inf"]) == 2
    assert "seconds: inf given" in capsys.readouterr().err


def test_another_optimizer_is_refused(tmp_path):
    recipe = make_recipe(tmp_path, optimizer="sgd")
    with pytest.raises(InputError, match="training.optimizer: 'sgd' given, must be another for a check"):
        check.check(recipe)


def test_other_modes_do_not_have_the_options_of_a_preset():
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_ln_mode": "b2t"}
    data = {split: {"tsv": f"{split}.tsv"} for split in ("train", "valid")}
    values = {"output_dir": "run", "source_lang": "en", "target_lang": "de", "data": data}
    recipe = from_mapping(Recipe, {**values, "model": {"preset": "resi_dual_opus100", **sizes}})
    assert recipe.build_config().ln_mode_options == {"dual_scale": 0.05}
    measurements = check.Check(recipe, tiny_tokenizer(), SimpleNamespace(device="cpu"))
    config = measurements.model("keel").config
    assert [config.of(stack).ln_mode for stack in config.stacks] == ["keel", "keel"]


@pytest.mark.parametrize("schedule", ["linear", "stagewise_0"])
def test_branches_are_measured_without_their_warm_up_and_warm_up_within_the_check(schedule):
    ids = torch.arange(4, 20).view(2, 8)
    corpus = SimpleNamespace(device="cpu", train=lambda seed: itertools.repeat({"input_ids": ids, "labels": ids}))
    sizes = {"d_model": 16, "encoder_layers": 3, "decoder_layers": 3, "ln_mode": "post_ln"}
    data = {split: {"tsv": f"{split}.tsv"} for split in ("train", "valid")}

    def checked(**model):
        values = {"output_dir": "run", "source_lang": "en", "target_lang": "de", "data": data}
        training = {"lr": 1e-30, "warmup_init_lr": 0.0, "max_updates": 9}
        recipe = from_mapping(Recipe, {**values, "model": {**sizes, **model}, "training": training})
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
    values = {"output_dir": "run", "source_lang": "en", "target_lang": "de", "data": data}
    recipe = from_mapping(Recipe, values | {"tokenizer": {"vocab_size": 280}})
    assert len(prepare_first_pairs(recipe, 8, tmp_path).encoded["train"]) == 8
