"""Recipes of runs that take seconds."""

import random
from dataclasses import replace

from residual_hf.model.options import from_mapping
from residual_hf.runs.recipe import Recipe
from support import small_sizes

WORDS = {"red": "rot", "green": "grün", "blue": "blau", "dog": "Hund", "cat": "Katze", "sees": "sieht", "a": "ein"}

SMALL = {"max_updates": 4, "eval_every": 2, "eval_bleu": False, "warmup_updates": 1}
"""Fields of `training` for the shortest run that has two checkpoints."""


def write_corpus(folder, name, size, seed):
    dice = random.Random(seed)
    rows = [[dice.choice(list(WORDS)) for _ in range(dice.randint(2, 6))] for _ in range(size)]
    (folder / f"{name}.en").write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")
    (folder / f"{name}.de").write_text(
        "".join(" ".join(WORDS[w] for w in row) + "\n" for row in rows), encoding="utf-8"
    )
    return {"source": str(folder / f"{name}.en"), "target": str(folder / f"{name}.de")}


def make_recipe(folder, **training):
    folder.mkdir(exist_ok=True)
    corpora = {name: write_corpus(folder, name, size, i) for i, (name, size) in enumerate(SIZES.items())}
    values = {
        "source_lang": "en",
        "target_lang": "de",
        "output_dir": str(folder / "run"),
        "data": corpora,
        "tokenizer": {"kind": "bpe", "vocab_size": 330},
        "model": {**small_sizes(32, ffn_dim=64), "dropout": 0.1, "max_position_embeddings": 64},
        "training": {
            "max_tokens": 300,
            "max_updates": 60,
            "warmup_updates": 4,
            "lr": 1e-2,
            "eval_every": 30,
            "log_every": 5,
            **training,
        },
        "decoding": {"num_beams": 2, "max_length_a": 0.0, "max_length_b": 40},
    }
    return from_mapping(Recipe, values)


def changed(recipe, section, **fields):
    return replace(recipe, **{section: replace(getattr(recipe, section), **fields)})


SIZES = {"train": 300, "valid": 12, "test": 9}
