"""Training that starts from a model of another family: NLLB, M2M100, mBART, Marian, FSMT."""

import re
from dataclasses import replace

import pytest
import torch
from support.foreign_models import FAMILIES, foreign_model, foreign_tokenizer, model_of_two_vocabularies
from support.recipes import changed, make_recipe
from support.slow import slow_except
from support.tiny_translator import SENTENCES
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.encoding import encode_corpus
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.translator import Translator
from residual_hf.model.alignment import token_spans
from residual_hf.model.options import from_mapping
from residual_hf.runs.building import build_model
from residual_hf.runs.recipe import Recipe
from residual_hf.runs.run import train
from residual_hf.runs.warm_start import load_start

CODES = {"nllb": ("eng_Latn", "deu_Latn"), "m2m100": ("en", "de"), "mbart": ("en_XX", "de_DE")}
CODES["mbart50"] = CODES["mbart"]
SMALL = {"max_updates": 2, "eval_every": 1, "warmup_updates": 1, "keep_last": 1}


def recipe_from(tmp_path, base, **training):
    recipe = make_recipe(tmp_path / "data", **SMALL | training)
    return replace(recipe, model={"from": str(base)}, tokenizer=TokenizerSettings(path=str(base)))


@pytest.mark.parametrize("family", slow_except(("marian", "nllb"), FAMILIES))
def test_it_is_trained_validated_and_translates_with_the_codes_of_its_languages(tmp_path, family):
    base = foreign_model(family, tmp_path / "base")
    original, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    batch = tokenizer(["a small dog", "a dog"], padding=True, return_tensors="pt")
    start = load_start(str(base), {}).model.eval()
    inputs = {**batch, "decoder_input_ids": batch["input_ids"][:1].expand(2, -1)}  # without padding
    with torch.no_grad():
        torch.testing.assert_close(start(**inputs).logits, original.eval()(**inputs).logits, rtol=0, atol=1e-5)
    recipe = recipe_from(tmp_path, base)
    train(changed(recipe, "training", max_updates=1))
    train(recipe, resume=True)
    run = tmp_path / "data" / "run"
    translator = Translator.from_pretrained(run)
    sources, found = ((run / f"test.{kind}.txt").read_text().splitlines() for kind in ("sources", "hypotheses"))
    assert translator.translate(sources) == translator.translate(sources, source_lang="en", target_lang="de") == found
    ids, arguments = translator.encode([sources[0]])
    if family not in CODES:
        return
    source, target = CODES[family]
    assert translator.encode([sources[0]], source, target) == (ids, arguments)
    assert Translator(original, tokenizer).encode([sources[0]], source, target)[0] == ids
    code = translator.tokenizer.convert_tokens_to_ids("__de__" if family == "m2m100" else target)
    labels = translator.tokenizer(text_target="a")["input_ids"]
    model, is_first = translator.model, labels[0] == code
    written = model.generate(torch.tensor(ids), max_new_tokens=3)[0].tolist()
    assert written.index(code) == int(is_first)
    assert arguments == ({"forced_bos_token_id": code} if is_first else {})
    assert model.prepare_decoder_input_ids_from_labels(torch.tensor([labels]))[0, 0] == written[0]


def test_the_length_limit_is_that_of_the_recipe(tmp_path):
    base = foreign_model("marian", tmp_path / "base")
    generation = GenerationConfig.from_pretrained(base)
    generation.max_length = 30
    generation.save_pretrained(base)
    recipe = changed(recipe_from(tmp_path, base), "decoding", max_length_a=2.0, max_length_b=40)
    model = build_model(recipe, AutoTokenizer.from_pretrained(base), load_start(str(base), {}))
    settings = DecodingSettings.of_model(model, {})
    assert (settings.max_length_a, settings.max_length_b) == (2.0, 40)


def test_rows_of_codes_are_kept_and_those_that_no_token_has_are_dropped(tmp_path):
    base = foreign_model("m2m100", tmp_path / "base")
    recipe = recipe_from(tmp_path, base, freeze=["*embed_tokens*"], eval_bleu=False)
    train(recipe)
    before = AutoModelForSeq2SeqLM.from_pretrained(base).get_input_embeddings().weight
    after = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "data" / "run" / "model").get_input_embeddings().weight
    assert len(after) == len(before) - 3 and torch.equal(after, before[: len(after)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"bidirectional": True, "language_tags": "target"}},
            "a M2M100Tokenizer, which adds codes.*only supported for one pair of languages without tags, not with",
        ),
        ({"data": {"language_tags": "source"}}, "not with data.language_tags"),
        ({"target_lang": "xx"}, "no code for the language 'xx'; it has af, am, "),
    ],
)
def test_what_the_codes_cannot_express_is_refused_before_the_folder_is_made(tmp_path, changes, message):
    foreign_tokenizer("m2m100", tmp_path).save_pretrained(tmp_path / "base")
    values = make_recipe(tmp_path / "data").as_dict()
    for split in ("train", "valid", "test"):
        for name in ("source_lang", "target_lang"):
            values["data"][split].pop(name)
    values["data"] |= changes.pop("data", {})
    recipe = from_mapping(Recipe, values | changes | {"tokenizer": {"path": str(tmp_path / "base")}})
    with pytest.raises(InputError, match=message):
        train(recipe)
    assert not (tmp_path / "data" / "run").exists()


@pytest.mark.parametrize("larger", ["source", "target"])
@pytest.mark.parametrize("family", ["fsmt", "marian"])
def test_each_side_has_its_own_vocabulary(tmp_path, family, larger):
    if family == "fsmt":
        pytest.importorskip("sacremoses", reason="the extra [moses] is not installed")
    base, sizes = model_of_two_vocabularies(family, tmp_path / "base", larger)
    train(recipe_from(tmp_path, base, max_updates=1, eval_bleu=False))
    run = tmp_path / "data" / "run"
    translator = Translator.from_pretrained(run)
    stacks = translator.model.model
    rows = [len(stacks.get_submodule(stack).embed_tokens.weight) for stack in ("encoder", "decoder")]
    assert rows == [sizes["source"], sizes["target"]] and len(translator.model.lm_head.weight) == sizes["target"]
    for tokenizer in (translator.tokenizer, AutoTokenizer.from_pretrained(run / "tokenizer")):
        row = encode_corpus(ParallelCorpus(SENTENCES[1::2], SENTENCES[::2], "two"), tokenizer)[0]
        source, target = row["input_ids"].tolist(), row["labels"].tolist()
        assert tokenizer.decode(target, skip_special_tokens=True) == SENTENCES[0]
        assert [*translator.inputs.target_ids(SENTENCES[:1])[0], tokenizer.eos_token_id] == target
        assert translator.encode(SENTENCES[1:2])[0] == [source] and source == tokenizer(SENTENCES[1])["input_ids"]
        ends = {match.end() for match in re.finditer(r"\w+", SENTENCES[1])}
        assert ends <= {*token_spans(tokenizer, source, SENTENCES[1])[:, 1].tolist()}


def test_tokens_cannot_be_added_to_one_of_two_vocabularies(tmp_path):
    base, _ = model_of_two_vocabularies("marian", tmp_path / "base", "target")
    with pytest.raises(InputError, match=r"tokenizer\.path: .*base has no entry <\w+>, and none can be added"):
        train(changed(recipe_from(tmp_path, base), "data", placeholders=True))


def test_another_family_is_refused_by_name(tmp_path):
    base = tmp_path / "t5"
    foreign_tokenizer("m2m100", tmp_path).save_pretrained(base)
    T5ForConditionalGeneration(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1)).save_pretrained(base)
    with pytest.raises(InputError, match=r"model\.from: .*t5: model: a T5For.*must be one of MarianMTModel"):
        load_start(str(base), {})
