"""The scripts of examples/translation, for some steps on a handful of sentences."""

import math
import re

import pytest
import torch
from support import ROOT, small_sizes
from support.example_scripts import ENGLISH, GERMAN, run
from support.foreign_models import foreign_model, model_of_two_vocabularies
from support.processes import run_here
from support.tiny_translator import save_tiny, tiny_tokenizer
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    pipeline,
)

SIDES = ("input_ids", "labels")
STEPS = ("--max-steps", 8, "--batch-size", 8, "--lr", 0.01)


@pytest.fixture
def text(tmp_path):
    for language, lines in (("en", ENGLISH), ("de", GERMAN)):
        (tmp_path / f"text.{language}").write_text("\n".join(lines * 8) + "\n", encoding="utf-8")
    return [tmp_path / "text.en", tmp_path / "text.de"]


def base(folder, **fields):
    save_tiny(folder, dropout=0.0, **fields)
    return folder


def losses(output):
    return [float(value) for value in re.findall(r"'eval_loss': '?([\d.]+)", output)]


def check_training(output):
    """The loss falls, and the model that is kept is one of those evaluated: that of the best BLEU, not of the last."""
    *evaluated, kept = losses(output)
    assert evaluated[-1] < evaluated[0]
    assert any(kept == pytest.approx(loss, abs=1e-3) for loss in evaluated)


def test_lora_trains_a_part_and_leaves_an_adapter_and_a_merged_model(tmp_path, text):
    model = base(tmp_path / "base")
    arguments = ("--model", model, "--train", *text, "--valid", *text, "--output-dir", tmp_path / "out", *STEPS)
    output = run("translation/lora.py", *arguments, "--rank", 4)
    assert 0 < float(re.search(r"trainable%: ([\d.]+)", output)[1]) < 60
    check_training(output)
    assert (tmp_path / "out/adapter/adapter_model.safetensors").exists()
    old, new = (AutoModelForSeq2SeqLM.from_pretrained(f).state_dict() for f in (model, tmp_path / "out/model"))
    changed = {name for name, tensor in old.items() if not torch.equal(tensor, new[name])}
    assert old.keys() == new.keys() and changed
    assert all(re.search(r"(_proj|fc\d)\.weight$", name) for name in changed)
    assert pipeline("translation", model=str(tmp_path / "out/model"))(ENGLISH[0], max_new_tokens=8)


def test_a_language_is_added_and_the_old_one_kept(tmp_path, text):
    english, german = text
    model = base(tmp_path / "base", branch_warmup={"updates": 4})
    output = run(
        "translation/add_language.py",
        *("--model", model, "--language", "en", "--keep", "de", english, german),
        *("--train", german, english, "--valid", german, english, "--output-dir", tmp_path / "out", *STEPS),
    )
    check_training(output)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    tags = tokenizer.convert_tokens_to_ids(["<2en>", "<2de>"])
    assert tokenizer(f"<2en> {GERMAN[0]}")["input_ids"][0] == tags[0]
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    assert model.config.vocab_size == len(tokenizer) == max(tags) + 1
    assert all(layer.branch_warmup.is_finished for layer in model.model.encoder.layers)
    translate = pipeline("translation", model=str(tmp_path / "out"), max_new_tokens=8)
    assert translate(GERMAN[0], tgt_lang="en") and translate(ENGLISH[0], tgt_lang="de")
    with pytest.raises(ValueError, match="does not translate any to fr"):
        translate(ENGLISH[0], tgt_lang="fr")


def test_a_model_is_tuned_and_after_a_change_of_mode_goes_on_from_equal_loss(tmp_path, text):
    arguments = ("--train", *text, "--valid", *text, *STEPS)
    first = run(
        "translation/finetune.py",
        *("--model", base(tmp_path / "base", ln_mode="post_ln"), "--output-dir", tmp_path / "post_ln", *arguments),
    )
    check_training(first)
    assert losses(first)[0] < math.log(len(tiny_tokenizer())) + 1
    assert pipeline("translation", model=str(tmp_path / "post_ln"))(ENGLISH[0], max_new_tokens=8)
    output = run(
        "translation/change_mode.py",
        *("--model", tmp_path / "post_ln", "--ln-mode", "resi_dual", "--ln-mode-options", '{"dual_scale": 0.5}'),
        *("--output-dir", tmp_path / "resi_dual", *arguments),
    )
    assert losses(output)[0] == pytest.approx(losses(first)[-1], rel=1e-4)
    check_training(output)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "resi_dual")
    assert model.config.of("encoder").options.dual_scale == 0.5
    assert all(stack.boundary.norm.weight.any() for stack in (model.model.encoder, model.model.decoder))


def test_new_weights_keep_the_search_of_the_model(tmp_path, text):
    model = base(tmp_path / "base")
    GenerationConfig(num_beams=2, max_length_a=1.5, max_length_b=7).save_pretrained(model)
    arguments = ("--train", *text, "--valid", *text, *STEPS, "--from-scratch")
    run("translation/finetune.py", "--model", model, "--output-dir", tmp_path / "out", *arguments)
    saved = GenerationConfig.from_pretrained(tmp_path / "out")
    assert (saved.num_beams, saved.max_length_a, saved.max_length_b) == (2, 1.5, 7)


def test_a_marian_model_goes_on_as_resi_dual(tmp_path, text):
    tokenizer = tiny_tokenizer()
    sizes = {**small_sizes(), "max_position_embeddings": 64}
    tokens = {"pad_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2, "decoder_start_token_id": 1}
    marian = MarianMTModel(MarianConfig(vocab_size=len(tokenizer), dropout=0.0, **sizes, **tokens))
    marian.save_pretrained(tmp_path / "marian")
    tokenizer.save_pretrained(tmp_path / "marian")
    output = run(
        "translation/change_mode.py",
        *("--model", tmp_path / "marian", "--ln-mode", "resi_dual", "--output-dir", tmp_path / "out"),
        *("--train", *text, "--valid", *text, *STEPS),
    )
    check_training(output)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").config.model_type == "residual"


def test_a_model_with_codes_of_languages_is_tuned_with_them(tmp_path, text, monkeypatch):
    """Its file is in half precision, which would not train."""
    folder = foreign_model("nllb", tmp_path / "nllb")
    AutoModelForSeq2SeqLM.from_pretrained(folder).half().save_pretrained(folder)
    seen = []
    monkeypatch.setattr(Seq2SeqTrainer, "train", lambda trainer: seen.append(trainer))
    arguments = ("--model", folder, "--train", *text, "--valid", *text, "--output-dir", tmp_path / "out", *STEPS)
    done = run_here(ROOT / "examples/translation/finetune.py", *arguments)
    assert "--target-lang: missing" in str(done.returncode)
    run("translation/finetune.py", *arguments, "--source-lang", "en", "--target-lang", "de")
    (trainer,) = seen
    names = [trainer.processing_class.convert_ids_to_tokens(trainer.train_dataset[0][side][0]) for side in SIDES]
    assert names == ["eng_Latn", "deu_Latn"] and trainer.model.dtype == torch.float32
    saved = AutoTokenizer.from_pretrained(tmp_path / "out")
    forced = GenerationConfig.from_pretrained(tmp_path / "out").forced_bos_token_id
    assert saved.convert_ids_to_tokens(forced) == saved.tgt_lang == "deu_Latn"
    mbart = (
        "--model",
        foreign_model("mbart", tmp_path / "mbart"),
        *arguments[2 : -len(STEPS) - 1],
        tmp_path / "mb",
        *STEPS,
    )
    run("translation/change_mode.py", *mbart, "--source-lang", "en", "--target-lang", "de", "--ln-mode", "layer_scale")
    start = GenerationConfig.from_pretrained(tmp_path / "mb").decoder_start_token_id
    assert AutoTokenizer.from_pretrained(tmp_path / "mb").convert_ids_to_tokens(start) == "de_DE"


def test_targets_are_read_by_their_own_vocabulary_and_long_pairs_left_out(tmp_path, text, monkeypatch):
    pytest.importorskip("sacremoses", reason="the extra [moses] is not installed")
    folder, _ = model_of_two_vocabularies("fsmt", tmp_path / "fsmt", "target")
    seen = []
    monkeypatch.setattr(Seq2SeqTrainer, "train", lambda trainer: seen.append(trainer))
    for file, line in zip(text, ("a", "Hund " * 80), strict=True):
        file.write_text(f"a dog\n{line}\n")
    output = run(
        "translation/finetune.py",
        *("--model", folder, "--train", *text, "--valid", *text, "--output-dir", tmp_path / "out", *STEPS),
    )
    assert "1 of 2 pairs have at most" in output
    (trainer,) = seen
    assert trainer.processing_class.decode(trainer.train_dataset[0]["labels"], skip_special_tokens=True) == "a dog"


def test_a_domain_is_written(tmp_path):
    run("translation/make_domain.py", tmp_path / "headlines", "--pairs", 200)
    english, german = ((tmp_path / f"headlines/train.{code}").read_text().splitlines() for code in ("en", "de"))
    assert len(english) == len(german) == 200
    assert all(line.startswith("+++ ") and line.endswith(" +++") for line in german)
