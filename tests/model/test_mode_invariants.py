# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What must hold of the modes whatever the weights: reductions to each other, identities, counts."""

from __future__ import annotations

import json
import math
from functools import cache

import pytest
import torch
from support.models import SOURCE, TARGET, copy_shared, encoder_in_and_out, logits, make, randomise
from support.reference import FIXTURES
from torch import nn

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration


@pytest.mark.parametrize(
    ("mode", "fields"),
    [
        ("admin", {}),
        ("admin_torch", {"ln_mode_options": {"target": "linear"}}),
        ("admin_torch", {"ln_mode_options": {"target": "linear", "learned": True}}),
        ("wskip_ln", {}),
        ("xskip_ln", {"ln_mode_options": {"skip_scale": 1.0}}),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else "-".join(map(str, value.get("ln_mode_options", {}).values()))
    ),
)
def test_a_shortcut_of_weight_one_is_post_ln_bitwise(mode, fields):
    post_ln = randomise(make("post_ln"))
    assert torch.equal(logits(copy_shared(post_ln, make(mode, **fields))), logits(post_ln))


def test_rskip_of_order_one_is_post_ln_bitwise():
    post_ln = randomise(make("post_ln"))
    model = make("rskip_ln", ln_mode_options={"skip_order": 1})
    renamed = {name.replace(".norm.", ".norms.0."): tensor for name, tensor in post_ln.state_dict().items()}
    model.load_state_dict(renamed)
    assert torch.equal(logits(model), logits(post_ln))


def test_resi_dual_without_its_dual_norm_is_post_ln_bitwise():
    post_ln = randomise(make("post_ln"))
    model = copy_shared(post_ln, make("resi_dual", ln_mode_options={"dual_scale": 0.3}))
    for stack in (model.model.encoder, model.model.decoder):
        nn.init.zeros_(stack.boundary.norm.weight)
        nn.init.zeros_(stack.boundary.norm.bias)
    assert torch.equal(logits(model), logits(post_ln))


def test_resi_dual_main_stream_is_post_ln_whatever_the_dual_norm():
    post_ln = randomise(make("post_ln"))
    model = copy_shared(post_ln, make("resi_dual"))
    states = [
        m.model.encoder(SOURCE, attention_mask=SOURCE.ne(1), output_hidden_states=True).hidden_states[:-1]
        for m in (post_ln, model)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_constant_shortcuts_agree(scale):
    xskip = randomise(make("xskip_ln", ln_mode_options={"skip_scale": scale}))
    admin = copy_shared(xskip, make("admin"))
    for name, parameter in admin.named_parameters():
        if name.endswith("omega"):
            nn.init.constant_(parameter, scale)
    torch.testing.assert_close(logits(admin), logits(xskip), rtol=1e-5, atol=1e-6)


def zero_branches(model):
    for module in model.modules():
        if getattr(module, "role", None) in ("attention_output", "ffn_out"):
            nn.init.zeros_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


@pytest.mark.parametrize(
    ("mode", "fields", "factor"),
    [
        ("t_fixup", {}, 1.0),
        ("rezero", {}, 1.0),
        ("fixup", {}, 1.0),
        ("xskip", {"ln_mode_options": {"skip_scale": 1.5}}, 1.5**4),
        ("b2t_no_ln", {}, (min(2 / 12, 2**-0.15) + 16**-0.2) ** 2),
    ],
    ids=["t_fixup", "rezero", "fixup", "xskip", "b2t_no_ln"],
)
def test_stack_without_branches_scales_its_input(mode, fields, factor):
    x, out = encoder_in_and_out(zero_branches(make(mode, **fields)))
    torch.testing.assert_close(out, factor * x, rtol=1e-6, atol=1e-6)


def test_fresh_rezero_is_the_identity():
    x, out = encoder_in_and_out(make("rezero"))
    assert torch.equal(out, x)


def test_fresh_fixup_predicts_nothing_when_its_output_is_untied():
    model = make("fixup", tie_word_embeddings=False)
    assert logits(model).abs().max() == 0
    loss = model(SOURCE, attention_mask=SOURCE.ne(1), labels=TARGET).loss
    assert loss.item() == pytest.approx(math.log(30))
    assert logits(make("fixup")).abs().max() > 0  # tied: y_0 E^T


def test_rezero_has_one_gate_per_layer_or_one_per_branch():
    shared, single = make("rezero"), make("rezero", ln_mode_options={"gate": "sublayer"})
    count = {id(m): [n for n, _ in m.named_parameters() if n.endswith("alpha")] for m in (shared, single)}
    assert len(count[id(shared)]) == 2 + 3
    assert len(count[id(single)]) == 2 * 2 + 3 * 3
    with torch.no_grad():
        for model in (shared, single):
            for name, parameter in model.named_parameters():
                if name.endswith("alpha"):
                    parameter.fill_(0.7)
    torch.testing.assert_close(logits(copy_shared(shared, single)), logits(shared))


def test_realformer_of_one_layer_is_post_ln():
    depth = {"encoder_layers": 1, "decoder_layers": 1, "attention": "eager"}
    post_ln = randomise(make("post_ln", **depth))
    assert torch.equal(logits(copy_shared(post_ln, make("realformer", **depth))), logits(post_ln))


@pytest.mark.parametrize("running_mean", [False, True])
def test_realformer_masks_padding_in_every_layer(running_mean):
    model = randomise(make("realformer", "eager", encoder_layers=3, ln_mode_options={"running_mean": running_mean}))
    with torch.no_grad():
        outputs = model(SOURCE, attention_mask=SOURCE.ne(1), decoder_input_ids=TARGET, output_attentions=True)
    for weights in (*outputs.encoder_attentions, *outputs.cross_attentions):
        assert weights[1, :, :, 3:].abs().max() == 0
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_realformer_without_new_scores_repeats_the_first_attention():
    model = randomise(make("realformer", "eager"))
    later = model.model.encoder.layers[1].self_attn
    nn.init.zeros_(later.q_proj.weight)
    nn.init.zeros_(later.q_proj.bias)
    with torch.no_grad():
        first, second = model.model.encoder(SOURCE[:1], output_attentions=True).attentions
    torch.testing.assert_close(second, first)


def test_realformer_needs_eager_attention():
    with pytest.raises(ValueError, match="'realformer' needs attn_implementation 'eager', not 'sdpa'"):
        make("realformer", "sdpa")


def test_dlcl_post_with_one_hot_weights_is_post_ln():
    post_ln = randomise(make("post_ln"))
    for parameter in (p for name, p in post_ln.named_parameters() if ".norm." in name):
        nn.init.ones_(parameter) if parameter.mean() > 0.5 else nn.init.zeros_(parameter)
    model = copy_shared(post_ln, make("dlcl_post"))
    for name, parameter in model.named_parameters():
        if name.endswith("mix.weight"):
            nn.init.zeros_(parameter)
            nn.init.ones_(parameter[-1:])
    torch.testing.assert_close(logits(model), logits(post_ln), rtol=1e-5, atol=1e-5)


def test_b2t_without_its_edge_is_post_ln_and_with_it_is_not():
    post_ln = randomise(make("post_ln"))
    b2t = copy_shared(post_ln, make("b2t"))
    assert (logits(b2t) - logits(post_ln)).abs().max() > 1e-2
    layer = b2t.model.encoder.layers[0]
    x = torch.randn(1, 3, 16)
    a = nn.functional.normalize(torch.randn(1, 3, 16))
    middle, kept = layer.self_attn_residual((x,), lambda z: a)
    assert torch.equal(kept, x)
    assert torch.equal(middle, layer.self_attn_residual.norm(x + a))
    (out,) = layer.ffn_residual((middle, kept), lambda z: a)
    assert torch.equal(out, layer.ffn_residual.norm(x + (middle + a)))


def test_looklinear_feed_forward_is_linear_at_the_start():
    ffn = make("post_ln", init_style="looklinear").model.encoder.layers[0].ffn
    x, y = torch.randn(2, 5, 16)
    torch.testing.assert_close(ffn(x)[0] + ffn(y)[0], ffn(x + y)[0], rtol=1e-4, atol=2e-6)


def test_sub_ln_makes_attention_blind_to_the_scale_of_values():
    attention = randomise(make("sub_ln")).model.encoder.layers[0].self_attn
    nn.init.zeros_(attention.v_proj.bias)
    x = torch.randn(2, 5, 16)
    before = attention(x)[0]
    with torch.no_grad():
        attention.v_proj.weight.mul_(7.0)
    torch.testing.assert_close(attention(x)[0], before, rtol=1e-4, atol=1e-4)


def test_normformer_head_scale_before_the_output_scales_its_weight():
    model = randomise(make("normformer", ln_mode_options={"head_scale_position": "pre_out"}))
    attention = model.model.encoder.layers[0].self_attn
    with torch.no_grad():
        attention.inner["heads"].weight.fill_(2.0)
    x = torch.randn(2, 5, 16)
    before = attention(x)[0]
    with torch.no_grad():
        attention.inner["heads"].weight.fill_(1.0)
        attention.out_proj.weight.mul_(2.0)
    torch.testing.assert_close(attention(x)[0], before)


@cache
def count_parameters(name):
    attention = "eager" if name == "realformer" else "sdpa"
    with torch.device("meta"):
        config = ResidualConfig(vocab_size=100, ln_mode=name)
        model = ResidualForConditionalGeneration._from_config(config, attn_implementation=attention)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("mode", "extra"),
    [
        ("resi_dual", 4 * 512),
        ("pre_ln", 4 * 512),
        ("admin", 30 * 512),
        ("rskip_ln", 30 * 2 * 512),
        ("rezero", -30 * 2 * 512 + 12),
        ("deep_norm", 0),
        ("xskip_ln", 0),
        ("b2t", 0),
        ("realformer", 0),
        ("t_fixup", -30 * 2 * 512),
        ("dlcl_post", 2 * sum(range(1, 8)) + 12 * 2 * 512),
        ("dense_former", 4 * 512 + 2 * 6 * 9 // 2),
    ],
)
def test_number_of_parameters_beside_post_ln_of_the_base_model(mode, extra):
    assert count_parameters(mode) - count_parameters("post_ln") == extra


def test_deep_norm_is_a_constant_shortcut():
    deep = randomise(make("deep_norm"))
    alphas = {"encoder": 0.81 * (2**4 * 3) ** (1 / 16), "decoder": 9**0.25}  # DeepNet, table 2: N = 2, M = 3
    options = {f"{stack}_ln_mode_options": {"skip_scale": alpha} for stack, alpha in alphas.items()}
    torch.testing.assert_close(logits(copy_shared(deep, make("xskip_ln", **options))), logits(deep))


def test_fresh_dlcl_weights_are_means():
    for mode in ("dlcl_post", "dlcl_pre"):
        mixes = [p for name, p in make(mode).named_parameters() if name.endswith("mix.weight")]
        assert max(map(len, mixes)) == 3 + 1
        for weights in mixes:
            torch.testing.assert_close(weights, torch.full_like(weights, 1 / len(weights)))


def test_dual_scale_matters_through_eps_only():
    """LN(s*r) = LN(r) but for eps: the scale keeps fp16 in range and hardly changes the numbers."""
    full = randomise(make("resi_dual"))
    small = copy_shared(full, make("resi_dual", ln_mode_options={"dual_scale": 0.05}))
    difference = (logits(full) - logits(small)).abs().max()
    assert 0 < difference < 1e-3


def test_t_fixup_scales_the_plain_initialisation():
    official = json.loads((FIXTURES / "t_fixup_init_factors.json").read_text())
    fields = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 128, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
    fields |= {"init_style": "t_fixup", "vocab_size": 500}
    scaled, plain = (dict(make(mode, **fields).named_parameters()) for mode in ("t_fixup", "post_ln"))
    for name, factor in official["factor_over_xavier"].items():
        ours = "model." + name.replace(".fc", ".ffn.fc")
        ratio = scaled[ours].std() / plain[ours].std()
        assert ratio.item() == pytest.approx(factor, rel=1e-5), name
