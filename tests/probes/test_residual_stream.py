# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Probes of what the residual stream holds, and of the shares of branches and shortcuts in it."""

from __future__ import annotations

import pytest
import torch
from support.models import LABELS, SOURCE, make, randomise

from residual_hf.base.errors import InputError
from residual_hf.probes import dependency, representations
from residual_hf.probes.residual_stream import position_recall, rotation_change

BATCH = {"input_ids": SOURCE, "attention_mask": SOURCE.ne(1), "labels": LABELS}


def test_only_rms_norms_leave_the_basis_of_the_stream_free():
    model = randomise(make("pre_ln", norm_type="rms_norm"))
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert rotation_change(model, BATCH) < 1e-12
    assert rotation_change(randomise(make("pre_ln")), BATCH) > 1e-3  # the mean that a layer norm subtracts
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("fields", [{"ln_mode": "post_ln"}, {"ln_mode": "pre_ln", "norm_type": "scale_norm"}])
def test_rotation_needs_pre_ln(fields):
    with pytest.raises(InputError, match="rotation_change: .* given, must be pre_ln with"):
        rotation_change(make(**fields), BATCH)


@pytest.mark.parametrize("kind", ["sinusoidal", "none"])
def test_positions_survive_where_they_were_added(kind):
    model = make("pre_ln", position_embedding_type=kind, d_model=64, max_position_embeddings=32)
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(4, 30, (2, 48, 20), generator=generator)
    mask = torch.ones_like(source)
    mask[:, 15:] = 0
    rows = position_recall(model, {"input_ids": source, "attention_mask": mask, "labels": target})
    assert [(row.stack, row.layer) for row in rows] == [
        *(("encoder", layer) for layer in range(3)),
        *(("decoder", layer) for layer in range(4)),
    ]
    encoder = [row.r_squared for row in rows if row.stack == "encoder"]
    assert min(encoder) > 0.95 if kind == "sinusoidal" else max(encoder) < 0.1


def test_dependency_is_the_variance_of_the_branch_in_that_of_the_sum():
    model = randomise(make("admin"))
    states = representations.record(model, BATCH, "input", "branch.output", "norm.input")
    rows = representations.branch_dependency(model, BATCH)
    assert len(rows) == 2 * 2 + 3 * 3
    for row in rows:
        x, f, total = (
            next(t for site, t in states.items() if site.place == row.place and site.location == location)
            for location in ("input", "branch.output", "norm.input")
        )
        assert row.dependency == pytest.approx(float(f.var(-1).mean() / total.var(-1).mean()), rel=1e-5)
    mine = representations.branch_dependency(make("pre_ln"), BATCH)
    assert all(0 < row.dependency < 1.5 for row in mine)


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [("post_ln", {}, 1.0), ("xskip_ln", {"skip_scale": 3.0}, 3.0), ("wskip_ln", {"skip_init": 2.0}, 2.0)],
)
def test_the_ratio_of_shortcut_and_branch_without_recursion(mode, options, expected):
    rows = dependency.skip_ratios(make(mode, ln_mode_options=options), BATCH)
    assert [row.ratio for row in rows] == pytest.approx([expected] * 13)


@pytest.mark.parametrize("order", [2, 3])
def test_the_ratio_of_recursive_shortcuts_follows_the_norms(order):
    """lambda = 2: sigma_1 / w_1 + 1; lambda = 3: 1 + sigma_1/w_1 + sigma_1 sigma_2 / (w_1 w_2)."""
    model = make("rskip_ln", ln_mode_options={"skip_order": order})
    connection = model.model.encoder.layers[0].ffn_residual
    with torch.no_grad():
        for j, norm in enumerate(connection.norms, start=1):
            norm.weight.fill_(float(j))
    names = [f"norms.{j}.input" for j in range(order - 1)]
    states = representations.record(model, BATCH, *names)
    deviations = [
        float(
            next(t for s, t in states.items() if s.place == ("encoder", 1, "feed_forward") and s.location == name)
            .std(-1, correction=0)
            .mean()
        )
        for name in names
    ]
    rows = {row.place: row.ratio for row in dependency.skip_ratios(model, BATCH)}
    expected = 1 + deviations[0] / 1
    if order == 3:
        expected += deviations[0] * deviations[1] / 2
    assert rows["encoder", 1, "feed_forward"] == pytest.approx(expected, rel=1e-4)
    assert all(ratio > order - 0.5 for place, ratio in rows.items() if place != ("encoder", 1, "feed_forward"))
