# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes whose training corpus is read block by block."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from test_run import make_recipe, write_corpus

from residual_hf.data.settings import CorpusSpec
from residual_hf.errors import InputError
from residual_hf.training import streams
from residual_hf.training.recipe import Recipe, from_mapping
from residual_hf.training.run import train
from residual_hf.training.streams import mixing_shares, stream_specs


def streamed(folder, data=None, **training):
    values = make_recipe(folder, **{"eval_bleu": False, "eval_every": 8, **training}).as_dict()
    values["data"] |= {"stream": True, "shuffle_buffer": 70, **(data or {})}
    return from_mapping(Recipe, values)


def test_a_stream_trains_and_resumes_to_the_same_weights(tmp_path):
    train(streamed(tmp_path / "whole", max_updates=24))
    parts = streamed(tmp_path / "parts", max_updates=16)
    train(parts)
    parts.training.max_updates = 24
    metrics = train(parts, resume=True)
    assert metrics["valid"]["nll"] < 4.0
    whole, resumed = (
        load_file(tmp_path / name / "run/checkpoints/checkpoint-24/model.safetensors") for name in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    record = json.loads((tmp_path / "whole/run/run.json").read_text())
    assert set(record["data"]) == {"train", "valid", "test"} and len(record["data"]["train"][0]["sha256"]) == 2


def test_batches_do_not_depend_on_the_blocks_read_before(tmp_path):
    """The checkpoint says where the stream stood: what lies before is not read again."""
    recipe = streamed(tmp_path, max_updates=8)
    train(recipe)
    state = json.loads((tmp_path / "run/checkpoints/checkpoint-8/stream.json").read_text())
    assert state["batches"] == 8 and state["block"] >= 2
    assert state["corpora"][0]["offsets"][0] > 0


def test_a_tokenizer_is_trained_on_the_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "SAMPLE", 50)
    assert [len(c) for c in streams.first_pairs(streamed(tmp_path), 50)] == [50]


def test_directions_and_weights_of_a_stream(tmp_path):
    recipe = streamed(
        tmp_path,
        {"bidirectional": True, "language_tags": "source"},
        max_updates=4,
        eval_every=4,
    )
    there, back = stream_specs(recipe)
    assert (there.source, there.source_lang) == (back.target, back.target_lang)
    assert train(recipe)["updates"] == 4
    small = CorpusSpec(**write_corpus(tmp_path, "small", 100, 7))
    assert mixing_shares([recipe.data.train[0], small], 1.0) == pytest.approx([0.75, 0.25])
    assert mixing_shares([recipe.data.train[0], small], 1e9) == pytest.approx([0.5, 0.5])
    weighted = [CorpusSpec(tsv="a", weight=1), CorpusSpec(tsv="b", weight=4)]
    assert mixing_shares(weighted, 1.0) == pytest.approx([0.2, 0.8])


def test_a_stream_has_no_epochs(tmp_path):
    values = make_recipe(tmp_path).as_dict()
    values["data"]["stream"] = True
    values["training"] |= {"max_updates": None, "max_epochs": 3}
    with pytest.raises(InputError, match="training.max_updates: missing; a stream has no end"):
        from_mapping(Recipe, values)
