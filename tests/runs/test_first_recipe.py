"""`residual-hf init`: splits and a recipe from two text files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import small_sizes
from support.first_recipe import write_first_recipe

from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.data.data_settings import SPLITS
from residual_hf.data.synthetic import generate_corpus
from residual_hf.runs import first_recipe, trial
from residual_hf.runs.first_corpora import language_of
from residual_hf.runs.first_recipe import choose_size
from residual_hf.runs.recipe import load_recipe
from residual_hf.runs.run import train
from residual_hf.runs.trial import Trial


def write(folder, name, lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A working directory with two text files."""
    monkeypatch.chdir(tmp_path)
    for language, lines in zip(("en", "de"), zip(*generate_corpus({"all": 400})["all"], strict=True), strict=True):
        write(tmp_path, f"corpus.{language}", lines)
    return Path("corpus.en"), Path("corpus.de")


def test_two_files_become_a_recipe_that_trains(corpus, capsys, refused, monkeypatch):
    monkeypatch.setitem(trial.TOKENS, "cpu", 64)
    assert main(["init", "corpus.en", "corpus.de", "--trial", "0.1"]) == 0
    printed = capsys.readouterr().out
    assert "data: 360 training, 20 validation and 20 test pairs" in printed
    assert "data.cleaning of the training pairs: kept 360 of 360 pairs\n" in printed
    assert "time: about" in printed and "tokens per second" in printed and "GB free" in printed
    assert "warning: the text" not in printed
    assert "warning: 360 training pairs are too few" in printed
    assert printed.splitlines()[-1] == "next: residual-hf train en-de/recipe.yaml"
    overrides = {f"model.{name}": value for name, value in small_sizes().items()}
    overrides |= {"training.max_updates": 2, "training.warmup_updates": 1, "decoding.max_length_a": 0.0}
    overrides |= {"decoding.max_length_b": 8, "training.eval_every": 2}
    recipe = load_recipe("en-de/recipe.yaml", overrides)
    Path("en-de").rename("moved")
    assert recipe.output_dir == "en-de/run" and recipe.data.train[0].source == "en-de/train.en"
    recipe = load_recipe("moved/recipe.yaml", overrides)
    assert train(recipe)["updates"] == 2 and Path("moved/run/model").is_dir()
    Path("moved").rename("en-de")
    refused("en-de exists and is not empty; use --overwrite", "init", "corpus.en", "corpus.de")
    shutil.rmtree("en-de/run")
    for name in ("glossary.tsv", "train.glossary.tsv"):
        Path("en-de", name).touch()
        refused(f"en-de holds {name}, which init did not write", "init", "corpus.en", "corpus.de", "--overwrite")
        Path("en-de", name).unlink()


def test_a_file_of_pairs_becomes_a_recipe(corpus, capsys, refused):
    pairs = list(zip(*(path.read_text().splitlines() for path in corpus), strict=True))
    Path("p.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    refused("--source-lang: missing, p.tsv does not end in a language code", "init", "p.tsv", "--trial", "0")
    Path("corpus.out").write_bytes(corpus[1].read_bytes())
    message = "--target-lang: missing, corpus.out does not end in a language code"
    refused(message, "init", "corpus.en", "corpus.out", "--trial", "0")
    Path("p.jsonl").write_text(json.dumps(dict.fromkeys(("en", "de", "fr"), "x")))
    refused("--source-lang: missing, p.jsonl has en, de, fr", "init", "p.jsonl", "--target-lang", "de")
    assert main(["init", "p.tsv", "--source-lang", "en", "--target-lang", "de", "--trial", "0"]) == 0
    assert "data: 360 training, 20 validation and 20 test pairs" in capsys.readouterr().out
    lines = [json.dumps({"text": source, "into": target + "\nline"}) for source, target in pairs]
    Path("p.de-en.jsonl").write_text("\n".join(lines))
    columns = ["--source-column", "into", "--target-column", "text"]
    assert main(["init", "p.de-en.jsonl", *columns, "--trial", "0"]) == 0
    lines = Path("de-en/train.de").read_text().splitlines()
    assert len(lines) == 360 and all(line.endswith(" line") for line in lines)


def test_a_language_without_spaces_gets_a_unigram_vocabulary_for_its_alphabet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    characters = [chr(0x4E00 + i) for i in range(2500)]
    write(tmp_path, "text.zh", ["".join(characters[i * 7 % 2500 : i * 7 % 2500 + 12]) for i in range(400)])
    write(tmp_path, "text.en", [f"sentence number {i} of the text" for i in range(400)])
    plan = write_first_recipe(Path("text.zh"), Path("text.en"), trial_seconds=0)
    tokenizer = load_recipe(plan.recipe).tokenizer
    assert tokenizer.kind == "unigram" and 2760 < tokenizer.vocab_size < 8000  # what so little text yields
    assert choose_size(400, plan.device).vocab_size == 4000
    assert plan.trial is None and "time:" not in str(plan)


def test_documents_are_refused(corpus):
    for file in corpus:
        lines = file.read_text().split("\n")
        file.write_text("".join(" ".join(lines[i : i + 100]) + "\n" for i in range(40)))
    with pytest.raises(
        InputError, match=r"corpus.en: its lines have \d+ tokens on average, must be sentences of <= 512"
    ):
        write_first_recipe(*corpus, trial_seconds=0)


def test_the_vocabulary_is_what_the_text_yields_and_disk_needs_no_trial(corpus):
    """Of text whose sides are shifted, which the report says."""
    lines = corpus[1].read_text().splitlines()
    write(Path(), corpus[1], [*lines[1:], lines[0]])
    plan = write_first_recipe(*corpus, Path("my corpus: {a, b} #1"), trial_seconds=0)
    assert "warning: the text: the sides are not aligned in 2 of 2 blocks of 200 pairs" in str(plan)
    assert 1000 < plan.size.vocab_size < 4000
    assert plan.parameters > 10**6 and plan.disk > 12 * plan.parameters
    recipe = load_recipe(plan.recipe)
    assert recipe.tokenizer.vocab_size == plan.size.vocab_size
    assert recipe.output_dir == "my corpus: {a, b} #1/run" and all(
        file.exists() for file in recipe.data.train[0].files
    )


@pytest.mark.parametrize(("name", "language"), [("a.de", "de"), ("b.en-pt_BR.pt_BR.gz", "pt_BR"), ("c.zh", "zh")])
def test_language_of_a_file_name(name, language):
    assert language_of(Path(name), "--source-lang") == language


@pytest.mark.parametrize("name", ["corpus.txt", "corpus", "a.gz", "corpus.src"])
def test_file_name_without_a_language(name):
    with pytest.raises(InputError, match=f"--source-lang: missing, {name} does not end in"):
        language_of(Path(name), "--source-lang")


@pytest.mark.parametrize(
    ("options", "languages"),
    [
        ({}, ("en", "de")),
        ({"source_lang": "de"}, ("de", "en")),
        ({"target_lang": "en"}, ("de", "en")),
        ({"source_lang": "en-US"}, ("en-US", "de")),
        ({"source_lang": "English", "target_lang": "German"}, ("en", "de")),
    ],
)
def test_languages_that_a_table_names_in_any_case(tmp_path, options, languages):
    rows = ["EN-US,DE", *(f"one {i},eins {i}" for i in range(40)), *["two,zwei"] * 3]
    write(tmp_path, "memory.csv", rows)
    plan = write_first_recipe(tmp_path / "memory.csv", folder=tmp_path / "out", trial_seconds=0, **options)
    recipe = load_recipe(plan.recipe)
    assert (recipe.source_lang, recipe.target_lang) == languages
    pairs = plan.split.train
    assert f"kept {pairs - 2} of {pairs} pairs; dropped: 2 duplicate" in str(plan)  # as `train` will
    first = "eins" if languages[0] == "de" else "one"
    assert (tmp_path / "out" / f"train.{languages[0]}").read_text().startswith(first)


def test_several_files_of_pairs_become_one_corpus(tmp_path, monkeypatch, capsys):
    pytest.importorskip("lxml", reason="the extra [documents] is not installed")
    monkeypatch.chdir(tmp_path)
    sides = [(f"one {i}", f"eins {i}") for i in range(60)]
    write(tmp_path, "a.csv", ["en,de", *map(",".join, sides[:20])])
    variants = '<tu><tuv xml:lang="de"><seg>{1}</seg></tuv><tuv xml:lang="en"><seg>{0}</seg></tuv></tu>'
    write(tmp_path, "b.tmx", ["<tmx>", *(variants.format(*pair) for pair in sides[20:40]), "</tmx>"])
    unit = "<trans-unit><source>{1}</source><target>{0}</target></trans-unit>"
    units = (unit.format(*pair) for pair in sides[40:])
    write(tmp_path, "c.xlf", ['<xliff><file source-language="de" target-language="en">', *units, "</file></xliff>"])
    assert main(["init", "a.csv", "b.tmx", "c.xlf", "--trial", "0"]) == 0
    assert "data: 54 training, 3 validation and 3 test pairs" in capsys.readouterr().out
    lines = (Path("en-de", f"{split}.{code}").read_text().splitlines() for code in ("en", "de") for split in SPLITS)
    english, german = (sorted(line for _ in SPLITS for line in next(lines)) for _ in range(2))
    assert [english, german] == [sorted(side) for side in zip(*sides, strict=True)]


def test_days_on_a_cpu_are_warned_about(corpus):
    plan = write_first_recipe(*corpus, trial_seconds=0)
    slow = replace(plan, device="cpu", trial=Trial(10.0, 10**9, 5.0), free=0, disk=10**9)
    assert "warning: training takes about" in str(slow) and "--set training.max_updates=" in str(slow)
    assert "warning: the run needs about 1.0 GB of disk, but 0.0 GB are free" in str(slow)
    fast = replace(slow, trial=Trial(1e6, None, 5.0), free=10**12)
    fast = replace(fast, split=replace(fast.split, train=10_000))
    assert "warning" not in str(fast)


def test_larger_corpora_get_larger_models():
    for sizes in (first_recipe.CPU_SIZES, first_recipe.GPU_SIZES):
        assert [size.pairs for size in sizes] == sorted({size.pairs for size in sizes})
    assert choose_size(10**7, "cuda").vocab_size > choose_size(10**5, "cuda").vocab_size
    assert choose_size(10**5, "cpu").decoder_layers < choose_size(10**5, "cuda").decoder_layers
