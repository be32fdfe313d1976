"""Probes of what the residual stream holds, and of the share of a branch in it."""

import paper_probes
import pytest
import torch
from residual_stream import position_recall, rotation_change
from support.models import LABELS, SOURCE, make, randomise

from residual_hf.base.errors import InputError
from residual_hf.model.ln_modes import PreLN

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
    best = max(row.r_squared for row in rows if row.stack == "decoder")
    assert best > 0.95 if kind == "sinusoidal" else 0.5 < best < 0.65, best


@pytest.mark.parametrize("shortcut", [True, False])
def test_only_a_shortcut_carries_positions_through_a_deep_stack(shortcut, monkeypatch):
    """A claim of docs/papers.md, with more words than the width and a control without shortcuts."""
    if not shortcut:
        monkeypatch.setattr(PreLN, "forward", lambda self, stream, sublayer: (sublayer(self.norm(stream[0])),))
    torch.manual_seed(0)
    deep = {"vocab_size": 500, "encoder_layers": 6, "decoder_layers": 6}
    model = make("pre_ln", d_model=64, max_position_embeddings=32, **deep)
    source, target = torch.randint(4, 500, (2, 48, 20), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}
    rows = position_recall(model, batch)
    later = [row.r_squared for row in rows if row.layer > 0]
    assert min(row.r_squared for row in rows if row.layer == 0) > 0.5
    assert min(later) > 0.5 if shortcut else max(later) < 0.1, later


def test_dependency_is_the_variance_of_the_branch_in_that_of_the_sum():
    model = randomise(make("admin"))
    states = paper_probes.record(model, BATCH, "input", "branch.output", "norm.input")
    rows = paper_probes.branch_dependency(model, BATCH)
    assert len(rows) == 2 * 2 + 3 * 3
    for row in rows:
        x, f, total = (
            next(t for site, t in states.items() if site.place == row.place and site.location == location)
            for location in ("input", "branch.output", "norm.input")
        )
        assert row.dependency == pytest.approx(float(f.var(-1).mean() / total.var(-1).mean()), rel=1e-5)
    mine = paper_probes.branch_dependency(make("pre_ln"), BATCH)
    assert all(0 < row.dependency < 1.5 for row in mine)
