"""Language models of fairseq 0.12.2: outputs of its own code, and conversion to a folder."""

import argparse

import pytest
import torch
from support.reference import Fixture
from transformers import AutoModelForCausalLM, AutoTokenizer

from residual_hf.base.errors import InputError
from residual_hf.conversion import convert_fairseq_checkpoint, load_fairseq_model

NAMES = ["language_model_post_ln", "language_model_adaptive", "language_model_adaptive_untied"]


def checkpoint(fixture, folder, **changes):
    """The `.pt` file as fairseq writes it."""
    settings = argparse.Namespace(**{**fixture.settings["settings"], **changes})
    torch.save({"args": settings, "model": fixture.group("weight/")}, folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.parametrize("name", NAMES)
def test_log_probabilities_and_loss_equal_those_of_fairseq(name, tmp_path):
    fixture = Fixture(name)
    model, tokens = load_fairseq_model(checkpoint(fixture, tmp_path)), fixture.group("input/")["tokens"]
    with torch.no_grad():
        found = model(tokens).logits.log_softmax(-1)
        assert torch.allclose(found, fixture.output("log_probs"), rtol=0, atol=1e-5)
        row = torch.cat([tokens, fixture.target[:, -1:]], dim=1)
        summed = model(row, labels=row, num_items_in_batch=1).loss
    assert summed.item() == pytest.approx(fixture.settings["loss"], rel=1e-5)
    assert model.config.final_norm == (name != "language_model_adaptive")


def test_a_checkpoint_becomes_a_folder_for_text_generation(tmp_path):
    fixture = Fixture("language_model_adaptive")
    words = [f"w{i}" for i in range(96)]
    (tmp_path / "dict.txt").write_text("".join(f"{word} {100 - i}\n" for i, word in enumerate(words)))
    dictionaries = {"source_dict": tmp_path / "dict.txt", "target_dict": tmp_path / "dict.txt"}
    folder = convert_fairseq_checkpoint(checkpoint(fixture, tmp_path), tmp_path / "model", **dictionaries)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = fixture.group("input/")["tokens"]
    text = " ".join(words[i - 4] for i in tokens[0, 1:].tolist())
    batch = tokenizer(text, return_tensors="pt")
    assert batch["input_ids"].equal(tokens[:1])
    assert tokenizer.bos_token_id == model.generation_config.bos_token_id == tokens[0, 0]
    with torch.no_grad():
        assert torch.allclose(model(**batch).logits, fixture.output("log_probs")[:1], rtol=0, atol=1e-5)
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card and 'generate("The", max_new_tokens=40' in card


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adaptive_softmax_cutoff": "20,70"}, "20,60 and 20,70 in the checkpoint"),
        ({"no_decoder_final_norm": False}, "missing: model.decoder.boundary.norm"),
        ({"decoder_layers": 2}, "decoder_layers: 2 in the checkpoint"),
    ],
)
def test_settings_that_do_not_fit_are_named(changes, message, tmp_path):
    path = checkpoint(Fixture("language_model_adaptive"), tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        load_fairseq_model(path)
