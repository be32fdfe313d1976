"""Models of Transformers' own classes, small and random, against what is made of them."""

import json

import pytest
import torch
from support.foreign_models import model_of_two_vocabularies
from support.tiny_translator import SENTENCES, tiny_tokenizer
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    FSMTConfig,
    FSMTForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import load_checkpoint, save_checkpoint, validate_model_folder
from residual_hf.cli import main
from residual_hf.conversion.transformers_models import convert_transformers, from_transformers
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.translator import Translator
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

V = 40
SIZES = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 32, "decoder_ffn_dim": 24}
SIZES |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "max_position_embeddings": 24}
MARIAN = {"pad_token_id": V - 1, "decoder_start_token_id": V - 1, "eos_token_id": 0, "forced_eos_token_id": 0}
SEPARATE = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}
FAIRSEQ = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
KINDS = {  # class of the model, of its config, mode
    "marian": (MarianMTModel, MarianConfig, "post_ln"),
    "bart": (BartForConditionalGeneration, BartConfig, "post_ln"),
    "fsmt": (FSMTForConditionalGeneration, FSMTConfig, "post_ln"),
    "mbart": (MBartForConditionalGeneration, MBartConfig, "pre_ln"),
    "m2m100": (M2M100ForConditionalGeneration, M2M100Config, "pre_ln"),
}
CASES = {  # begin with a kind
    "marian": {"vocab_size": V, "scale_embedding": True, **MARIAN},
    "marian_swish_unscaled": {"vocab_size": V, "activation_function": "swish", **MARIAN},
    "marian_separate": {"vocab_size": V, **SEPARATE, **MARIAN},
    "marian_separate_untied": {"vocab_size": V, "tie_word_embeddings": False, **SEPARATE, **MARIAN},
    "bart": {"vocab_size": V, **FAIRSEQ},
    "bart_pad_3": {"vocab_size": V, **FAIRSEQ, "pad_token_id": 3},
    "mbart": {"vocab_size": V, "scale_embedding": True, **FAIRSEQ, "decoder_start_token_id": 30},
    "m2m100": {"vocab_size": V, **FAIRSEQ},
    "m2m100_gelu_unscaled": {"vocab_size": V, "activation_function": "gelu", "scale_embedding": False, **FAIRSEQ},
    "fsmt": {"src_vocab_size": V, "tgt_vocab_size": 50, **FAIRSEQ},
    "fsmt_tied": {"src_vocab_size": V, "tgt_vocab_size": V, "tie_word_embeddings": True, **FAIRSEQ},
}


def kind_of(case):
    return KINDS[case.split("_")[0]]


def build(case):
    """A model with random values everywhere: biases, gains, the row of the padding, the bias on the logits."""
    torch.manual_seed(0)
    (model_class, config_class, _), fields = kind_of(case), CASES[case]
    declared = config_class.__dataclass_fields__["scale_embedding"]
    if declared.type is int:  # in 5.4, where even the default is refused
        fields = {**fields, "scale_embedding": int(fields.get("scale_embedding", declared.default))}
    config = config_class(**SIZES, **fields)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name or "art" in case and "marian" not in case:
                parameter.add_(0.3 * torch.randn_like(parameter))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model


def batch(pad, side):
    """Three sentences of 7, 4 and 2 tokens, padded on the left or on the right."""
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(4, V - 1, (n,), generator=generator) for n in (7, 4, 2)]
    source = torch.full((3, 7), pad)
    for row, tokens in zip(source, rows, strict=True):
        row[slice(7 - len(tokens), None) if side == "left" else slice(len(tokens))] = tokens
    return {"input_ids": source, "attention_mask": source.ne(pad).long()}


def targets(config):
    tokens = torch.randint(4, V - 1, (3, 6), generator=torch.Generator().manual_seed(4))
    tokens[:, 0] = config.decoder_start_token_id
    return tokens


@torch.no_grad()
def logits(model, side="right"):
    source = batch(model.config.pad_token_id, side)
    # FSMT has no causal mask where it makes a cache
    return model(**source, decoder_input_ids=targets(model.config), use_cache=False).logits


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_equal(case, side):
    original = build(case)
    model = from_transformers(original)
    expected = logits(original, side)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits(model, side), expected, rtol=0, atol=1e-5)
    assert model.config.of("encoder").ln_mode == kind_of(case)[2]


@pytest.mark.parametrize("case", CASES)
def test_generation_is_equal_also_after_saving(case, tmp_path):
    if kind_of(case)[1].__dataclass_fields__["scale_embedding"].type is int:
        pytest.skip("generate of Transformers 5.4 refuses the default config of this class")
    original = build(case)
    original.generation_config.num_beams = 1 if "separate" in case else 3  # Marian of 5.4: one vocabulary size
    original.generation_config.max_new_tokens = 8
    original.generation_config.forced_bos_token_id = 7
    source = batch(original.config.pad_token_id, "right")
    expected = original.generate(**source)
    model = from_transformers(original)
    assert torch.equal(model.generate(**source), expected)
    model.save_pretrained(tmp_path)
    loaded, info = ResidualForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(logits(loaded), logits(model))
    assert torch.equal(loaded.generate(**source), expected)


@pytest.mark.parametrize("case", ["marian", "bart", "mbart", "m2m100"])
def test_labels_give_the_same_loss_and_gradient(case):
    original = build(case)
    model = from_transformers(original)
    source = batch(original.config.pad_token_id, "right")
    labels = torch.randint(4, V - 1, (3, 6), generator=torch.Generator().manual_seed(5))
    if case == "mbart":
        labels[:, -1] = original.config.decoder_start_token_id  # mBART begins with the code that its labels end with
    losses = [m(**source, labels=labels.clone()).loss for m in (original, model)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-5)
    for loss in losses:
        loss.backward()
    theirs, ours = (m.model.encoder.layers[0].self_attn.q_proj.weight.grad for m in (original, model))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_the_original_stays_as_it_is():
    original = build("marian")
    before = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    model = from_transformers(original)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in original.state_dict().items())


def test_tables_are_one_where_they_were():
    tables = {"marian": (True, True), "marian_separate": (False, True), "marian_separate_untied": (False, False)}
    tables |= {"fsmt": (False, False), "fsmt_tied": (True, True), "bart": (True, True)}
    for case, (share, tie) in tables.items():
        model = from_transformers(build(case))
        inner = model.model
        assert (inner.encoder.embed_tokens.weight is inner.decoder.embed_tokens.weight) is share, case
        assert (model.lm_head.weight is inner.decoder.embed_tokens.weight) is tie, case


def test_a_bias_of_zero_is_left_out():
    original = build("bart")
    original.final_logits_bias.zero_()
    model = from_transformers(original)
    assert not model.config.output_bias and model.lm_head.bias is None
    torch.testing.assert_close(logits(model), logits(original), rtol=0, atol=1e-5)


def test_precision_and_training_mode_are_kept():
    model = from_transformers(build("m2m100").to(torch.bfloat16).train())
    assert model.dtype == torch.bfloat16 and model.training
    exact = build("m2m100").double()
    torch.testing.assert_close(logits(from_transformers(exact)), logits(exact), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda: T5ForConditionalGeneration(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1)), "T5For"),
        (lambda: GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2)), "GPT2LMHeadModel"),
    ],
    ids=["t5", "gpt2"],
)
def test_other_classes_are_refused(model, name):
    with pytest.raises(InputError, match=f"model: a {name}.*must be one of MarianMTModel.*relative positions"):
        from_transformers(model())


def test_config_values_that_cannot_be_held_are_refused():
    original = build("mbart")
    original.config.decoder_start_token_id = original.generation_config.decoder_start_token_id = None
    with pytest.raises(InputError, match="MBartForConditionalGeneration: .*decoder_start_token_id must be set"):
        from_transformers(original)
    model = from_transformers(original, decoder_start_token_id=30)
    assert model.config.decoder_start_token_id == model.generation_config.decoder_start_token_id == 30
    original = build("marian")
    with torch.no_grad():
        original.model.encoder.embed_positions.weight.mul_(2)
    with pytest.raises(InputError, match="position table is not the sinusoidal_marian one"):
        from_transformers(original)


def save_bart(folder, **fields):
    tokenizer = tiny_tokenizer()
    fields |= {**FAIRSEQ, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    BartForConditionalGeneration(BartConfig(**{**SIZES, **fields})).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def test_a_folder_is_converted_with_its_tokenizer(tmp_path):
    task = {"summarization": {"min_length": 12, "max_length": 14, "num_beams": 2, "prefix": "two "}}
    save_bart(tmp_path / "bart", task_specific_params=task)
    folder = convert_transformers(tmp_path / "bart", tmp_path / "converted")
    settings = tmp_path / "bart" / "tokenizer_config.json"
    before = settings.read_text()
    settings.write_text(json.dumps(json.loads(before) | {"model_max_length": {}}))
    with pytest.raises(InputError, match="bart: tokenizer_config.json: model_max_length is {}"):
        convert_transformers(tmp_path / "bart", tmp_path / "damaged")
    settings.write_text(before)
    with pytest.raises(InputError, match="output_dir: .* exists and is not empty"):
        convert_transformers(tmp_path / "bart", tmp_path / "converted")
    convert_transformers(tmp_path / "bart", tmp_path / "converted", overwrite=True)
    settings = {"max_new_tokens": 8, "num_beams": 2, "return_tensors": True}
    ours, theirs = (pipeline("translation", model=str(f))(SENTENCES, **settings) for f in (folder, tmp_path / "bart"))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a["translation_token_ids"], b["translation_token_ids"])
    assert load_checkpoint(folder)[0].config.task_specific_params == task
    ours, theirs = (
        pipeline("summarization", model=str(f), return_tensors=True)(SENTENCES[0]) for f in (folder, tmp_path / "bart")
    )
    assert torch.equal(ours[0]["summary_token_ids"], theirs[0]["summary_token_ids"])


@pytest.mark.parametrize("larger", ["source", "target"])
@pytest.mark.parametrize("family", ["fsmt", "marian"])
def test_each_side_may_have_the_larger_vocabulary(tmp_path, family, larger):
    if family == "fsmt":
        pytest.importorskip("sacremoses", reason="the extra [moses] is not installed")
    folder, sizes = model_of_two_vocabularies(family, tmp_path / family, larger)
    assert validate_model_folder(convert_transformers(folder, tmp_path / "converted"))
    config = load_checkpoint(tmp_path / "converted")[0].config
    assert [config.vocab_size, config.decoder_vocab_size] == [sizes["source"], sizes["target"]]


@pytest.mark.parametrize("family", ["bart", "fsmt"])
def test_half_precision_is_saved_as_what_can_be_trained(tmp_path, family):
    """FSMT saves a table of positions, which is rounded."""
    if family == "bart":
        save_bart(tmp_path / family)
    else:
        pytest.importorskip("sacremoses", reason="the extra [moses] is not installed")
        model_of_two_vocabularies(family, tmp_path / family, "target")
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / family).half().save_pretrained(tmp_path / family)
    folder = convert_transformers(tmp_path / family, tmp_path / "converted")
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).dtype == torch.float32


def test_a_mask_at_the_end_of_the_vocabulary_may_have_no_row(tmp_path):
    save_bart(tmp_path / "bart")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bart")
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    tokenizer.save_pretrained(tmp_path / "bart")  # as bart-large-cnn: 50,264 rows, 50,265 tokens
    ours, converted = load_checkpoint(convert_transformers(tmp_path / "bart", tmp_path / "converted"))
    assert validate_model_folder(tmp_path / "converted")
    inputs = tokenizer(SENTENCES[:1], return_tensors="pt")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "bart")
    inputs |= {"decoder_input_ids": inputs["input_ids"]}
    torch.testing.assert_close(ours(**inputs).logits, theirs(**inputs).logits, rtol=0, atol=1e-5)
    translator = Translator(ours, converted, DecodingSettings(num_beams=1))
    assert isinstance(translator.translate("an SVG has a <mask>", max_new_tokens=2), str)
    tokenizer.add_tokens("<other>")
    with pytest.raises(InputError, match=f"{len(tokenizer)} tokens for the source.*{len(tokenizer) - 2}"):
        save_checkpoint(ours, tokenizer, tmp_path / "other")


def test_command_takes_folders_and_asks_for_the_dictionaries_of_fairseq(tmp_path, refused):
    save_bart(tmp_path / "bart")
    with pytest.raises(InputError, match="nothing_here: no such folder"):
        convert_transformers(tmp_path / "nothing_here", tmp_path / "converted")
    assert main(["convert", str(tmp_path / "bart"), "--output-dir", str(tmp_path / "ours")]) == 0
    assert (tmp_path / "ours" / "modeling_residual.py").exists()
    options = "--output-dir", tmp_path / "x"
    refused("--source-dict: missing", "convert", "checkpoint_best.pt", *options)
    options += "--source-lang", "de"
    refused("--source-lang: only for a fairseq checkpoint", "convert", tmp_path / "bart", *options)
