# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import pytest
import torch
from support.reference import Fixture

from residual_hf import ResidualConfig
from residual_hf.conversion import convert_fairseq_state_dict
from residual_hf.conversion.fairseq import split_parameter


def fuse(state_dict):
    """Separate projections to fused ones, as older forks store them."""
    fused = {}
    for name, tensor in state_dict.items():
        if ".k_proj." in name:
            parts = [state_dict[name.replace(".k_proj.", f".{x}_proj.")] for x in "qkv"]
            fused[name.replace(".k_proj.", ".in_proj_")] = torch.cat(parts)
        elif ".q_proj." not in name and ".v_proj." not in name:
            fused[name] = tensor
    return fused


def test_fused_projections_give_the_same_weights():
    fixture = Fixture("resi_dual")
    separate = {k: v for k, v in fixture.group("weight/").items() if "in_proj" not in k}
    fused = fuse(separate)
    assert any("in_proj_weight" in name for name in fused)
    expected = convert_fairseq_state_dict(separate, fixture.config())
    converted = convert_fairseq_state_dict(fused, fixture.config())
    assert converted.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(converted[name], tensor), name


def test_split_keeps_the_order_query_key_value():
    split = split_parameter("encoder.layers.0.self_attn.in_proj_bias", torch.arange(6.0), ResidualConfig())
    assert {k.split(".")[-2]: v.tolist() for k, v in split} == {
        "q_proj": [0, 1],
        "k_proj": [2, 3],
        "v_proj": [4, 5],
    }


def test_tied_tables_may_be_stored_once():
    fixture = Fixture("post_ln")
    weights = fixture.group("weight/")
    for name in ("decoder.embed_tokens.weight", "decoder.output_projection.weight"):
        weights.pop(name, None)
    converted = convert_fairseq_state_dict(weights, fixture.config())
    table = converted["model.encoder.embed_tokens.weight"]
    assert converted["lm_head.weight"] is table and converted["model.decoder.embed_tokens.weight"] is table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("encoder.layers.1.fc1.weight"), r"missing: model\.encoder\.layers\.1\.ffn\.fc1\.weight"),
        (lambda w: w.update({"encoder.layers.0.omega": torch.ones(1)}), r"unknown: encoder\.layers\.0\.omega"),
        (lambda w: w.update({"encoder.layers.0.fc1.bias": torch.ones(3)}), r"fc1\.bias: \(3,\) instead of \(32,\)"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_what_does_not_fit_is_named(change, message):
    fixture = Fixture("post_ln")
    weights = fixture.group("weight/")
    change(weights)
    with pytest.raises(ValueError, match=message):
        convert_fairseq_state_dict(weights, fixture.config())
