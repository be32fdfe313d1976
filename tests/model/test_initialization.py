"""Laws of the initial weights against their closed forms; the official figures are in test_official_outputs.py."""

import math

import pytest
import torch
from support.models import make

from residual_hf.model.initialization import INIT_STYLES

D, FFN = 128, 512
WIDE = {"d_model": D, "encoder_ffn_dim": FFN, "decoder_ffn_dim": FFN, "vocab_size": 500}


def xavier(fan_in, fan_out):
    return math.sqrt(2 / (fan_in + fan_out))


def default(fan_in):
    return 1 / math.sqrt(3 * fan_in)


SMALL = math.sqrt(2 / (5 * D))
# standard deviations of q/k/v, attention output, first and second map of the feed-forward, and of the q/k/v bias
EXPECTED = {
    "fairseq_main": (xavier(D, D) / math.sqrt(2), xavier(D, D), default(D), default(FFN), default(D)),
    "fairseq_legacy": (xavier(D, D) / math.sqrt(2), xavier(D, D), xavier(D, FFN), xavier(D, FFN), 0),
    "t_fixup": (xavier(D, D) / math.sqrt(2), xavier(D, D), xavier(D, FFN), xavier(D, FFN), default(D)),
    "xavier_normal": (xavier(D, D), xavier(D, D), xavier(D, FFN), xavier(D, FFN), 0),
    "torchscale": (default(D), default(D), default(D), default(FFN), default(D)),
    "looklinear": (xavier(D, D) / math.sqrt(2), xavier(D, D), xavier(D, FFN), xavier(D, FFN), 0),
    "small_init": (SMALL, SMALL, xavier(D, FFN), xavier(D, FFN), 0),
}


@pytest.mark.parametrize("style", sorted(INIT_STYLES))
def test_laws_of_a_style(style):
    layers = make("post_ln", init_style=style, **WIDE).model.encoder.layers

    def std(get):
        return torch.stack([get(layer).flatten() for layer in layers]).std(correction=0).item()

    found = (
        std(lambda layer: layer.self_attn.q_proj.weight),
        std(lambda layer: layer.self_attn.out_proj.weight),
        std(lambda layer: layer.ffn.fc1.weight),
        std(lambda layer: layer.ffn.fc2.weight),
    )
    assert found == pytest.approx(EXPECTED[style][:-1], rel=0.02)
    assert std(lambda layer: layer.self_attn.q_proj.bias) == pytest.approx(EXPECTED[style][-1], rel=0.15)


@pytest.mark.parametrize("untied", [False, True])
def test_tables_are_normal_with_a_zero_row_for_padding(untied):
    model = make("resi_dual", tie_word_embeddings=not untied, **WIDE)
    table = model.get_input_embeddings().weight
    assert not table[1].any()
    assert table.std().item() == pytest.approx(D**-0.5, rel=0.02)
    assert table.abs().max() > 3.5 * D**-0.5  # a normal law, not a uniform one
    assert model.lm_head.weight.std().item() == pytest.approx(D**-0.5, rel=0.02)
    assert bool(model.lm_head.weight[1].any()) == untied


@pytest.mark.parametrize("mode", ["post_ln", "admin", "b2t", "b2t_no_ln", "deep_norm", "sub_ln", "t_fixup", "fixup"])
def test_initial_weights_do_not_grow_from_one_call_to_the_next(mode):
    """A law is set, not multiplied onto what is there. One mode for each style and kind of gain."""
    model = make(mode, None, encoder_layers=1, decoder_layers=2, **WIDE)
    before = {name: parameter.detach().std(correction=0) for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter._is_hf_initialized = False
    for module in model.modules():
        module._is_hf_initialized = False
    model.init_weights()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.detach().std(correction=0), before[name], rtol=0.25, atol=1e-6, msg=lambda t, name=name: name + t
        )


def test_a_style_of_ones_own_law_is_kept_apart_from_the_mode():
    deep = make("deep_norm", init_style="fairseq_main", **WIDE).model.encoder.layers[0].ffn.fc1.weight
    plain = make("post_ln", init_style="fairseq_main", **WIDE).model.encoder.layers[0].ffn.fc1.weight
    beta = 0.87 * (2**4 * 3) ** (-1 / 16)  # DeepNet, table 2: encoder of 2 layers, decoder of 3
    assert (deep.std() / plain.std()).item() == pytest.approx(beta, rel=0.01)


@pytest.mark.parametrize("norm_type", ["layer_norm", "rms_norm", "scale_norm"])
def test_output_gain_halves_the_initial_output_of_resi_dual_and_nothing_else(norm_type, tmp_path):
    ids = torch.randint(3, WIDE["vocab_size"], (2, 7))

    def outputs(gain):
        options = {"output_gain": gain}
        model = make("resi_dual", norm_type=norm_type, ln_mode_options=options, **WIDE).eval()
        with torch.no_grad():
            return model, model.model.encoder(ids).last_hidden_state

    (official, full), (model, half) = outputs(1.0), outputs(0.5)
    torch.testing.assert_close(half, full / 2)
    changed = {
        name: (parameter / other).unique().tolist()
        for (name, parameter), other in zip(model.named_parameters(), official.parameters(), strict=True)
        if not parameter.equal(other)
    }
    last = {"encoder": "layers.1.ffn_residual.norm", "decoder": "layers.2.ffn_residual.norm"}
    assert changed == {f"model.{stack}.{last[stack]}.weight": [0.5] for stack in last} | {
        f"model.{stack}.boundary.norm.weight": [0.5] for stack in last
    }

    with torch.no_grad():
        model.model.encoder.boundary.norm.weight.fill_(3.0)
    model.save_pretrained(tmp_path)
    assert (type(model).from_pretrained(tmp_path).model.encoder.boundary.norm.weight == 3.0).all()


def test_output_gain_needs_a_norm_with_a_gain():
    with pytest.raises(ValueError, match="norm_type: 'ada_norm' given, which has no gain that could start at 0.5"):
        make("resi_dual", norm_type="ada_norm", ln_mode_options={"output_gain": 0.5})
