"""Recipes whose training corpus is a stream."""

import json
import re
from pathlib import Path

import pytest
from support.files import same_weights
from support.recipes import SMALL, changed, make_recipe

from residual_hf.base.errors import InputError
from residual_hf.data import pipeline
from residual_hf.model.options import from_mapping
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.run import train


def recipe_with(folder, data, model=None, **training):
    values = make_recipe(folder, **{"eval_bleu": False, "eval_every": 8, **training}).as_dict()
    values["data"] |= data
    values["model"] |= model or {}
    return from_mapping(Recipe, values)


def streamed(folder, data=None, **training):
    return recipe_with(folder, {"stream": True, "shuffle_buffer": 70, **(data or {})}, **training)


def weights(folder, step):
    return folder / f"run/checkpoints/checkpoint-{step}/model.safetensors"


def test_a_stream_trains_and_resumes_to_the_same_weights(tmp_path):
    data = {"subword_regularization": {"bpe_dropout": 0.3}}
    train(streamed(tmp_path / "whole", data, max_updates=24))
    parts = streamed(tmp_path / "parts", data, max_updates=16)
    train(parts)
    metrics = train(changed(parts, "training", max_updates=24), resume=True)
    assert metrics["valid"]["nll"] < 4.0
    assert same_weights(weights(tmp_path / "whole", 24), weights(tmp_path / "parts", 24))
    record = json.loads((tmp_path / "whole/run/run.json").read_text())["data"]
    assert record.keys() == {"train", "valid", "test", "glossary"} and record["glossary"] is None
    assert len(record["train"][0]["sha256"]) == 2


@pytest.mark.slow
def test_a_stream_that_shuffles_the_whole_corpus_trains_as_in_memory(tmp_path):
    data = {
        "bidirectional": True,
        "language_tags": "source",
        "cleaning": {"min_words": 3, "duplicates": "pair"},
        "subword_regularization": {"bpe_dropout": 0.2},
    }
    for name, further in (("memory", {}), ("stream", {"stream": True})):
        limits = {"max_tokens": 600, "max_updates": 24, "eval_every": 24}
        train(recipe_with(tmp_path / name, data | further, {"dropout": 0.0}, **limits))
    state = json.loads((tmp_path / "memory/run/checkpoints/checkpoint-24/trainer_state.json").read_text())
    assert state["epoch"] > 2
    assert same_weights(weights(tmp_path / "memory", 24), weights(tmp_path / "stream", 24))


def test_batches_do_not_depend_on_the_blocks_read_before(tmp_path):
    """A checkpoint holds the position in the files, so that earlier blocks are not read again."""
    recipe = streamed(tmp_path, max_updates=8)
    train(recipe)
    state = json.loads((tmp_path / "run/checkpoints/checkpoint-8/trainer_state.json").read_text())
    state = state["stateful_callbacks"]["StreamPosition"]["attributes"]["position"]
    assert state["batches"] == 8 and state["block"] >= 2
    assert state["corpora"][0]["offsets"][0] > 0


def test_the_whole_text_is_checked_before_the_training(tmp_path):
    recipe = streamed(tmp_path, max_updates=8)
    source = Path(recipe.data.train[0].source)
    source.write_text(source.read_text().rpartition("\n")[0].rpartition("\n")[0] + "\n")
    with pytest.raises(InputError, match="lines"):
        train(recipe)
    assert not (tmp_path / "run").exists()


def test_pairs_of_the_test_set_are_counted_in_the_whole_text_once(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "SAMPLE", 40)
    recipe = streamed(tmp_path, **SMALL)
    texts = pipeline.read_corpora(recipe_with(tmp_path, {}).data)
    pairs, test = texts["train"][0], {*texts["test"][0]}
    assert len({*pairs} & test) > len({*pairs[:40]} & test) > 0
    train(recipe)
    found = re.findall(r"data\.test: (.*) pairs are also training pairs", (tmp_path / "run/train.log").read_text())
    assert found == [f"{len({*pairs} & test)} of {len(test)}"]


def test_a_tokenizer_is_trained_on_the_first_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "SAMPLE", 50)
    data = streamed(tmp_path, {"cleaning": {"min_words": 3}}).data
    (sample,) = pipeline.first_pairs(data, seed=1)
    first = pipeline.read_corpora(recipe_with(tmp_path, {}).data)["train"][0][:50]
    assert list(sample) == [pair for pair in first if len(pair[0].split()) > 2]
    monkeypatch.setattr(pipeline, "SAMPLE", 500)
    assert [len(corpus) for corpus in pipeline.first_pairs(streamed(tmp_path).data, seed=1)] == [300]


def test_a_run_without_a_stream_is_not_resumed_with_one(tmp_path):
    train(make_recipe(tmp_path, eval_bleu=False, eval_every=8, max_updates=8))
    with pytest.raises(InputError, match="data.stream: False, now True"):
        train(streamed(tmp_path, max_updates=16), resume=True)
