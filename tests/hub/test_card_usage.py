import re

import pytest
from huggingface_hub import ModelCard
from support import ROOT
from support.finished_run import content, corpus, edit_json, edit_recipe
from support.processes import run_without_the_package
from support.tiny_translator import coded_tokenizer, tiny_model, tiny_tokenizer

from residual_hf import ResidualConfig, ResidualForMaskedLM
from residual_hf.hub.card import write_card
from residual_hf.hub.plain_card import save_with_card


def test_every_way_of_use_runs(make_run, monkeypatch, capsys):
    """Next to a folder of the model's name; the first two, and that of the front page, without residual_hf."""
    run = make_run()
    card = content(write_card(run, model_name="small"))
    (run / "model").rename(run / "small")
    (run / "residual_hf_quickstart").mkdir()
    (run / "residual_hf_quickstart" / "model").symlink_to(run / "small")
    *of_transformers, ours = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(of_transformers) == 2
    (call,) = re.findall(r"`(pipeline\(.*trust_remote_code=True\))`", (ROOT / "README.md").read_text())
    script = "\n".join([*of_transformers, f"print({call}('The owl calls the bear.', max_new_tokens=8))"])
    done = run_without_the_package(script, cwd=run)
    *others, last = done.stdout.splitlines()
    assert len(others) == 2 and "translation_text" in last
    monkeypatch.chdir(run)
    exec(ours, {})
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("side", "call", "sentence"),
    [
        ("source", "max_new_tokens=64)", "<2en> A sentence"),
        ("target", 'tokenizer(text_target="<2en>", add_special_tokens=False)["input_ids"][-1])', "A sentence"),
    ],
)
def test_use_of_a_multilingual_model(make_run, side, call, sentence):
    run = make_run()
    edit_json(run / "model" / "config.json", language_tags=side)
    card = content(write_card(run))
    assert 'tgt_lang="en"))' in card and 'target_lang="en"))' in card
    assert call in card and f'tokenizer(["{sentence} in German."]' in card


def test_card_of_a_model_for_headlines(make_run):
    run = make_run()
    edit_recipe(run, lambda recipe: recipe.update(task="summarization", language="en"))
    english = {split: [corpus(split, source_lang="en")] for split in ("train", "test")}
    edit_json(run / "run.json", data=english)
    path = write_card(run)
    data = ModelCard.load(path).data
    assert (data.pipeline_tag, data.language) == ("summarization", ["en"])
    assert {result.task_name for result in data.eval_results} == {"Summarization en-en"}
    card = content(path)
    assert "Summarizes text in English: a Transformer" in card and "translat" not in usage_of(card)
    assert 'summarize = pipeline("summarization", model="run"' in card


@pytest.mark.parametrize(
    ("fields", "tags", "shown"),
    [
        ({"language_tags": "source"}, ("<2fr>", "<2de>"), ['tgt_lang="de"', "- de", "- fr", "pipeline_tag: transl"]),
        ({"source_lang": "en", "target_lang": "en"}, (), ["Summarizes text in English.", "_tag: summarization"]),
    ],
    ids=["multilingual", "summarization"],
)
def test_card_of_an_averaged_model(tmp_path, fields, tags, shown):
    tokenizer = tiny_tokenizer(*tags)
    folder = save_with_card(tiny_model(tokenizer, **fields), tokenizer, tmp_path / "model", "An average.")
    card = content(folder / "README.md")
    assert all(text in card for text in shown)


def test_card_of_an_encoder(tmp_path):
    tokenizer = tiny_tokenizer()
    config = ResidualConfig(is_encoder_only=True, vocab_size=len(tokenizer), d_model=16, encoder_layers=1)
    folder = save_with_card(ResidualForMaskedLM(config), tokenizer, tmp_path / "model", "Trained elsewhere.")
    card = content(folder / "README.md")
    assert "An encoder-only Transformer" in card and "pipeline_tag: fill-mask" in card and "Seq2Seq" not in card


def test_card_of_a_model_whose_tokenizer_adds_language_codes(tmp_path, monkeypatch, capsys):
    """Its code runs: first that without residual_hf, then that with it."""
    tokenizer = coded_tokenizer(tmp_path)
    model = tiny_model(tokenizer, vocab_size=max(tokenizer.lang_code_to_id.values()) + 1)
    folder = save_with_card(model, tokenizer, tmp_path / "several", "Converted.")
    of_transformers, ours = re.findall(r"```python\n(.*?)```", content(folder / "README.md"), re.DOTALL)
    assert 'src_lang="en", tgt_lang="de"' in of_transformers
    run_without_the_package(of_transformers, cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(ours, {})
    assert len(capsys.readouterr().out.splitlines()) == 1


def usage_of(card):
    return card.partition("## How to use")[2].partition("With residual_hf")[0]
