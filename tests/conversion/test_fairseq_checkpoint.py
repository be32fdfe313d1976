import json
import math

import pytest
import torch
from support.fairseq_files import (
    WORDS,
    dlcl_weights,
    fairseq_weights,
    random_model,
    settings_of,
    write_checkpoint,
    write_codes,
    write_dictionary,
)
from support.reference import FIXTURES, SHARED, Fixture
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import residual_hf  # noqa: F401  registers the Auto classes
from residual_hf.base.errors import InputError
from residual_hf.cli import main
from residual_hf.conversion.fairseq_checkpoint import MosesOptions, convert_fairseq_checkpoint, load_fairseq_model
from residual_hf.conversion.fairseq_settings import model_settings
from residual_hf.conversion.pickles import to_plain
from residual_hf.data.tokenizer import read_dictionary

SOURCE = torch.tensor([[1, 1, 7, 5, 9, 2], [4, 5, 6, 11, 8, 2]])
TARGET = torch.tensor([[2, 8, 4, 9, 6], [2, 5, 5, 12, 10]])
REFERENCE = SHARED / "reference" / "fairseq_checkpoints"

# our configuration, and the settings that the fork adds to those of a plain transformer
MODELS = {
    "post_ln": ({"ln_mode": "post_ln"}, {"arch": "transformer_wmt_en_de"}),
    "pre_ln": ({"ln_mode": "pre_ln", "activation_function": "gelu"}, {"arch": "transformer_vaswani_wmt_en_de_big"}),
    "hybrid": ({"ln_mode": "post_ln", "decoder_ln_mode": "pre_ln"}, {}),
    "normformer": (
        {"ln_mode": "pre_ln", "decoder_ln_mode": "normformer", "decoder_ln_mode_options": {"scale_residual": True}},
        {"scale_attn": True, "scale_fc": True, "scale_heads": True, "scale_resids": True},
    ),
    "resi_dual": ({"ln_mode": "resi_dual"}, {"arch": "resi_dual", "encoder_normalize_before": True}),
    "resi_dual_scaled": (
        {
            "ln_mode": "resi_dual",
            "encoder_ln_mode_options": {"dual_scale": 0.05, "main_scale": 0.7},
            "decoder_ln_mode_options": {"dual_scale": 0.1},
        },
        {
            "arch": "resi_dual",
            "enc_res_input_norm_scale": 0.05,
            "dec_res_input_norm_scale": 0.1,
            "enc_alpha": 0.7,
            "dec_alpha": 1.0,
        },
    ),
    "b2t": ({"ln_mode": "b2t"}, {"residual_bottom_to_top": True, "no_layer_norm": False}),
    "b2t_no_ln": ({"ln_mode": "b2t_no_ln"}, {"residual_bottom_to_top": True, "no_layer_norm": True}),
    "no_ln": ({"ln_mode": "xskip"}, {"residual_bottom_to_top": False, "no_layer_norm": True}),
    "admin": ({"ln_mode": "admin"}, {"init_type": "adaptive"}),
    "deep_norm": ({"ln_mode": "deep_norm"}, {"init_type": "deepnet"}),
    "rezero": ({"ln_mode": "rezero"}, {"init_type": "rezero"}),
    "rezero_post_ln": ({"ln_mode": "rezero_post_ln"}, {"init_type": "rezero_postln"}),
    "looklinear": ({"ln_mode": "post_ln"}, {"init_type": "looklinear"}),
    "t_fixup": ({"ln_mode": "t_fixup"}, {"dont_use_layernorm": True, "Tfixup": True}),
    "dlcl_post": ({"ln_mode": "dlcl_post"}, {"arch": "dlcl_transformer_postnorm_wmt_en_de", "weight_type": "scalar"}),
    "dlcl_pre": ({"ln_mode": "dlcl_pre"}, {"arch": "dlcl_transformer", "history_window_size": -1}),
    "simple_dlcl": ({"ln_mode": "dlcl_post"}, {"arch": "simple_dlcl_transformer"}),
    "learned_positions": ({"ln_mode": "post_ln", "position_embedding_type": "learned"}, {}),
    "no_positions": ({"ln_mode": "post_ln", "position_embedding_type": "none", "scale_embedding": False}, {}),
    "embedding_norm": ({"ln_mode": "post_ln", "embedding_norm": True}, {"layernorm_embedding": True}),
    "tied_output": ({"ln_mode": "post_ln", "share_encoder_decoder_embeddings": False}, {}),
    "separate": (
        {
            "ln_mode": "pre_ln",
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
            "decoder_vocab_size": 4 + len(WORDS) - 2,
        },
        {},
    ),
}


def logits(model):
    with torch.no_grad():
        mask = SOURCE.ne(1)
        return model(input_ids=SOURCE, attention_mask=mask, decoder_input_ids=TARGET).logits


def written(name, folder, form="args", zipped=True, **changes):
    """(our model, its checkpoint)"""
    fields, flags = MODELS[name]
    model = random_model(max_position_embeddings=32, **fields)
    weights = dlcl_weights(model, name == "simple_dlcl") if "dlcl" in name else fairseq_weights(model)
    settings = settings_of(model.config, **{**flags, **changes})
    return model, write_checkpoint(folder / "checkpoint.pt", weights, settings, form, zipped)


FORMS = ["args", "cfg", "cfg_with_args"]


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, FORMS[i % 3]) for i, name in enumerate(MODELS)] + [("post_ln", "cfg"), ("post_ln", "cfg_with_args")],
)
def test_every_architecture_keeps_its_logits(name, form, tmp_path):
    model, checkpoint = written(name, tmp_path, form, zipped=form != "args")
    loaded = load_fairseq_model(checkpoint)
    assert torch.equal(logits(loaded), logits(model))
    for field in ("ln_mode", "activation_function", "dropout", "max_position_embeddings", "position_embedding_type"):
        assert getattr(loaded.config, field) == getattr(model.config, field)
    assert (loaded.config.source_lang, loaded.config.target_lang) == ("en", "de")
    assert loaded.config.decoder_layerdrop == (0.0 if "dlcl" in name else 0.2)


def test_half_precision_weights_become_fp32(tmp_path):
    model = random_model(ln_mode="post_ln")
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    weights = {name: tensor.half() for name, tensor in fairseq_weights(model).items()}
    loaded = load_fairseq_model(write_checkpoint(tmp_path / "half.pt", weights, settings_of(model.config)))
    assert loaded.dtype == torch.float32
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("post_ln", {"arch": "lightconv_lm"}, r"arch: 'lightconv_lm'.*supported are transformer"),
        ("post_ln", {"arch": "lightconv"}, r"arch: 'lightconv'"),
        ("post_ln", {"layer_wise_attention": True}, r"layer_wise_attention: True"),
        ("post_ln", {"cross_self_attention": True}, r"cross_self_attention: True"),
        ("post_ln", {"decoder_langtok": True}, r"decoder_langtok: True"),
        ("post_ln", {"quant_noise_pq": 0.1}, r"quant_noise_pq: 0.1"),
        ("post_ln", {"encoder_layers_to_keep": "0,2"}, r"encoder_layers_to_keep: '0,2'"),
        (
            "post_ln",
            {"encoder_embed_dim": 32},
            r"checkpoint.pt: .*embed_tokens.weight \(19, 16\) instead of \(19, 32\)",
        ),
        ("post_ln", {"encoder_layers": 3}, r"encoder_layers: 3 .*weights of 2 layers"),
        ("post_ln", {"encoder_attention_heads": 0}, r"encoder_attention_heads: 0 given, must be an integer >= 1"),
        ("post_ln", {"decoder_attention_heads": None}, r"decoder_attention_heads: missing, must be an integer >= 1"),
        ("post_ln", {"decoder_ffn_embed_dim": 0}, r"decoder_ffn_embed_dim: 0 given, must be an integer >= 1"),
        ("post_ln", {"activation_fn": "relu_squared"}, r"activation_fn: 'relu_squared'"),
        ("post_ln", {"encoder_learned_pos": True}, r"missing: model.decoder.embed_positions.weight"),
        ("post_ln", {"init_type": "magic"}, r"init_type: 'magic'.*adaptive"),
        ("post_ln", {"init_type": "adaptive"}, r"admin; missing: model.decoder.*omega"),
        ("post_ln", {"decoder_normalize_before": True}, r"post_ln and pre_ln; missing: model.decoder.boundary.norm"),
        ("pre_ln", {"encoder_normalize_before": False}, r"post_ln and pre_ln; unknown: model.encoder.boundary.norm"),
        ("pre_ln", {"residual_bottom_to_top": True}, r"encoder_normalize_before: True.*B2T"),
        ("pre_ln", {"scale_fc": True}, r"pre_ln and normformer; missing: model.decoder.layers.0.ffn.inner"),
        ("admin", {"init_type": "default"}, r"post_ln; unknown: .*omega"),
        ("t_fixup", {"dont_use_layernorm": False}, r"post_ln; missing: .*self_attn_residual.norm"),
        ("dlcl_post", {"weight_type": "vector"}, r"weight_type: 'vector'.*supported is 'scalar'"),
        ("separate", {"share_decoder_input_output_embed": True}, r"share_decoder_input_output_embed: True.*differs"),
        ("tied_output", {"share_all_embeddings": True}, r"share_all_embeddings: True.*differ"),
        ("learned_positions", {"max_target_positions": 64}, r"embed_positions.weight \(34, 16\) instead of \(66"),
    ],
)
def test_what_cannot_be_converted_is_named(name, changes, message, tmp_path):
    _, checkpoint = written(name, tmp_path, **changes)
    with pytest.raises(InputError, match=message):
        load_fairseq_model(checkpoint)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("encoder_attention_heads", [0, None, -1, "8", 2.5, True, [8], {"a": 1}, 2**63]),
        ("decoder_layers", [0, None, 6.0, "6"]),
        ("dropout", [None, "0.1", 1.0, -0.1, float("nan"), [0.1]]),
        ("share_all_embeddings", ["False", 2, [], {}]),
        ("max_source_positions", [0, -5, "512"]),
        ("activation_fn", [None, 5, ["relu"]]),
        ("source_lang", [5, ["de"], b"de"]),
        ("adaptive_input_cutoff", [-1.5, ["a"], {}]),
        ("enc_alpha", ["1", float("inf")]),
    ],
)
@pytest.mark.parametrize("form", ["args", "cfg"])
def test_settings_of_a_wrong_type_or_range_are_named(name, values, form):
    for value in values:
        settings = {"arch": "resi_dual", name: value}
        stack, _, rest = name.partition("_")
        nested = {"_name": "resi_dual", **({stack: {rest: value}} if stack in ("encoder", "decoder") else settings)}
        checkpoint = {"args": settings} if form == "args" else {"cfg": {"model": nested}}
        with pytest.raises(InputError, match=f"checkpoint: {name}: .*must be") as error:
            model_settings(to_plain(checkpoint))
        assert len(str(error.value)) < 300


def test_only_absent_settings_have_defaults():
    absent = model_settings({"args": {"arch": "transformer"}})
    assert (absent["encoder_attention_heads"], absent["dropout"], absent["relu_dropout"]) == (8, 0.0, None)
    task = {"source_lang": "en", "max_source_positions": 30}
    of_task = model_settings({"cfg": {"model": {"_name": "transformer", **dict.fromkeys(task)}, "task": task}})
    assert (of_task["source_lang"], of_task["max_source_positions"]) == ("en", 30)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("encoder.embed_tokens.weight", torch.zeros(()), "encoder.embed_tokens.weight is no matrix"),
        ("decoder.embed_tokens.weight", torch.full((19, 16), torch.nan), "not finite"),
        ("encoder.layers.0.self_attn.in_proj_bias", torch.zeros(()), "chunk"),
        ("decoder.adaptive_softmax.head.weight", torch.zeros(()), "0-d tensor"),
        ("encoder.history", torch.zeros(3), "unknown: encoder.history"),
        ("encoder.history.weight", torch.zeros(2, 2), "odd.pt: index 2 is out of bounds"),
        ("model.er.embed_tokens.weight", torch.zeros(2), "unknown: model.er.embed_tokens.weight"),
        (
            f"encoder.layers.{'9' * 5000}.fc1.weight",
            torch.zeros(1),
            "encoder_layers: 2 in the checkpoint, but weights",
        ),
    ],
)
def test_weights_that_are_none_of_a_model_are_named(name, tensor, message, tmp_path):
    model = random_model(ln_mode="post_ln")
    weights = {**fairseq_weights(model), name: tensor}
    with pytest.raises(InputError, match=message):
        load_fairseq_model(write_checkpoint(tmp_path / "odd.pt", weights, settings_of(model.config)))


def test_checkpoints_of_something_else_are_named(tmp_path):
    for content in ({"state_dict": {}}, {"model": {5: torch.ones(1)}}):
        torch.save(content, tmp_path / "other.pt")
        with pytest.raises(InputError, match=r"other\.pt: not a fairseq checkpoint"):
            load_fairseq_model(tmp_path / "other.pt")
    torch.save({"model": fairseq_weights(random_model(ln_mode="post_ln"))}, tmp_path / "bare.pt")
    with pytest.raises(InputError, match="neither args .* nor cfg"):
        load_fairseq_model(tmp_path / "bare.pt")
    torch.save({"model": {"a": torch.zeros(1).expand(1 << 40)}}, tmp_path / "expanded.pt")
    with pytest.raises(InputError, match="weights under 'model' would take 4,398,046,511,104 bytes, the file has"):
        load_fairseq_model(tmp_path / "expanded.pt")
    torch.save({"model": dict.fromkeys(map(str, range(9)), torch.zeros(10_000))}, tmp_path / "shared.pt")
    with pytest.raises(InputError, match="weights under 'model' would take 360,000 bytes, the file has"):
        load_fairseq_model(tmp_path / "shared.pt")


def test_the_search_is_that_of_fairseq(tmp_path):
    """It never selects padding, which this model prefers, nor an empty translation."""
    fixture = Fixture("resi_dual_untied")
    settings = settings_of(fixture.config(), arch="resi_dual")
    model = load_fairseq_model(write_checkpoint(tmp_path / "checkpoint.pt", fixture.group("weight/"), settings))
    source = {"input_ids": fixture.source, "attention_mask": fixture.source.ne(1)}
    official = json.loads((FIXTURES / "beam_resi_dual_untied.json").read_text())["hypotheses"]["beam5_lenpen2.0"]
    found = model.generate(**source, max_new_tokens=21, forced_eos_token_id=2, length_penalty=2.0)
    assert found[:, 1:].tolist() == [best["tokens"] for best, *_ in official]
    ending = model.generate(**source, sequence_bias=[[[2], 50.0]])  # towards </s>
    assert ending.shape[1] == 3


@pytest.fixture
def files(tmp_path):
    """A checkpoint with one dictionary for both languages, and codes."""
    _, checkpoint = written("resi_dual", tmp_path, "cfg")
    dictionary = write_dictionary(tmp_path / "dict.en.txt")
    return {"checkpoint": checkpoint, "dict": dictionary, "codes": write_codes(tmp_path / "codes")}


def arguments(files, output, *more):
    both = ["--source-dict", str(files["dict"]), "--target-dict", str(files["dict"])]
    return ["convert", str(files["checkpoint"]), *both, "--output-dir", str(output), *more]


def test_convert_makes_a_folder_that_loads_and_translates(files, tmp_path, capsys):
    output = tmp_path / "converted"
    assert main(arguments(files, output, "--bpe-codes", str(files["codes"]))) == 0
    assert "converted" in capsys.readouterr().out
    assert main(["push", str(output), "somebody/a", "--dry-run"]) == 0
    assert f"converted from the fairseq checkpoint {files['checkpoint'].name}." in (output / "README.md").read_text()
    model = AutoModelForSeq2SeqLM.from_pretrained(output)
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert torch.equal(logits(model), logits(written("resi_dual", tmp_path)[0]))
    assert model.generation_config.num_beams == 5
    words = read_dictionary(files["dict"])
    the, *others = (words.index(token) for token in ("the", "w@@", "est", "lo@@", "w@@", "er"))
    assert tokenizer("the newest lower")["input_ids"] == [the, 3, *others, 2]  # ne@@ is not in the dictionary
    (tmp_path / "in").write_text("the lowest\nnew\n")
    translate = ["translate", str(output), "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert main(translate) == 0
    assert len((tmp_path / "out").read_text().splitlines()) == 2


def test_separate_dictionaries(tmp_path):
    model, checkpoint = written("separate", tmp_path)
    source = write_dictionary(tmp_path / "dict.en.txt")
    target = write_dictionary(tmp_path / "dict.de.txt", WORDS[2:])
    codes = write_codes(tmp_path / "codes")
    folder = convert_fairseq_checkpoint(
        checkpoint, tmp_path / "out", source_dict=source, target_dict=target, bpe_codes=codes
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer("est the", text_target="est the")
    assert encoded["input_ids"] == [8, 4, 2]
    assert encoded["labels"] == [6, 3, 2]
    assert tokenizer.decode([6, 4, 2], skip_special_tokens=True) == "est new"
    assert torch.equal(logits(AutoModelForSeq2SeqLM.from_pretrained(folder)), logits(model))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--source-dict", "nowhere.txt"], "no such file: nowhere.txt"),
        (["--bpe-codes", "nowhere"], "no such file: nowhere"),
        (["--moses"], "moses: given without bpe_codes"),
        (["--no-moses-escape"], "moses: given without bpe_codes"),
        (["--output-dir", "."], "--output-dir: . exists and is not empty"),
        (["--target-dict", "other"], "source_dict, target_dict: differ, but the model has one table for both"),
        (["--source-dict", "short"], "--source-dict: 9 tokens"),
    ],
    ids=["dictionary", "codes", "moses", "moses_option", "output", "one table", "another size"],
)
def test_bad_input_is_named_and_leaves_nothing_behind(files, tmp_path, monkeypatch, refused, more, message):
    monkeypatch.chdir(tmp_path)
    write_dictionary(tmp_path / "other", WORDS[::-1])
    write_dictionary(tmp_path / "short", WORDS[:5])
    before = sorted(tmp_path.iterdir())
    refused(message, *arguments(files, tmp_path / "out", *more))
    assert sorted(tmp_path.iterdir()) == before


def test_an_existing_folder_is_kept_unless_asked(files, tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    (output / "precious").write_text("x")
    for options in ([], ["--overwrite"]):
        assert main(arguments(files, output, *options)) == 2
        assert [path.name for path in output.iterdir()] == ["precious"]
    (output / "model.safetensors").touch()
    assert main(arguments(files, output, "--overwrite")) == 0
    assert (output / "config.json").exists() and not (output / "precious").exists()


def official_files(name, output, **options):
    """The arguments of a conversion of one of fairseq's own checkpoints."""
    if not REFERENCE.exists():
        pytest.skip("fairseq's checkpoints are not part of the repository")
    dictionaries = {"source_dict": REFERENCE / "dict.en.txt", "target_dict": REFERENCE / "dict.de.txt"}
    return {"checkpoint": REFERENCE / f"{name}.pt", "output_dir": output, **dictionaries, **options}


def test_moses_takes_raw_text_and_gives_text_back(tmp_path):
    """`source.tok.en` was made from raw text by the rules that go into the tokenizer; the output is joined again."""
    detokenizer = pytest.importorskip("sacremoses").MosesDetokenizer("en")
    moses = MosesOptions()
    codes = REFERENCE / "bpe_codes"
    with pytest.raises(InputError, match="source_lang: not in the checkpoint"):
        convert_fairseq_checkpoint(**official_files("transformer_2-3", tmp_path / "a", bpe_codes=codes, moses=moses))
    files = official_files("resi_dual_3-3", tmp_path / "a", bpe_codes=codes, moses=moses)
    tokenizer = AutoTokenizer.from_pretrained(convert_fairseq_checkpoint(**files))
    plain = AutoTokenizer.from_pretrained(
        convert_fairseq_checkpoint(**official_files("resi_dual_3-3", tmp_path / "b", bpe_codes=codes))
    )
    for line in (REFERENCE / "source.tok.en").read_text(encoding="utf-8").splitlines():
        raw = detokenizer.detokenize(line.split())
        assert tokenizer(raw)["input_ids"] == plain(line)["input_ids"]
    target = tokenizer(text_target="Ein Mann (mit Hut), zwei-drei Leute.")["input_ids"]
    assert tokenizer.decode(target, skip_special_tokens=True) == "Ein Mann (mit Hut), zwei-drei Leute."


@pytest.mark.parametrize("text", ["source.bpe.en", "source.tok.en"])
@pytest.mark.parametrize("name", ["resi_dual_3-3", "transformer_2-3"])
def test_fairseqs_own_checkpoints_translate_as_fairseq_does(name, text, tmp_path):
    """The best hypothesis of every sentence token by token, and its score to 1e-4."""
    codes = REFERENCE / "bpe_codes" if text == "source.tok.en" else None
    folder = convert_fairseq_checkpoint(**official_files(name, tmp_path / "converted", bpe_codes=codes))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    symbols = read_dictionary(REFERENCE / "dict.de.txt")
    sentences = (REFERENCE / text).read_text(encoding="utf-8").splitlines()
    official = json.loads((REFERENCE / f"{name}.translations.json").read_text(encoding="utf-8"))["translations"]
    assert len(sentences) == len(official) == 24
    for sentence, translation in zip(sentences, official, strict=True):
        inputs = tokenizer(sentence, return_tensors="pt", return_token_type_ids=False)
        found = model.generate(
            **inputs,
            max_new_tokens=int(1.2 * inputs["input_ids"].shape[1] + 10),
            return_dict_in_generate=True,
            output_scores=True,
        )
        best = translation["hypotheses"][0]
        tokens = [symbols[i] for i in found.sequences[0].tolist() if i not in (1, 2)]
        assert " ".join(tokens) == best["tokens"]
        score = found.sequences_scores[0].item() / math.log(2)
        assert score == pytest.approx(best["score_base2_per_token"], abs=1e-4)
