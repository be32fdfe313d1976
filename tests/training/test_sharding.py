# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import pytest
from support.trainers import make_model, make_trainer

from residual_hf.training import sharding
from residual_hf.training.sharding import gather_full_model


def test_a_full_copy_searches_as_the_model():
    model = make_model()
    model.generation_config.num_beams = 4
    model.generation_config.max_length_a = 0.0
    assert gather_full_model(model).generation_config == model.generation_config


@pytest.mark.parametrize("writes", [True, False])
def test_one_process_writes_the_full_weights(tmp_path, monkeypatch, writes):
    trainer = make_trainer(tmp_path / "checkpoints", make_model())
    monkeypatch.setattr(sharding, "is_sharded", lambda model: True)
    monkeypatch.setattr(type(trainer.args), "should_save", writes)
    trainer.save_model(str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").exists() == writes
