# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import pytest
import yaml

from residual_hf.errors import InputError
from residual_hf.training.recipe import load_recipe

MINIMAL = {
    "source_lang": "en",
    "target_lang": "de",
    "output_dir": "out",
    "data": {"train": {"source": "a.en", "target": "a.de"}, "valid": {"tsv": "b.tsv"}},
    "training": {"max_updates": 10},
}


def write(tmp_path, content):
    path = tmp_path / "recipe.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def changed(**sections):
    return {**MINIMAL, **sections}


def test_values_and_defaults(tmp_path):
    recipe = load_recipe(write(tmp_path, changed(training={"max_updates": 10, "lr": "5e-3", "betas": [0.9, 0.999]})))
    assert recipe.training.lr == 5e-3
    assert recipe.training.betas == [0.9, 0.999]
    assert recipe.training.warmup_updates == 4000
    assert recipe.data.train[0].source == "a.en"
    assert recipe.data.test is None
    assert recipe.build_config().ln_mode == "resi_dual"


def test_languages_of_the_recipe_are_those_of_its_records(tmp_path):
    data = {"train": {"jsonl": "a.jsonl"}, "valid": {"jsonl": "b.jsonl", "source_lang": "fr"}}
    recipe = load_recipe(write(tmp_path, changed(data=data)))
    corpora = recipe.data.train + recipe.data.valid
    assert [(corpus.source_lang, corpus.target_lang) for corpus in corpora] == [("en", "de"), ("fr", "de")]


def test_overrides_by_dotted_name(tmp_path):
    overrides = {"training.seed": 7, "model.ln_mode": "pre_ln", "output_dir": "elsewhere"}
    recipe = load_recipe(write(tmp_path, MINIMAL), overrides)
    assert (recipe.training.seed, recipe.build_config().ln_mode, recipe.output_dir) == (7, "pre_ln", "elsewhere")


def test_what_is_written_can_be_read_again(tmp_path):
    recipe = load_recipe(write(tmp_path, MINIMAL))
    assert load_recipe(write(tmp_path, recipe.as_dict())) == recipe


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(sourc_lang="en"), r"sourc_lang: there is no such field\. Known: .*source_lang"),
        ({k: v for k, v in MINIMAL.items() if k != "data"}, "data: missing"),
        (changed(training={"max_updates": "many"}), "training.max_updates: 'many' given, must be int"),
        (changed(training={"max_updates": 10, "schedule": "cosine"}), "training.schedule: 'cosine' .*inverse_sqrt"),
        (changed(training={}), "max_updates or max_epochs"),
        (
            changed(training={"max_updates": 10, "metric": "bleu", "eval_bleu": False}),
            "metric: 'bleu' needs eval_bleu",
        ),
        (changed(model={"ln_mod": "pre_ln"}), r"model\.ln_mod: there is no such field"),
        (changed(model={"ln_mode": "mystery"}), "unknown ln_mode 'mystery'.*resi_dual"),
        (changed(model={"d_model": 100, "encoder_attention_heads": 7}), "encoder_attention_heads must divide d_model"),
        (changed(model={"preset": "nothing"}), "unknown preset 'nothing'"),
        (changed(tokenizer={"kind": "wordpiece"}), "tokenizer.kind: 'wordpiece'.*unigram"),
        (changed(decoding={"num_beams": 0}), "num_beams: 0 given"),
        ("- a list", "a recipe is a mapping"),
        ("a: [", "not a YAML file"),
    ],
    ids=lambda value: None if isinstance(value, (dict, str)) and len(str(value)) > 60 else str(value)[:40],
)
def test_bad_recipes_are_refused_by_field(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as error:
        load_recipe(write(tmp_path, content))
    assert "recipe.yaml" in str(error.value) or "model" in str(error.value)


def test_missing_file():
    with pytest.raises(InputError, match=r"nowhere\.yaml: there is no such recipe"):
        load_recipe("nowhere.yaml")
