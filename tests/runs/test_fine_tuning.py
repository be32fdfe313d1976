"""`residual-hf init --from`: a recipe that starts from a trained model."""

from pathlib import Path

import pytest
import yaml
from support.first_recipe import write_first_recipe
from support.foreign_models import foreign_model, model_of_two_vocabularies
from support.tiny_translator import SENTENCES, save_tiny, tiny_model, tiny_tokenizer
from transformers import AutoTokenizer

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import save_checkpoint
from residual_hf.cli import main
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.data.synthetic import generate_corpus
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.runs import fine_tuning
from residual_hf.runs.recipe import load_recipe
from residual_hf.runs.run import train


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A working directory with two text files, and a model from en to de with a vocabulary of this text in `base`."""
    monkeypatch.chdir(tmp_path)
    sides = zip(*generate_corpus({"all": 400})["all"], strict=True)
    lines = {language: list(side) for language, side in zip(("en", "de"), sides, strict=True)}
    for language, side in lines.items():
        Path(f"corpus.{language}").write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    tokenizer = train_tokenizer([*lines["en"], *lines["de"]], TokenizerSettings(vocab_size=1300))
    save_checkpoint(tiny_model(tokenizer, source_lang="en", target_lang="de"), tokenizer, tmp_path / "base")
    return tmp_path


def proposed(start="base", **options):
    plan = write_first_recipe(
        Path("corpus.en"), Path("corpus.de"), Path("out"), start=start, trial_seconds=0, **options
    )
    return plan, yaml.safe_load(plan.recipe.read_text(encoding="utf-8"))


def test_a_model_of_these_languages_keeps_its_vocabulary_and_learns_slowly(base, capsys):
    assert main(["init", "corpus.en", "corpus.de", "--from", "base", "--trial", "0.1"]) == 0
    printed = capsys.readouterr().out
    assert "start: base with its vocabulary; all weights at a learning rate of 0.0002" in printed
    assert "model: 1+1 layers of width 16" in printed and "too few" not in printed and "time: about" in printed
    overrides = {"training.max_updates": 2, "training.warmup_updates": 1, "training.eval_every": 2}
    recipe = load_recipe("en-de/recipe.yaml", overrides | {"decoding.max_length_a": 0.0, "decoding.max_length_b": 8})
    base = str(Path("base").resolve())  # the folder of the recipe can be moved
    assert recipe.model == {"from": base, "dropout": 0.1} and recipe.tokenizer.path == base
    assert train(recipe)["updates"] == 2


def test_codes_and_tags_say_whether_a_model_knows_the_language(base):
    rates = []
    for name, fields in {"iso": {"source_lang": "eng", "target_lang": "deu"}, "tags": {}}.items():
        tokenizer = tiny_tokenizer(*["<2fr>", "<2es>"][: 2 * (name == "tags")])
        save_checkpoint(tiny_model(tokenizer, **fields), tokenizer, base / name)
        specs = (CorpusSpec(source="corpus.en", target="corpus.de"),)
        texts = ParallelCorpus(SENTENCES, SENTENCES, "train")
        data = DataSettings(train=specs, valid=specs)
        rates.append(fine_tuning.propose(str(base / name), ("en", "de"), data, texts, tokenizer).lr)
    assert rates == [2e-4, 1e-3]


def test_another_language_and_a_vocabulary_that_does_not_fit_are_learned_fast(base):
    _, recipe = proposed(target_lang="nl")
    assert "tokenizer" not in recipe and recipe["training"]["lr"] == 1e-3
    save_tiny(base / "other")
    plan, recipe = proposed("other", overwrite=True)
    assert recipe["tokenizer"]["vocab_size"] == plan.size.vocab_size and recipe["training"]["lr"] == 1e-3
    assert "start: other with a new vocabulary" in str(plan)


@pytest.mark.parametrize(("tokens", "unknown", "kept"), [(125, 0, True), (126, 0, False), (100, 1, False)])
def test_a_vocabulary_that_takes_a_quarter_more_tokens_is_exchanged(tokens, unknown, kept):
    class Tokenizer:
        unk_token_id = 0

        def __init__(self, ids):
            self.ids = ids

        def __call__(self, **texts):
            return {"input_ids": [self.ids]}

    sample = ParallelCorpus(["a dog"], ["ein Hund"], "two lines", "en", "de")
    own = Tokenizer([0] * unknown + [5] * (tokens - unknown))
    assert fine_tuning.serves(own, sample, Tokenizer([5] * 100)) == kept


def test_targets_are_counted_with_their_own_vocabulary(tmp_path):
    pytest.importorskip("sacremoses", reason="the extra [moses] is not installed")
    tokenizer = AutoTokenizer.from_pretrained(model_of_two_vocabularies("fsmt", tmp_path / "fsmt", "target")[0])
    sample = ParallelCorpus(SENTENCES[1::2], SENTENCES[::2], "two lines", "en", "de")
    assert fine_tuning.serves(tokenizer, sample, tokenizer)


def test_a_vocabulary_that_cannot_be_exchanged_is_kept_with_a_warning(base, caplog):
    foreign_model("marian", base / "marian")
    plan, recipe = proposed("marian")
    assert "start: marian with its vocabulary" in str(plan) and "tokenizer" not in recipe
    assert "the vocabulary of marian does not know this text well" in caplog.text


def test_a_model_that_is_large_for_the_memory_gets_adapters(base, monkeypatch):
    monkeypatch.setattr(fine_tuning, "memory", lambda: 10**5)
    plan, recipe = proposed()
    assert recipe["training"]["lora"]["r"] == 16 and recipe["training"]["lr"] == 1e-3
    assert "also" not in recipe["training"]["lora"] and load_recipe(plan.recipe).training.lora.alpha == 32
    assert "adapters (LoRA)" in str(plan)
    save_tiny(base / "other")
    _, recipe = proposed("other", overwrite=True)
    assert recipe["training"]["lora"]["also"] == ["*embed_tokens*"]


def test_the_codes_of_nllb_are_kept_and_its_large_table_is_frozen(base, monkeypatch):
    foreign_model("nllb", base / "nllb")
    monkeypatch.setattr(fine_tuning, "serves", lambda *_: True)
    plan, recipe = proposed("nllb")
    assert "tokenizer" not in recipe and recipe["training"]["freeze"] == ["*embed_tokens*"]
    assert load_recipe(plan.recipe).training.freeze == ("*embed_tokens*",)
    _, recipe = proposed("nllb", target_lang="xx", overwrite=True)  # no code for it
    assert "tokenizer" in recipe and "freeze" not in recipe["training"]


def test_tags_of_the_model_are_kept(base):
    save_tiny(base / "tagged", "<2de>", language_tags="source")
    assert proposed("tagged")[1]["data"]["language_tags"] == "source"


@pytest.mark.parametrize(("model", "start"), [("model", "run"), ("checkpoints/1", "run/checkpoints/1")])
def test_what_the_model_learned_with_is_in_the_recipe(model, start, base, caplog):
    save_tiny(base / "run" / model, placeholders=True, term_tags=True)
    (base / "terms").write_text("dog\tHund\n")
    (base / "run" / "recipe.yaml").write_text("data: {glossary: terms}\n")
    write_first_recipe(Path("corpus.en"), Path("corpus.de"), Path("out"), start=start, trial_seconds=0.1)
    recipe = load_recipe("out/recipe.yaml")
    assert recipe.data.placeholders and recipe.data.glossary == str((base / "terms").resolve())
    assert "missing, but the model of model.from was trained with it" not in caplog.text


def test_what_cannot_be_trained_is_refused(base):
    foreign_model("m2m100", base / "m2m100")
    with pytest.raises(InputError, match="--from: m2m100: its M2M100Tokenizer has no code for one of the languages"):
        proposed("m2m100", target_lang="xy")
    with pytest.raises(InputError, match="model nothing: no such folder"):
        proposed("nothing")
    assert not Path("out").exists()
