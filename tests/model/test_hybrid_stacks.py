"""Encoder and decoder with different modes: norm, initialization and embedding scale follow the mode of each stack."""

import json
import math

import pytest
import torch
from model.test_initialization import default, xavier
from support.models import make
from torch import nn

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.norms import NORM_TYPES, RMSNorm

D, FFN, VOCAB = 64, 256, 500
N, M = 4, 2  # layers of encoder and decoder
SIZES = {"d_model": D, "encoder_ffn_dim": FFN, "decoder_ffn_dim": FFN, "vocab_size": VOCAB}
SIZES |= {"encoder_layers": N, "decoder_layers": M}


def hybrid(encoder, decoder, **fields):
    return make("post_ln", encoder_ln_mode=encoder, decoder_ln_mode=decoder, **SIZES, **fields)


def std(layers, path):
    weights = [layer.get_submodule(path).weight.flatten() for layer in layers]
    return torch.cat(weights).std(correction=0).item()


def test_weights_follow_the_style_of_their_stack():
    """DeepNet, table 2, for the decoder; fairseq's Post-LN for the encoder."""
    model = hybrid("post_ln", "deep_norm").model
    beta = (12 * M) ** -0.25
    assert std(model.decoder.layers, "ffn.fc1") == pytest.approx(beta * xavier(D, FFN), rel=0.02)
    assert std(model.decoder.layers, "self_attn.q_proj") == pytest.approx(xavier(D, D), rel=0.02)
    assert std(model.encoder.layers, "ffn.fc1") == pytest.approx(default(D), rel=0.02)
    assert std(model.encoder.layers, "self_attn.q_proj") == pytest.approx(xavier(D, D) / math.sqrt(2), rel=0.02)
    assert not any(layer.ffn.fc1.bias.any() for layer in model.decoder.layers)
    assert all(layer.ffn.fc1.bias.any() for layer in model.encoder.layers)


ENCODER, DECODER = (9 * N) ** -0.25, (9 * M) ** -0.25  # T-Fixup's factors


@pytest.mark.parametrize(
    ("encoder", "decoder", "shared", "gains"),
    [
        ("t_fixup", "post_ln", False, (ENCODER, 1.0)),
        ("post_ln", "t_fixup", False, (1.0, DECODER)),
        ("t_fixup", "t_fixup", False, (ENCODER, DECODER)),
        ("t_fixup", "post_ln", True, (ENCODER, ENCODER)),
        ("post_ln", "t_fixup", True, (DECODER, DECODER)),
        ("t_fixup", "t_fixup", True, (ENCODER, ENCODER)),  # the official code scales it once
    ],
)
def test_tables_follow_the_mode_of_their_stack(encoder, decoder, shared, gains):
    model = hybrid(encoder, decoder, share_encoder_decoder_embeddings=shared).model
    stds = [stack.embed_tokens.weight.std().item() for stack in (model.encoder, model.decoder)]
    assert stds == pytest.approx([gain * D**-0.5 for gain in gains], rel=0.02)


@pytest.mark.parametrize(("encoder", "decoder", "zero"), [("fixup", "post_ln", False), ("post_ln", "fixup", True)])
def test_an_untied_output_projection_follows_the_decoder(encoder, decoder, zero):
    model = hybrid(encoder, decoder, tie_word_embeddings=False)
    assert model.lm_head.weight.any().item() is not zero


def test_learned_positions_do_not_follow_the_output_projection():
    """Fixup starts an untied output projection, and nothing else in the embeddings, from zero."""
    positions = make("fixup", position_embedding_type="learned", **SIZES).model.encoder.embed_positions
    assert positions.weight.std().item() == pytest.approx(D**-0.5, rel=0.1)


def test_norms_follow_the_mode_of_their_stack():
    model = hybrid("post_ln", "peri_ln", embedding_norm=True).model
    kinds = {
        stack: {type(module) for module in model.get_submodule(stack).modules()} & set(NORM_TYPES.values())
        for stack in ("encoder", "decoder")
    }
    assert kinds == {"encoder": {nn.LayerNorm}, "decoder": {RMSNorm}}


def test_a_value_for_the_whole_config_is_for_both_stacks():
    fields = {"norm_type": "scale_norm", "init_style": "fairseq_legacy", "decoder_norm_type": "rms_norm"}
    config = hybrid("post_ln", "peri_ln", **fields).config
    assert [config.of(stack).norm_type for stack in ("encoder", "decoder")] == ["scale_norm", "rms_norm"]
    assert [config.of(stack).init_style for stack in ("encoder", "decoder")] == ["fairseq_legacy"] * 2


def test_the_choices_of_a_hybrid_are_stored(tmp_path):
    config = ResidualConfig(ln_mode="post_ln", decoder_ln_mode="peri_ln", encoder_init_style="t_fixup")
    config.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored["encoder_norm_type"], stored["decoder_norm_type"]) == ("layer_norm", "rms_norm")
    loaded = ResidualConfig.from_pretrained(tmp_path)
    assert [loaded.of(stack).init_style for stack in ("encoder", "decoder")] == ["t_fixup", "fairseq_main"]


def test_configs_stored_before_there_were_fields_for_each_stack_stay_what_they_were(tmp_path):
    """They hold what `ln_mode` resolved to, for both stacks."""
    old = {"model_type": "residual", "ln_mode": "post_ln", "decoder_ln_mode": "peri_ln", "norm_type": "layer_norm"}
    (tmp_path / "config.json").write_text(json.dumps({**old, "init_style": "fairseq_main"}))
    config = ResidualConfig.from_pretrained(tmp_path)
    assert {config.of(stack).norm_type for stack in ("encoder", "decoder")} == {"layer_norm"}
    assert {config.of(stack).init_style for stack in ("encoder", "decoder")} == {"fairseq_main"}
