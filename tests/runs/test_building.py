from dataclasses import replace

import pytest
import torch
from support.recipes import changed, make_recipe
from support.tiny_translator import tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import save_checkpoint
from residual_hf.generation.translator import Translator
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.runs.building import build_config, build_model, scale_dual_stream

SIZES = {"vocab_size": 40, "d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0}


def logits_and_range(config, dtype=torch.float32):
    torch.manual_seed(0)
    model = ResidualForConditionalGeneration(config).eval().to(dtype)
    streams = []
    hook = model.model.encoder.layers[-1].register_forward_hook(lambda m, i, out: streams.append(out[1]))
    batch = {"input_ids": torch.arange(4, 20)[None], "decoder_input_ids": torch.arange(3, 15)[None]}
    with torch.no_grad():
        logits = model(**batch).logits
    hook.remove()
    return logits, streams[0].abs().max().item()


def test_the_scale_follows_the_depth_and_changes_no_logit():
    config = ResidualConfig(ln_mode="resi_dual", encoder_layers=18, decoder_layers=5, **SIZES)
    scaled = scale_dual_stream(config)
    assert scaled.of("encoder").options.dual_scale == 1 / 32
    assert scaled.of("decoder").options.dual_scale == 1 / 8
    (plain, widest), (same, narrower) = logits_and_range(config), logits_and_range(scaled)
    assert torch.equal(plain, same)
    assert narrower == widest / 32


def test_a_scale_that_is_given_and_other_modes_stay():
    given = ResidualConfig(ln_mode="resi_dual", ln_mode_options={"dual_scale": 0.05}, **SIZES)
    assert scale_dual_stream(given) is given
    bounded = ResidualConfig(norm_type="dynamic_tanh")  # whose logits would change
    assert scale_dual_stream(bounded) is bounded
    hybrid = ResidualConfig(encoder_ln_mode="resi_dual", decoder_ln_mode="pre_ln", **SIZES)
    assert scale_dual_stream(hybrid).decoder_ln_mode_options is None
    assert scale_dual_stream(hybrid).of("encoder").options.dual_scale == 1 / 8
    alone = ResidualConfig(is_decoder_only=True, decoder_layers=2)
    assert scale_dual_stream(alone).of("decoder").options.dual_scale == 1 / 2


class Vocabulary:
    pad_token_id, bos_token_id, eos_token_id = 1, 0, 2

    def __len__(self):
        return 400


@pytest.mark.parametrize(("precision", "scale"), [("fp16", 0.5), ("bf16", 1.0), ("fp32", 1.0)])
def test_only_fp16_asks_for_it(tmp_path, precision, scale):
    recipe = make_recipe(tmp_path, precision=precision)
    recipe = replace(recipe, model=recipe.model | {"encoder_layers": 2, "decoder_layers": 2})
    assert build_config(recipe, Vocabulary()).of("decoder").options.dual_scale == scale


def test_the_config_says_with_which_tokens_the_model_was_trained(tmp_path):
    recipe = make_recipe(tmp_path)
    config = build_config(recipe, Vocabulary())
    assert not config.placeholders and not config.term_tags
    recipe = changed(recipe, "data", placeholders=True, glossary="terms.tsv")
    config = build_config(recipe, Vocabulary())
    assert config.placeholders and config.term_tags
    with pytest.raises(InputError, match="tokenizer.kind: 'pretokenized' given, must be another"):
        changed(recipe, "tokenizer", kind="pretokenized", path="dict.txt")
    with pytest.raises(InputError, match="bidirectional: true given, must be false with glossary"):
        changed(recipe, "data", bidirectional=True)


def test_a_vocabulary_size_that_the_tokenizer_does_not_have_is_reported(tmp_path, caplog):
    recipe = make_recipe(tmp_path)
    recipe = replace(recipe, model=recipe.model | {"vocab_size": 500})
    assert build_config(recipe, Vocabulary()).vocab_size == 400
    assert "model.vocab_size: 500 in the recipe, replaced by 400" in caplog.text


@pytest.mark.parametrize("beams", [1, 3])
def test_the_saved_model_has_the_search_of_the_recipe(tmp_path, beams):
    search = {"num_beams": beams, "length_penalty": 0.6 if beams > 1 else 1.0, "early_stopping": beams == 1}
    recipe = changed(make_recipe(tmp_path), "decoding", **search, max_length_a=0.5, max_length_b=7)
    tokenizer = tiny_tokenizer()
    folder = save_checkpoint(build_model(recipe, tokenizer), tokenizer, tmp_path / "model")
    assert Translator.from_pretrained(folder).settings == recipe.decoding
    assert Translator.from_pretrained(folder, max_length_b=9).settings.max_length_b == 9
