# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import pytest
import torch
from reference import Fixture

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration


def batch_of(fixture):
    source = fixture.source
    return {"input_ids": source, "attention_mask": source.ne(1), "decoder_input_ids": fixture.decoder_input}


def test_profile_equals_the_official_one():
    fixture = Fixture("admin_profiled")
    model = fixture.model(dropout=0.0)
    for name, parameter in model.named_parameters():
        if name.endswith("omega"):
            parameter.data.fill_(5.0)  # whatever it was
    profile = model.profile_admin(batch_of(fixture))
    official = [value for _, value in fixture.settings["profile"]]
    assert profile == pytest.approx(official, rel=1e-6)
    assert not model.training
    outputs = model(**batch_of(fixture))
    target = fixture.decoder_input.ne(1)
    torch.testing.assert_close(outputs.logits[target], fixture.output("logits")[target], rtol=1e-5, atol=1e-5)


def test_a_model_is_built_again_from_its_config(tmp_path):
    fixture = Fixture("admin_profiled")
    model = fixture.model(dropout=0.0)
    profile = model.profile_admin(batch_of(fixture))
    model.config.save_pretrained(tmp_path)
    fresh = ResidualForConditionalGeneration(ResidualConfig.from_pretrained(tmp_path))
    omegas = [p[0].item() for name, p in fresh.named_parameters() if name.endswith("omega")]
    assert sorted(omegas) == pytest.approx(sorted(profile))


def test_other_modes_have_no_profile():
    fixture = Fixture("post_ln")
    with pytest.raises(ValueError, match="needs ln_mode 'admin'"):
        fixture.model().profile_admin(batch_of(fixture))
