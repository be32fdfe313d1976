# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Forward and backward of the official implementations, number by number."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from reference import Fixture, find

from residual_hf.conversion.fairseq import rename_parameter
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.training.loss import smoothed_cross_entropy

FIXTURES = [
    "post_ln",
    "post_ln_untied",
    "post_ln_left_padded",
    "pre_ln",
    "resi_dual",
    "resi_dual_untied",
    "resi_dual_scaled",
    "hybrid_post_encoder_pre_decoder",
    "trained_post_ln",
    "trained_resi_dual",
]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=FIXTURES)
def fixture(request):
    return Fixture(request.param)


def run(fixture, model, source=None):
    source = fixture.source if source is None else source
    return model(
        input_ids=source,
        attention_mask=source.ne(1),
        decoder_input_ids=fixture.decoder_input,
        output_hidden_states=True,
    )


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_outputs_and_layer_states(fixture, attention):
    with torch.no_grad():
        outputs = run(fixture, fixture.model(attention))
    source, target = fixture.source.ne(1), fixture.decoder_input.ne(1)
    torch.testing.assert_close(
        outputs.encoder_last_hidden_state[source], fixture.output("encoder_out")[source], **CLOSE
    )
    torch.testing.assert_close(outputs.logits[target], fixture.output("logits")[target], **CLOSE)
    for stack, states, mask in (
        ("encoder", outputs.encoder_hidden_states, source),
        ("decoder", outputs.decoder_hidden_states, target),
    ):
        official = [value for name, value in fixture.group("output/").items() if name.startswith(f"{stack}_state_")]
        official = official[-len(states) :]
        skipped = len(states) - len(official)  # older forks do not record the embedding
        for ours, theirs in zip(states[skipped:-1], official, strict=False):  # the last one is the stack's output
            torch.testing.assert_close(ours[mask], theirs[mask], **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_side_makes_no_difference(fixture, side):
    padded = fixture.source.clone()
    for row in padded:
        tokens = row[row.ne(1)]
        row.fill_(1)
        row[slice(len(row) - len(tokens), None) if side == "left" else slice(len(tokens))] = tokens
    with torch.no_grad():
        logits = run(fixture, fixture.model(), padded).logits
    target = fixture.decoder_input.ne(1)
    torch.testing.assert_close(logits[target], fixture.output("logits")[target], **CLOSE)


def test_loss_and_gradients(fixture):
    model = fixture.model()
    labels = fixture.target.masked_fill(fixture.target == 1, -100)
    sums = smoothed_cross_entropy(run(fixture, model).logits, labels, epsilon=0.1, form="fairseq")
    assert sums.nll.item() == pytest.approx(float(fixture.output("nll_sum")), rel=1e-4)
    assert sums.smoothed.item() == pytest.approx(float(fixture.output("label_smoothed_sum")), rel=1e-4)
    sums.smoothed.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    official = fixture.group("grad_norm/")
    largest = max(official.values()).item()
    compared = set()
    for name, norm in official.items():
        fused = [name.replace("in_proj_", f"{x}_proj.") for x in "qkv"] if "in_proj_" in name else [name]
        ours = [rename_parameter(part) for part in fused]
        if set(ours) <= set(gradients):
            mine = torch.cat([gradients[part].flatten() for part in ours]).norm().item()
            # the gradient of a key bias is zero but for rounding: softmax ignores a constant
            assert mine == pytest.approx(norm.item(), rel=1e-4, abs=1e-6 * largest), name
            compared.update(ours)
    assert compared == set(gradients)


@pytest.mark.parametrize("mode", ["post_ln", "resi_dual"])
def test_initial_standard_deviations(mode):
    official = json.loads(find(f"init_{mode}.json").read_text())
    torch.manual_seed(0)
    model = ResidualForConditionalGeneration(
        ResidualConfig(
            vocab_size=official["vocab_size"],
            d_model=official["d_model"],
            encoder_layers=official["encoder_layers"],
            decoder_layers=official["decoder_layers"],
            encoder_ffn_dim=official["ffn_dim"],
            decoder_ffn_dim=official["ffn_dim"],
            encoder_attention_heads=official["heads"],
            decoder_attention_heads=official["heads"],
            ln_mode=mode,
        )
    )
    parameters = dict(model.named_parameters())
    by_kind: dict[str, list[tuple[float, float]]] = {}
    for name, figures in official["parameters"].items():
        ours = rename_parameter(name)
        if ours in parameters:
            kind = re.sub(r"[qkv]_proj", "qkv_proj", ".".join(ours.split(".")[-2:]))
            by_kind.setdefault(kind, []).append((parameters[ours].detach().std().item(), figures["std"]))
    assert sum(map(len, by_kind.values())) == len(parameters)
    for kind, pairs in by_kind.items():  # a bias is short: what is compared is the mean over all of a kind
        mine, theirs = np.mean(pairs, axis=0)
        assert mine == pytest.approx(theirs, rel=0.03, abs=1e-12), kind
