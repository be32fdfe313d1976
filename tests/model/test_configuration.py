import json
import math

import pytest
import torch
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from support.models import every_mode
from transformers import AutoConfig, GenerationConfig

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration, ResidualModel
from residual_hf.model.options import option
from residual_hf.model.presets import PRESETS

SMALL = {"vocab_size": 30, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3}
SMALL |= {"encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
UNUSUAL = {
    "ln_mode": "pre_ln",
    "decoder_ln_mode": "resi_dual",
    "decoder_ln_mode_options": {"dual_scale": 0.5},
    "norm_type": "rms_norm",
    "init_style": "fairseq_legacy",
    "dropout": 0,
    "eos_token_id": [2, 4],
    "share_encoder_decoder_embeddings": False,
    "decoder_vocab_size": 20,
    "source_lang": "de",
}


@pytest.mark.parametrize("fields", [{}, UNUSUAL], ids=["defaults", "unusual"])
def test_config_survives_a_folder(fields, tmp_path):
    config = ResidualConfig(**fields)
    config.save_pretrained(tmp_path)
    loaded = ResidualConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert {name: getattr(loaded, name) for name in fields} == fields
    assert json.loads(config.to_json_string(use_diff=False))["ln_mode"] == config.ln_mode


def test_another_mode_for_a_saved_model_is_warned_of(tmp_path, caplog):
    ResidualConfig(ln_mode="pre_ln", layer_norm_eps=1).save_pretrained(tmp_path)
    ResidualConfig.from_pretrained(tmp_path, ln_mode="pre_ln")
    assert caplog.text == ""
    assert ResidualConfig.from_pretrained(tmp_path, ln_mode="b2t", decoder_ln_mode="keel").decoder_ln_mode == "keel"
    assert "ln_mode: 'b2t' given, but the saved config has 'pre_ln'" in caplog.text
    assert "decoder_ln_mode: 'keel' given, but the saved config has None" in caplog.text


def test_saved_configs_with_names_of_other_programs_load(caplog):
    assert ResidualConfig.from_dict({"layers": 2, "d_model": 64}).d_model == 64
    assert "layers: unknown fields of the saved config" in caplog.text


@every_mode
def test_every_mode_fills_in_its_defaults(mode):
    config = ResidualConfig(ln_mode=mode)
    assert (config.norm_type, config.init_style) == (
        LN_MODES[mode].default_norm_type,
        LN_MODES[mode].default_init_style,
    )
    assert config.of("encoder").options == LN_MODES[mode].Options()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_valid_and_can_be_overridden(name):
    assert ResidualConfig.preset(name, dropout=0.5).dropout == 0.5


@pytest.mark.parametrize(("name", "millions"), [("dlcl_post_wmt_en_de_25l", 121), ("dlcl_pre_wmt_en_de_30l", 137)])
def test_presets_have_as_many_parameters_as_their_authors_state(name, millions):
    """Table of the DLCL repository's README."""
    with torch.device("meta"):
        model = ResidualForConditionalGeneration(ResidualConfig.preset(name))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions


def test_deep_b2t_presets_have_word_dropout_and_shallow_ones_do_not():
    rates = {
        name: (preset["dropout"], preset.get("encoder_word_dropout", 0.0), preset.get("decoder_word_dropout", 0.0))
        for name, preset in PRESETS.items()
        if name.startswith("b2t")
    }
    assert rates == {
        "b2t_wmt_en_de": (0.3, 0.0, 0.0),
        "b2t_wmt_en_de_18l": (0.5, 0.1, 0.1),
        "b2t_wmt_en_de_100l": (0.5, 0.1, 0.1),
    }


def test_names_that_transformers_uses():
    config = ResidualConfig(**SMALL)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (16, 2, 2)
    assert ResidualConfig(num_hidden_layers=4).decoder_layers == 6  # the name of the encoder's depth only


def test_caches_see_the_decoder():
    decoder = ResidualConfig(**SMALL, **UNUSUAL).get_text_config(decoder=True)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads, decoder.vocab_size) == (3, 4, 20)


def test_generation_settings_stay_out_of_the_config():
    tokens = {"bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"}
    assert ResidualConfig.__annotations__.keys() & GenerationConfig().to_dict().keys() == tokens | {"use_cache"}
    generation = GenerationConfig.from_model_config(ResidualConfig(eos_token_id=5))
    assert (generation.eos_token_id, generation.pad_token_id, generation.decoder_start_token_id) == (5, 1, 2)


THREE_HEADS = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
BAD = [
    ({"position_counting": "tokens"}, "position_counting: 'tokens' given, must be one of 'real_tokens', 'all_tokens'"),
    ({"position_padding": -1}, "position_padding -1 is outside the vocabulary"),
    ({"layers": 2}, "layers: unknown field; did you mean 'encoder_layers'"),
    ({"is_decoder_only": True, "layers": 2}, "layers: unknown field; did you mean 'decoder_layers'"),
    ({"encoder_embed_dim": 256}, "encoder_embed_dim: unknown field; did you mean 'd_model'"),
    ({"hidden_dropout_prob": 0.3}, "hidden_dropout_prob: unknown field; did you mean 'dropout'"),
    (
        {"is_decoder_only": True, "decoder_attention_heads": 4, "num_attention_heads": 2},
        "num_attention_heads: 2 given, but decoder_attention_heads is 4",
    ),
    ({"ln_mod": "pre_ln"}, "ln_mod: unknown field; did you mean 'ln_mode'"),
    ({"dual_scale": 0.05}, "dual_scale: unknown field; did you mean ln_mode_options={'dual_scale': ...}"),
    ({"ln_mode": "pre"}, "unknown ln_mode 'pre'; did you mean 'pre_ln'\\? `residual-hf modes` lists all"),
    ({"ln_mode": None}, "unknown ln_mode None"),
    ({"decoder_ln_mode": "post"}, "unknown ln_mode 'post'"),
    ({"ln_mode_options": {"dual_gain": 1.0}}, "'resi_dual'.*dual_gain: unknown field; did you mean 'dual_scale'"),
    ({"ln_mode_options": {"dual_scale": 0.0}}, "dual_scale: 0.0 given, must be a number > 0"),
    ({"ln_mode_options": {"dual_scale": "big"}}, "dual_scale: 'big' given, must be a number > 0"),
    ({"ln_mode": "pre_ln", "ln_mode_options": {"dual_scale": 1.0}}, "dual_scale: unknown field; known: none"),
    (
        {"encoder_ln_mode": "pre_ln", "decoder_ln_mode": "pre_ln", "ln_mode_options": {"dual_scale": 1.0}},
        "ln_mode_options are for ln_mode 'resi_dual', which no stack uses",
    ),
    ({"norm_type": "batch_norm"}, "norm_type: 'batch_norm' given, must be one of .*rms_norm"),
    ({"init_style": "he"}, "init_style: 'he' given, must be one of .*fairseq_main"),
    ({"position_embedding_type": "alibi"}, "position_embedding_type: 'alibi' given"),
    ({"activation_function": "sine"}, "unknown activation_function 'sine'"),
    ({"encoder_attention_heads": 7}, "encoder_attention_heads must divide d_model, but 512 % 7"),
    ({"decoder_layers": 0}, "decoder_layers: 0 given, must be an integer >= 1"),
    ({"dropout": 1.0}, "dropout: 1.0 given, must be a number >= 0 and < 1"),
    ({"layer_norm_eps": 0.0}, "layer_norm_eps: 0.0 given, must be a number > 0"),
    ({"layer_norm_eps": float("inf")}, "layer_norm_eps: inf given, must be a number > 0 and < inf"),
    ({"encoder_layers": 10**9}, "encoder_layers: 1000000000 given, must be an integer >= 1 and <= 10000"),
    ({"max_position_embeddings": 10**9}, "max_position_embeddings: 1000000000 given, .* <= 1048576"),
    ({"ada_norm_scale": 0}, "ada_norm_scale: 0 given, must be a number > 0"),
    ({"decoder_norm_type": "batch_norm"}, "decoder_norm_type: 'batch_norm' given, must be one of .*rms_norm"),
    ({"encoder_init_style": "he"}, "encoder_init_style: 'he' given, must be one of .*fairseq_main"),
    ({"d_model": 9, **THREE_HEADS}, "d_model must be even for sinusoidal positions, not 9"),
    ({"d_model": 9, **THREE_HEADS, "position_embedding_type": "sinusoidal_marian"}, "d_model must be even"),
    ({"decoder_vocab_size": 9}, r"decoder_vocab_size \(9\) differs from vocab_size \(32000\)"),
    ({"eos_token_id": 32000}, "eos_token_id 32000 is outside the vocabulary of 32000"),
    ({"pad_token_id": None}, "pad_token_id must be set"),
    ({"admin_profile": [1.0]}, "admin_profile has 1 values for 30 sub-layers"),
    ({"ln_mode": "admin", "admin_profile": [math.nan] * 30}, "admin_profile must have finite values"),
    ({"init_style": "looklinear", "decoder_ffn_dim": 47}, "decoder_ffn_dim must be even for looklinear, not 47"),
    ({"is_decoder_only": True, "encoder_layers": 2}, "encoder_layers: 2 given"),
    ({"is_decoder_only": True, "encoder_ln_mode": "post_ln"}, "encoder_ln_mode: 'post_ln' given"),
    ({"is_encoder_only": True, "decoder_ffn_dim": 8}, "decoder_ffn_dim: 8 given"),
    ({"is_encoder_only": True, "is_decoder_only": True}, "both True"),
    ({"is_encoder_decoder": False}, "set is_decoder_only or is_encoder_only"),
    (
        {"is_decoder_only": True, "share_encoder_decoder_embeddings": False},
        "share_encoder_decoder_embeddings: False given, must be True in a model with is_decoder_only",
    ),
    ({"is_encoder_only": True, "classifier_pooling": "max"}, "classifier_pooling: 'max' given, must be one of"),
    ({"is_decoder_only": True, "adaptive_cutoffs": [25, 10]}, r"adaptive_cutoffs: \[25, 10\] given"),
    ({"is_decoder_only": True, "adaptive_cutoffs": [32000]}, r"below vocab_size \(32000\)"),
    ({"is_decoder_only": True, "d_model": 16, "adaptive_cutoffs": [10, 20, 30]}, "adaptive_factor: 4 given"),
    ({"is_encoder_only": True, "adaptive_cutoffs": [10]}, "need is_decoder_only"),
    ({"position_embedding_type": "rotary"}, "'rotary' needs is_decoder_only"),
    ({"gated_ffn": True}, "gated_ffn needs is_decoder_only"),
    ({"is_decoder_only": True, "position_embedding_type": "rotary", "d_model": 8}, "needs an even"),
    ({"d_model": "512"}, "'d_model' expected int, got str"),
    ({"vocab_size": 99.5}, "'vocab_size' expected int, got float"),
    ({"dropout": "0.1"}, "'dropout' with value '0.1'"),
    ({"use_cache": "no"}, "'use_cache' expected bool"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=["-".join(map(str, fields)) for fields, _ in BAD])
def test_bad_fields_are_named(fields, message):
    with pytest.raises((StrictDataclassError, ValueError), match=f"(?s){message}"):
        ResidualConfig(**fields)


def test_a_declared_range_of_a_derived_config_is_checked():
    @strict
    class WithKernel(ResidualConfig):
        kernel: int = option(3, minimum=1, maximum=9)
        padding: str = option("same", choices=("same", "valid"))

    assert (WithKernel().kernel, WithKernel(kernel=9, padding="valid").padding) == (3, "valid")
    for fields, message in (
        ({"kernel": 0}, "kernel: 0 given, must be an integer >= 1 and <= 9"),
        ({"kernel": 10}, "kernel: 10 given, must be an integer >= 1 and <= 9"),
        ({"padding": "none"}, "padding: 'none' given, must be one of 'same', 'valid'"),
    ):
        with pytest.raises(StrictDataclassError, match=message):
            WithKernel(**fields)


@pytest.mark.parametrize("field", ["ln_mode", "init_style"])
def test_bad_values_assigned_later_neither_save_nor_build(field, tmp_path):
    config = ResidualConfig(**SMALL)
    setattr(config, field, "nope")
    with pytest.raises(ValueError, match="nope"):
        ResidualForConditionalGeneration(config)
    with pytest.raises((StrictDataclassError, ValueError), match="nope"):
        config.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_each_stack_has_a_mode():
    config = ResidualConfig(ln_mode="pre_ln", decoder_ln_mode="resi_dual")
    assert [config.of(stack).mode for stack in config.stacks] == [LN_MODES["pre_ln"], LN_MODES["resi_dual"]]
    config.decoder_ln_mode = "post"
    with pytest.raises(
        ValueError, match="unknown ln_mode 'post'; did you mean 'post_ln'\\? `residual-hf modes` lists all"
    ):
        config.of("decoder")


def test_options_reach_the_stacks_they_are_for():
    both = ResidualConfig(ln_mode_options={"dual_scale": 0.5}, decoder_ln_mode_options={"main_scale": 2.0})
    assert (both.of("encoder").options.dual_scale, both.of("encoder").options.main_scale) == (0.5, 1.0)
    assert (both.of("decoder").options.dual_scale, both.of("decoder").options.main_scale) == (0.5, 2.0)
    one = ResidualConfig(ln_mode_options={"dual_scale": 1}, encoder_ln_mode="pre_ln")
    assert one.of("decoder").options.dual_scale == 1.0
    assert one.of("encoder").options == LN_MODES["pre_ln"].Options()


def test_a_shared_vocabulary_has_one_size():
    shared, separate = ResidualConfig(vocab_size=50), ResidualConfig(**{**UNUSUAL, "vocab_size": 50})
    assert shared.decoder_vocab_size == 50
    shared.vocab_size = separate.vocab_size = 60
    assert (shared.decoder_vocab_size, separate.decoder_vocab_size) == (60, 20)


def test_remote_code_of_a_checkpoint_is_not_asked_for():
    config = ResidualConfig(custom_pipelines={"translation": {}}, auto_map={"AutoConfig": "x.Y"}, remark="kept")
    assert not hasattr(config, "custom_pipelines") and "auto_map" not in config.to_dict()
    assert config.remark == "kept"


def test_a_loaded_config_names_its_classes(tmp_path):
    """TRL chooses the Auto class of a reference model by them."""
    for fields in ({}, {"is_decoder_only": True}, {"conv_channels": 8}):
        ResidualConfig(**fields).save_pretrained(tmp_path)
        saved = json.loads((tmp_path / "config.json").read_text())["auto_map"]
        loaded = AutoConfig.from_pretrained(tmp_path)
        assert type(loaded) is ResidualConfig and loaded.auto_map == saved
    model = ResidualForConditionalGeneration(ResidualConfig(**SMALL))
    assert not hasattr(model.config, "auto_map")
    model.save_pretrained(tmp_path)
    model = ResidualForConditionalGeneration.from_pretrained(tmp_path)
    assert model.config.auto_map["AutoModelForSeq2SeqLM"] == "modeling_residual.ResidualForConditionalGeneration"


@pytest.mark.parametrize("field", ["is_decoder_only", "is_encoder_only"])
def test_the_kind_of_a_model_is_chosen_at_the_beginning(field):
    config = ResidualConfig()
    setattr(config, field, True)
    with pytest.raises(ValueError, match=f"{field}: True was set later: pass {field}=True to ResidualConfig"):
        ResidualModel(config)
    config = ResidualConfig(**{field: True})
    setattr(config, field, False)
    with pytest.raises(ValueError, match="is_encoder_decoder: False was set later"):
        config.validate_residual()
