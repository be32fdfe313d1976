"""A run as `residual-hf train` leaves it: its texts, scores and records, and how tests change them."""

import json

import yaml

from residual_hf.evaluation.translation_metric import TranslationMetric

REFERENCES = [f"the {a} dog sees a {b} cat in the {c} park" for a in "xyz" for b in "uvw" for c in "rst"]
GOOD = [line.replace("sees", "saw") if i % 3 else line for i, line in enumerate(REFERENCES)]
BAD = ["the dog is here now" for _ in REFERENCES]


def score(hypotheses, references):
    return TranslationMetric().compute(predictions=hypotheses, references=references)


def corpus(split, **changes):
    files = {f"/home/someone/{split}.{language}": 16 * f"{split}"[:4] for language in ("de", "en")}
    return {
        "name": f"{split}.de|{split}.en",
        "pairs": 30,
        "sha256": files,
        "source_lang": "de",
        "target_lang": "en",
    } | changes


def write_json(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def edit_json(path, **changes):
    write_json(path, json.loads(path.read_text()) | changes)


def edit_recipe(run, change):
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    change(recipe)
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))


def content(path):
    return path.read_text(encoding="utf-8")
