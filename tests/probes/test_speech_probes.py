"""Probes of speech models, whose encoder has a state for four frames of the mask."""

import paper_probes
import pytest
import torch
from residual_stream import position_recall, rotation_change
from skip_scale import effective_scale
from stability import output_change
from stream_mixing import mixing_weights

from residual_hf import ResidualConfig, ResidualForSpeechSeq2Seq
from residual_hf.probes import representations

BATCH = {
    "input_features": torch.randn(2, 16, 6, generator=torch.Generator().manual_seed(1)),
    "attention_mask": (torch.arange(16) < torch.tensor([[16], [8]])).long(),
    "labels": torch.tensor([[4, 5, 6, 2], [7, 2, -100, -100]]),
}


def speech(mode, **fields):
    torch.manual_seed(0)
    sizes = {"d_model": 8, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "conv_channels": 8, "num_mel_bins": 6}
    config = ResidualConfig(ln_mode=mode, vocab_size=20, max_source_positions=64, **sizes, **fields)
    return ResidualForSpeechSeq2Seq(config).eval()


def test_states_of_padding_are_left_out():
    model = speech("rskip_ln")
    states = paper_probes.record(model, BATCH, "output")
    assert {(site.stack, len(x)) for site, x in states.items()} == {("encoder", 4 + 2), ("decoder", 4 + 2)}
    with torch.no_grad():
        encoded = model.get_encoder()(BATCH["input_features"], BATCH["attention_mask"]).last_hidden_state
    (last,) = (x for site, x in states.items() if site.place == ("encoder", 2, "feed_forward"))
    assert torch.equal(last, torch.cat([encoded[0], encoded[1, :2]]))


@pytest.mark.parametrize("mode", ["rskip_ln", "hyper_connections"])
def test_probes_of_states(mode):
    model = speech(mode)
    assert len(paper_probes.layer_cosines(model, BATCH)) == 4 + 1
    assert len(representations.activation_ranges(model, BATCH)) and output_change(model, BATCH)
    if mode == "rskip_ln":
        assert len(representations.branch_share(model, BATCH)) == len(effective_scale(model, BATCH)) == 2 * 2 + 3
    else:
        assert mixing_weights(model, BATCH)


def test_the_stream_of_speech_may_be_rotated():
    assert rotation_change(speech("pre_ln", norm_type="rms_norm"), BATCH) < 1e-12
    assert {row.stack for row in position_recall(speech("pre_ln"), BATCH)} == {"encoder", "decoder"}
