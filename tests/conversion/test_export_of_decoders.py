"""Export of a decoder alone."""

import json

import pytest
import torch
from conversion.test_export import LOADERS, needs
from support.models import every_mode
from support.single_stacks import MODERN, SIZES, disturbed
from support.tiny_translator import SENTENCES, tiny_tokenizer

from residual_hf import ResidualConfig, ResidualForCausalLM, ResidualForMaskedLM
from residual_hf.base.errors import InputError
from residual_hf.checkpoint import save_checkpoint
from residual_hf.cli import main
from residual_hf.conversion import export as exporting
from residual_hf.conversion.export import export

TOKENIZER = tiny_tokenizer()
FIELDS = {
    "gpt": {"ln_mode": "pre_ln", "position_embedding_type": "learned", "activation_function": "gelu"},
    "llama": {"ln_mode": "pre_ln", "norm_type": "rms_norm", "tie_word_embeddings": False, **MODERN},
    "folded": {"ln_mode": "admin", **MODERN},
    "no final norm": {"ln_mode": "pre_ln", "final_norm": False, "embedding_norm": True},
    "no positions": {"ln_mode": "layer_scale", "position_embedding_type": "none", "output_bias": True},
}


def saved(folder, cls=ResidualForCausalLM, **fields):
    kind = "is_decoder_only" if cls is ResidualForCausalLM else "is_encoder_only"
    sizes = {**SIZES, "vocab_size": len(TOKENIZER), "max_position_embeddings": 64}
    torch.manual_seed(0)
    return save_checkpoint(disturbed(cls(ResidualConfig(**{kind: True, **sizes, **fields}))), TOKENIZER, folder)


@pytest.fixture
def few_texts(monkeypatch):
    """As many as in test_export.py; `test_int8_states_its_loss` continues the 200 of users."""
    monkeypatch.setattr(exporting, "SENTENCES", 20)


@pytest.mark.parametrize(
    "fields",
    [{"ln_mode": mode} for mode in ("post_ln", "pre_ln", "sandwich_ln", "peri_ln", "deep_norm")] + [*FIELDS.values()],
    ids=str,
)
def test_ctranslate2_continues_texts_like_the_model(fields, few_texts, tmp_path):
    """test_export.py has the other modes that fold, into the same plain modes."""
    needs("ctranslate2")
    found = export(saved(tmp_path / "model", **fields), "ctranslate2", tmp_path / "exported")
    assert (found.sentences, found.identical) == (20, 20)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "mode"), [("onnx", "sub_ln"), ("torch", "realformer")])
def test_graphs_search_like_generate(target, mode, tmp_path):
    needs(target)
    folder = saved(tmp_path / "model", ln_mode=mode, num_hidden_layers=1, **MODERN)
    (tmp_path / "text").write_text("\n".join(SENTENCES), encoding="utf-8")
    found = export(folder, target, tmp_path / "exported", verify_with=tmp_path / "text")
    assert str(found) == f"{len(SENTENCES)} of {len(SENTENCES)} continuations identical in float32"
    model = ResidualForCausalLM.from_pretrained(folder)
    exported = LOADERS[target](tmp_path / "exported")
    ids = torch.randint(4, 50, (3, 6), generator=torch.Generator().manual_seed(0))
    ids[0, :5] = ids[1, :2] = model.config.pad_token_id
    for settings in ({"num_beams": 1}, {"num_beams": 3, "length_penalty": 0.5, "early_stopping": True}):
        for inputs in (
            {"input_ids": ids, "attention_mask": ids.ne(model.config.pad_token_id).long()},
            {"input_ids": ids[2:, :1], "attention_mask": torch.ones_like(ids[2:, :1])},
        ):
            expected = model.generate(**inputs, max_new_tokens=8, do_sample=False, **settings)
            assert torch.equal(exported.generate(**inputs, max_new_tokens=8, **settings), expected)


def test_a_graph_may_lack_the_final_norm(tmp_path, few_texts):
    folder = saved(tmp_path / "model", **FIELDS["no final norm"])
    assert export(folder, "torch", tmp_path / "exported").identical == 20


@pytest.mark.slow
@pytest.mark.parametrize("target", LOADERS)
@every_mode
def test_graphs_of_every_mode_continue_texts_like_the_model(target, mode, tmp_path):
    needs(target)
    assert export(saved(tmp_path / "model", ln_mode=mode), target, tmp_path / "exported").identical >= 198


def test_int8_states_its_loss(tmp_path, capsys):
    needs("ctranslate2")
    model = str(saved(tmp_path / "model", ln_mode="pre_ln"))
    arguments = ["--to", "ctranslate2", "--dtype", "int8", "--output-dir", str(tmp_path / "exported")]
    assert main(["export", model, *arguments]) == 0
    found = "200 of 200 continuations identical in float32; int8 loses"
    assert found in capsys.readouterr().out
    report = json.loads((tmp_path / "exported" / "export.json").read_text())
    assert report["task"] == "text-generation" and report["bleu"] is None and "bleu_loss" in report


def test_tokens_cannot_be_forbidden_with_an_adaptive_softmax(tmp_path):
    folder = saved(tmp_path / "model", ln_mode="pre_ln", adaptive_cutoffs=[10])
    generation = json.loads((folder / "generation_config.json").read_text()) | {"suppress_tokens": [5]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "checksums.json").unlink()
    with pytest.raises(InputError, match="adaptive_cutoffs: given, must be None for a model whose generation config"):
        export(folder, "torch", tmp_path / "exported")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ln_mode": "mhc"}, "ln_mode: the decoder is 'mhc', must be post_ln, .* --to onnx and --to torch"),
        ({"ln_mode": "pre_ln", "adaptive_cutoffs": [10]}, "adaptive_cutoffs: given, must be None for CTranslate2"),
        ({"ln_mode": "pre_ln", "cls": ResidualForMaskedLM}, "a ResidualForMaskedLM, must be a .* or ResidualForCau"),
    ],
    ids=["mode", "adaptive", "encoder"],
)
def test_what_cannot_be_exported_is_named(fields, message, tmp_path):
    needs("ctranslate2")
    with pytest.raises(InputError, match=message):
        export(saved(tmp_path / "model", **fields), "ctranslate2", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
