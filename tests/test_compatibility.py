"""The page "what works with what": every row names a test, and the packages that no other test uses."""

import re

import pytest
import torch
from support import ROOT
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer
from torch import nn
from transformers import AutoModelForSeq2SeqLM, BitsAndBytesConfig, TorchAoConfig

from residual_hf.checkpoint import load_checkpoint

PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.endswith("| test |")]
WIDE = {"d_model": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_row_names_a_test(row):
    file, _, name = row.split("|")[-2].strip(" `").partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), row


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "fix_norm"])
def saved(request, tmp_path_factory):
    """A model folder, its inputs and its logits."""
    folder = tmp_path_factory.mktemp("model")
    model = tiny_model(tiny_tokenizer(), fix_norm=request.param, **WIDE)
    model.save_pretrained(folder)
    batch = tiny_tokenizer()(SENTENCES, padding=True, return_tensors="pt")
    return folder, dict(batch), logits(model, batch)


def logits(model, batch):
    with torch.no_grad():
        return model(**batch, decoder_input_ids=batch["input_ids"]).logits.float()


def check(model, batch, expected, tolerance):
    """Linear layers are quantized, the output projection is not; logits are near, decoding follows the logits."""
    assert type(model.lm_head.weight) is nn.Parameter
    found = logits(model, batch)
    assert 0 < (found - expected).norm() / expected.norm() < tolerance
    tokens = model.generate(**batch, max_new_tokens=4, do_sample=False)
    with torch.no_grad():
        scores = model(**batch, decoder_input_ids=tokens[:, :1]).logits[:, -1]
    assert torch.equal(tokens[:, 1], scores.argmax(-1))


def test_torchao_quantizes_linear_layers(saved, tmp_path):
    quantization = pytest.importorskip("torchao.quantization")
    folder, batch, expected = saved
    config = TorchAoConfig(quantization.Int8WeightOnlyConfig())
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=config)
    assert type(model.model.encoder.layers[0].ffn.fc1.weight) is not nn.Parameter
    check(model, batch, expected, 0.03)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path), batch), logits(model, batch))
    tiny_tokenizer().save_pretrained(tmp_path)
    assert torch.equal(logits(load_checkpoint(tmp_path)[0].eval(), batch), logits(model, batch))


@pytest.mark.parametrize("bits", [8, 4])
def test_bitsandbytes_quantizes_linear_layers(saved, bits):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    folder, batch, expected = saved
    config = BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=config, device_map="cpu")
    kind = bitsandbytes.nn.Linear8bitLt if bits == 8 else bitsandbytes.nn.Linear4bit
    assert isinstance(model.model.encoder.layers[0].ffn.fc1, kind)
    check(model, batch, expected, 0.03 if bits == 8 else 0.5)
