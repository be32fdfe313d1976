"""Every recipe under examples/ loads, builds the model that its README describes, and trains at reduced size."""

import gzip
import json
import random
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
import yaml
from support import ROOT, small_sizes
from support.slow import slow_except
from support.tones import write_tones
from transformers import AutoConfig

from residual_hf.commands.arguments import parse_overrides
from residual_hf.runs.building import build_config
from residual_hf.runs.recipe import load_recipe
from residual_hf.runs.run import train

EXAMPLES = ROOT / "examples"
RECIPES = sorted(
    path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*.yaml") if path.parent.name != "launch"
)
QUICK = {f"{folder}/recipe.yaml" for folder in ("iwslt14_de_en", "multi30k", "opus100")}
QUICK |= {"language_model/tiny.yaml", "speech/an4.yaml"}
FOLDERS = sorted({name.split("/")[0] for name in RECIPES})
WORDS = ["dog", "cat", "tree", "house", "red", "green", "runs", "sees", "and", "the"]
SPLITS = {"train": 24, "valid": 4, "test": 3}
SPLITS_OF_DATASETS = ("train", "validation", "test")
CORPORA = 3
"""Most corpora of a split that are trained on here."""
as_written = cache(load_recipe)
SMALL_MODEL = small_sizes(32, ffn_dim=64)


@pytest.mark.parametrize("folder", FOLDERS)
def test_readme_names_every_recipe_and_what_it_gives(folder):
    text = (EXAMPLES / folder / "README.md").read_text(encoding="utf-8")
    for recipe in (EXAMPLES / folder).glob("*.yaml"):
        assert f"train examples/{folder}/{recipe.name}" in text
    others = {"language_model": ("perplexity",), "speech": ("WER", "beam", "length penalty")}
    scoring = others.get(folder, ("BLEU", "beam", "length penalty"))
    for word in (*scoring, "Differences", "data/"):
        assert word in text, word


ROW = re.compile(r"^\| `(\w+\.yaml)((?: --set \S+)*)` \|.*$", re.MULTILINE)
ROWS = [
    pytest.param(f"{folder}/{row[1]}", row[2].split(" --set ")[1:], row[0], id=f"{folder}/{row[1]}{row[2]}")
    for folder in FOLDERS
    for row in ROW.finditer((EXAMPLES / folder / "README.md").read_text(encoding="utf-8"))
]
"""Recipes, their overrides, and their rows in the tables of the READMEs."""


@pytest.mark.parametrize(("name", "changes", "row"), ROWS)
def test_model_has_as_many_parameters_as_the_readme_says(name, changes, row):
    recipe = load_recipe(EXAMPLES / name, parse_overrides(changes))
    with torch.device("meta"):
        model = recipe.chosen_task.model(build_config(recipe, Vocabulary(recipe)))
    parameters = sum(p.numel() for p in model.parameters())
    assert f" {parameters:,} " in row, f"{name} has {parameters:,} parameters"


def test_tables_have_every_recipe():
    assert {row.values[0] for row in ROWS} == {*RECIPES}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_reads_from_the_folder_of_data(name):
    """Paths are relative, so that a recipe runs wherever the data were put."""
    recipe = as_written(EXAMPLES / name)
    assert recipe.output_dir.startswith("runs/")
    for spec in [*recipe.data.train, *recipe.data.valid, *(recipe.data.test or [])]:
        assert all(path.parts[0] == "data" for path in (*spec.files, *map(Path, filter(None, [spec.audio_folder]))))


@pytest.mark.parametrize("name", slow_except(QUICK, RECIPES))
def test_recipe_trains_at_reduced_size(name, tmp_path):
    recipe = load_recipe(EXAMPLES / name, reduced(yaml.safe_load((EXAMPLES / name).read_text("utf-8")), tmp_path))
    metrics = train(recipe)
    assert metrics["updates"] == 3
    config = AutoConfig.from_pretrained(tmp_path / "run" / "model")
    full = as_written(EXAMPLES / name).build_config()
    assert config.d_model == 32
    assert config.language_tags == recipe.data.language_tags
    assert [config.of(s).ln_mode for s in config.stacks] == [full.of(s).ln_mode for s in full.stacks]
    assert list((tmp_path / "run" / "model").glob("*.safetensors"))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    if recipe.training.tokens_per_update is not None:
        assert record["tokens_per_update"] == recipe.training.tokens_per_update
    split = metrics["test" if recipe.data.test else "valid"]
    directions = len(recipe.data.test or []) * (2 if recipe.data.bidirectional else 1)
    assert len(split.get("corpora", {})) == (directions if len(recipe.data.test or []) > 1 else 0)
    score = {"language_modeling": "word_ppl", "speech_recognition": "wer"}.get(recipe.task, "bleu")
    assert split["nll"] > 0 and score in split
    assert ("tokenized_bleu" in split) == (recipe.data.pretokenized == "moses")


class Vocabulary:
    """What building a model asks of a tokenizer with as many entries as a recipe says."""

    pad_token_id, bos_token_id, eos_token_id = 1, 0, 2

    def __init__(self, recipe):
        self.size = recipe.tokenizer.vocab_size
        if not recipe.tokenizer.joint:
            self.target_vocab_size = self.size
            self.target_tokenizer = SimpleNamespace(get_vocab=lambda: {"target": 0})

    def get_vocab(self):
        return {"source": 0}

    def __len__(self):
        return self.size


def reduced(content, folder):
    """Overrides with which a recipe trains for seconds, on generated text in its format and languages."""
    data, training = content["data"], content["training"]
    is_text = content.get("task") == "language_modeling"
    sizes = {field: value for field, value in SMALL_MODEL.items() if not (is_text and field.startswith("encoder"))}
    overrides = {f"model.{field}": value for field, value in sizes.items()}
    for split, size in SPLITS.items():
        if split in data:
            specs = data[split] if isinstance(data[split], list) else [data[split]]
            overrides[f"data.{split}"] = [
                made_up(spec, content, folder / f"{split}{i}", size) for i, spec in enumerate(specs[:CORPORA])
            ]
    overrides |= {
        "output_dir": str(folder / "run"),
        "tokenizer.vocab_size": 360,
        "training.max_tokens": 64,
        "training.max_updates": 3,
        "training.eval_every": 3,
    }
    if is_text:
        overrides |= {"data.block_size": 20, "tokenizer": {"kind": "bpe", "vocab_size": 360}}
        overrides |= {"model.vocab_size": 360, "evaluation.context_window": 4}
    else:
        overrides |= {"decoding.max_length_a": 0.0, "decoding.max_length_b": 8}
    if content.get("task") == "speech_recognition":
        overrides |= {"training.max_tokens": 400, "data.features": str(folder / "features"), "model.conv_channels": 32}
    if "adaptive_cutoffs" in content["model"]:
        overrides["model.adaptive_cutoffs"] = [100, 270]
    if data.get("stream"):
        overrides["data.shuffle_buffer"] = 50
    if "tokens_per_update" in training:
        overrides["training.tokens_per_update"] = 2 * overrides["training.max_tokens"]
    if training.get("average"):
        overrides |= {"training.eval_every": 1, "training.average": 2}
    if training.get("precision") == "fp16" and not torch.cuda.is_available():
        overrides["training.precision"] = "bf16"  # autocast to fp16 is for GPUs
    return overrides


def made_up(spec, content, folder, size):
    """The spec with files of its names and form, but with made-up text."""
    folder.mkdir()
    languages = [spec.get(side) or content.get(side) for side in ("source_lang", "target_lang")]
    rows = sentences(size, moses=content["data"].get("pretokenized") == "moses", seed=folder.name)
    sides = [list(side) for side in zip(*rows, strict=True)]
    changed = dict(spec)
    if content.get("task") == "speech_recognition":
        manifest = write_tones(folder, size)
        if "tsv" in spec:
            return {"tsv": str(manifest)}
        for line in manifest.read_text(encoding="utf-8").splitlines():
            name, text = line.split("\t")
            (folder / name).with_suffix(".txt").write_text(text, encoding="utf-8")
        return {"audio_folder": str(folder)}
    if "dataset" in spec:
        pairs = [{"translation": dict(zip(languages, row, strict=True))} for row in rows]
        splits = {split: datasets.Dataset.from_list(pairs) for split in SPLITS_OF_DATASETS}
        datasets.DatasetDict(splits).save_to_disk(folder / "dataset")
        changed["dataset"] = str(folder / "dataset")
    for side, lines in zip(("source", "target", "text"), [*sides, sides[0]], strict=True):
        if side in spec:
            changed[side] = write(folder / Path(spec[side]).name, lines)
    return changed


def sentences(size, *, moses, seed):
    """Different pairs of a few words and the same words in reverse order."""
    dice = random.Random(seed)
    end = " &apos;s ." if moses else "'s."
    rows = []
    for number in range(size):
        words = [dice.choice(WORDS) for _ in range(dice.randint(2, 5))]
        rows.append((f"{number} {' '.join(words)}{end}", f"{' '.join(reversed(words))} {number}{end}"))
    return rows


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)
