# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What characterises newer modes, and what all of them must do."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from support.models import SOURCE, TARGET, copy_shared, encoder_in_and_out, logits, make, randomise
from torch import nn

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.modes_multi_stream import sinkhorn

MODERN_FILES = tuple(f".modes_{part}" for part in ("norm_placement", "multi_stream", "branch_scaling", "gpas"))
MODERN = sorted(name for name, m in LN_MODES.items() if m.__module__.endswith(MODERN_FILES))
VARIANTS = [(name, {}) for name in MODERN] + [
    ("hybrid_norm", {"ln_mode_options": {"star": True}}),
    ("hyper_connections", {"ln_mode_options": {"streams": 2, "dynamic": False}}),
    ("attention_residuals", {"ln_mode_options": {"block_size": 4}}),
    ("attention_residuals", {"ln_mode_options": {"delta": True}}),
    ("siamese_norm", {"ln_mode_options": {"hybrid": True}}),
    ("mhc", {"ln_mode_options": {"learned_end": True}}),
    ("pre_ln", {"norm_type": "scale_norm"}),
    ("post_ln", {"norm_type": "ada_norm"}),
    ("mhc", {"norm_type": "scale_norm"}),
    ("mhc", {"ln_mode_options": {"mixing": "kronecker"}}),
    ("keel", {}),
    ("span_norm", {}),
]


def parametrize(variants):
    ids = ["-".join([name, *map(str, fields.values())]) for name, fields in variants]
    return pytest.mark.parametrize(("mode", "fields"), variants, ids=ids)


variants = parametrize(VARIANTS)
with_fields = parametrize([(name, fields) for name, fields in VARIANTS if fields])
"""For what other files test for every mode without options: test_generation.py, test_modeling_residual.py,
test_mode_constants.py and test_capabilities.py."""


def fill(model, suffix, value):
    """Set all parameters whose name ends so; there must be some."""
    found = [parameter for name, parameter in model.named_parameters() if name.endswith(suffix)]
    assert found
    for parameter in found:
        nn.init.constant_(parameter, value)
    return model


@with_fields
def test_cached_decoding_equals_the_full_pass(mode, fields):
    model = randomise(make(mode, **fields))
    full = logits(model)
    memory, cache, steps = model.get_encoder()(SOURCE, attention_mask=SOURCE.ne(1)), None, []
    for t in range(TARGET.shape[1]):
        with torch.no_grad():
            outputs = model(
                encoder_outputs=memory,
                attention_mask=SOURCE.ne(1),
                decoder_input_ids=TARGET[:, t : t + 1],
                past_key_values=cache,
                use_cache=True,
            )
        cache = outputs.past_key_values
        steps.append(outputs.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), full, rtol=1e-4, atol=1e-4 * full.abs().max().item())


@pytest.mark.parametrize(("mode", "fields"), [variant for variant in VARIANTS if "norm_type" in variant[1]])
def test_gradient_reaches_every_parameter(mode, fields):
    """Of other norms; `test_equations.py` compares the gradients of every mode and option."""
    model = randomise(make(mode, **fields)).train()
    model(SOURCE, attention_mask=SOURCE.ne(1), labels=TARGET).loss.backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert without == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


@with_fields
def test_saved_model_gives_the_same_numbers(mode, fields, tmp_path):
    model = randomise(make(mode, **fields))
    model.save_pretrained(tmp_path)
    loaded = ResidualForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded), logits(model))


@with_fields
def test_initialisation_does_not_depend_on_the_constructor(mode, fields):
    """`_init_weights` sets every parameter a mode adds: a model whose values were lost starts the same."""
    fresh, spoilt = make(mode, **fields), make(mode, **fields)
    for name, module in spoilt.named_modules():
        if "boundary" in name or "residual" in name:
            for parameter in module.parameters(recurse=False):
                nn.init.constant_(parameter, 7.0)
                parameter._is_hf_initialized = False
            spoilt._init_weights(module)
    for (name, a), b in zip(fresh.named_parameters(), spoilt.parameters(), strict=True):
        assert torch.equal(a, b), name


@with_fields
def test_padding_of_the_source_makes_no_difference(mode, fields):
    model = randomise(make(mode, **fields))
    alone = SOURCE[1:, :3]
    with torch.no_grad():
        expected = model(alone, attention_mask=alone.ne(1), decoder_input_ids=TARGET[1:]).logits
    torch.testing.assert_close(logits(model)[1:], expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@with_fields
def test_bfloat16_stays_bfloat16(mode, fields):
    out = logits(make(mode, **fields).to(torch.bfloat16))
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


@pytest.mark.parametrize(
    ("mode", "fields", "suffix"),
    [
        ("mix_ln", {"norm_type": "layer_norm", "ln_mode_options": {"fraction": 0.0}}, None),
        ("layer_scale", {"ln_mode_options": {"initial_scale": 1.0}}, None),
        ("ln_scaling", {"norm_type": "layer_norm", "encoder_layers": 1, "decoder_layers": 1}, None),
        ("layer_scale", {}, "residual.scale"),
    ],
)
def test_pre_ln_as_a_special_value_bitwise(mode, fields, suffix):
    depth = {name: value for name, value in fields.items() if name.endswith("layers")}
    pre_ln = randomise(make("pre_ln", **depth))
    model = copy_shared(pre_ln, make(mode, **fields))
    if suffix is not None:
        fill(model, suffix, 1.0)
    assert torch.equal(logits(model), logits(pre_ln))


def test_mix_ln_of_fraction_one_is_post_ln_behind_a_norm():
    model = randomise(make("mix_ln", norm_type="layer_norm", ln_mode_options={"fraction": 1.0}))
    post_ln = make("post_ln")
    post_ln.load_state_dict({n: p for n, p in model.state_dict().items() if ".boundary." not in n})
    with torch.no_grad():
        mine = model.model.encoder(SOURCE, attention_mask=SOURCE.ne(1)).last_hidden_state
        theirs = post_ln.model.encoder(SOURCE, attention_mask=SOURCE.ne(1)).last_hidden_state
        assert torch.equal(mine, model.model.encoder.boundary.norm(theirs))


def test_mix_ln_counts_layers_from_below_rounding_down():
    def layers(depth, **options):
        model = make("mix_ln", encoder_layers=depth, ln_mode_options=options)
        return [layer.ffn_residual.is_post for layer in model.model.encoder.layers]

    assert layers(3) == [False] * 3
    assert layers(5) == [True] + [False] * 4
    assert sum(layers(100, fraction=0.29)) == 29


def test_sandwich_ln_ignores_the_scale_of_a_branch_and_pre_ln_does_not():
    def change(mode):
        model = make(mode)
        before = logits(model)
        with torch.no_grad():
            for module in model.modules():
                if getattr(module, "role", None) in ("attention_output", "ffn_out"):
                    module.weight.mul_(5.0)
                    module.bias.mul_(5.0)
        return (logits(model) - before).abs().max()

    assert change("pre_ln") > 1e-1
    for mode in ("sandwich_ln", "peri_ln", "output_ln"):
        assert change(mode) < 1e-3


def test_output_ln_adds_a_normalised_branch():
    connection = make("output_ln").model.encoder.layers[0].ffn_residual
    x, a = torch.randn(2, 1, 3, 16)
    seen = []
    (out,) = connection((x,), lambda z, norm: seen.append(z) or norm(a))
    assert seen[0] is x
    torch.testing.assert_close(out - x, nn.functional.layer_norm(a, (16,)))


def test_ln_scaling_damps_what_a_branch_sees():
    layers = make("ln_scaling", encoder_layers=4).model.encoder.layers
    x = 3 * torch.randn(1, 5, 16)
    seen = []
    for layer in layers:
        layer.ffn_residual((x,), lambda z: seen.append(z) or z)
    for depth, z in enumerate(seen, start=1):
        torch.testing.assert_close(z * math.sqrt(depth), seen[0])


@pytest.mark.parametrize("star", [False, True])
def test_hybrid_norm_shortcuts(star):
    layers = make("hybrid_norm", ln_mode_options={"star": star}).model.decoder.layers
    x, a = torch.randn(2, 1, 3, 16)
    for depth, layer in enumerate(layers):
        pre = star and depth == 0
        for connection in (layer.self_attn_residual, layer.encoder_attn_residual, layer.ffn_residual):
            seen = []
            (out,) = connection((x,), lambda z, seen=seen: seen.append(z) or a)
            ffn = connection.place.kind == "feed_forward"
            normed = nn.functional.rms_norm(x, (16,), eps=1e-5)
            torch.testing.assert_close(seen[0], normed if pre or ffn else x)
            torch.testing.assert_close(out, a + (normed if ffn and not pre else x))


def test_hybrid_norm_attention_is_blind_to_the_scale_of_queries_keys_and_values():
    layer = make("hybrid_norm").model.decoder.layers[0]
    for attention in (layer.self_attn, layer.encoder_attn):
        x = torch.randn(2, 5, 16)
        before = attention(x, encoder_hidden_states=x)[0]
        with torch.no_grad():
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight.mul_(7.0)
                projection.bias.mul_(7.0)
        torch.testing.assert_close(attention(x, encoder_hidden_states=x)[0], before, rtol=1e-3, atol=1e-3)


def test_fresh_skip_init_is_the_identity_and_equals_rezero_with_single_gates():
    x, out = encoder_in_and_out(make("skip_init"))
    assert torch.equal(out, x)
    rezero = randomise(make("rezero", ln_mode_options={"gate": "sublayer"}))
    assert torch.equal(logits(copy_shared(rezero, make("skip_init"))), logits(rezero))


def test_siamese_norm_without_its_post_stream_is_pre_ln():
    pre_ln = make("pre_ln")
    model = make("siamese_norm")
    renamed = {n.replace("residual.norm.", "residual.pre_norm."): p for n, p in pre_ln.state_dict().items()}
    _, unexpected = model.load_state_dict(renamed, strict=False)
    assert not unexpected
    fill(fill(model, "post_norm.weight", 0.0), "post_norm.bias", 0.0)
    torch.testing.assert_close(logits(model), logits(pre_ln), rtol=1e-3, atol=1e-4)


def test_siamese_norm_updates_both_streams():
    for kind, per_layer in (("encoder", 2), ("decoder", 3)):
        for depth, layer in enumerate(getattr(make("siamese_norm").model, kind).layers, start=1):
            x, y, a = torch.randn(3, 1, 3, 16)
            new_x, new_y = layer.ffn_residual((x, y), lambda z, a=a: a)
            torch.testing.assert_close(new_y, y + a)
            normed = nn.functional.layer_norm(x, (16,))
            torch.testing.assert_close(new_x, normed + a / math.sqrt(per_layer * depth))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_fresh_hyper_connections_are_pre_ln(streams, dynamic):
    pre_ln = make("pre_ln")
    model = make("hyper_connections", ln_mode_options={"streams": streams, "dynamic": dynamic})
    torch.testing.assert_close(logits(copy_shared(pre_ln, model)), logits(pre_ln), rtol=1e-5, atol=1e-5)


def test_hyper_connections_follow_their_equation():
    connection = randomise(make("hyper_connections")).model.encoder.layers[1].ffn_residual
    stream, a = tuple(torch.randn(4, 2, 3, 16)), torch.randn(2, 3, 16)
    seen = []
    with torch.no_grad():
        out = torch.stack(connection(stream, lambda z: seen.append(z) or a), dim=-2)
        h = torch.stack(stream, dim=-2)
        normed = connection.weights_norm(h)
        scale_alpha, scale_beta = connection.dynamic_scale
        w_m, w_b, w_r = connection.dynamic_weight[0], connection.dynamic_weight[1], connection.dynamic_weight[2:]
        m = scale_alpha * torch.tanh(normed @ w_m) + connection.static_read
        mix = scale_alpha * torch.tanh(normed @ w_r.T) + connection.static_mix
        b = scale_beta * torch.tanh(normed @ w_b) + connection.static_write
        torch.testing.assert_close(seen[0], connection.norm(torch.einsum("bti,btid->btd", m, h)))
        expected = torch.einsum("btij,btid->btjd", mix, h) + b[..., None] * a[..., None, :]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_sinkhorn_gives_doubly_stochastic_matrices():
    matrices = sinkhorn(torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0)))
    assert matrices.min() > 0
    for dim in (-1, -2):
        torch.testing.assert_close(matrices.sum(dim), torch.ones(50, 4), rtol=0, atol=1e-3)


def test_compiled_sinkhorn_has_the_values_and_gradients_of_its_steps():
    logits = torch.randn(4, 5, 4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = torch.randn(4, 5, 4, 4)
    expected = logits
    for _ in range(20):
        expected = expected.log_softmax(-2).log_softmax(-1)
    for made in (sinkhorn(logits), torch.compile(sinkhorn, backend="aot_eager", fullgraph=True)(logits)):
        torch.testing.assert_close(made, expected.exp())
        gradients = [
            torch.autograd.grad((m * weights).sum(), logits, retain_graph=True)[0] for m in (made, expected.exp())
        ]
        torch.testing.assert_close(*gradients)


def mixing_mhc():
    """A sub-layer whose matrix is far from the identity and depends on the token."""
    connection = randomise(make("mhc")).model.encoder.layers[0].ffn_residual
    nn.init.normal_(connection.static_mix, generator=torch.Generator().manual_seed(2))
    nn.init.constant_(connection.dynamic_scale, 0.3)
    return connection


def test_streams_keep_their_precision_under_autocast():
    connection = make("hyper_connections").model.encoder.layers[0].ffn_residual
    stream = tuple(torch.randn(4, 2, 3, 16))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = connection(stream, lambda h: torch.zeros_like(h, dtype=torch.bfloat16))
    for before, after in zip(stream, mixed, strict=True):  # a fresh model does not mix
        assert torch.equal(before, after)


def test_fresh_mhc_reads_one_stream_most_and_hardly_mixes():
    connection = make("mhc").model.encoder.layers[0].ffn_residual
    read, mix, write = connection.weights(torch.randn(2, 3, 4, 16))
    low, high = torch.sigmoid(torch.tensor([-1.0, 1.0])).tolist()
    torch.testing.assert_close(read, torch.tensor([low, high, low, low]).expand(2, 3, 4))
    torch.testing.assert_close(write, 2 * read)
    torch.testing.assert_close(mix, torch.eye(4).expand(2, 3, 4, 4), rtol=0, atol=2e-3)


def test_mhc_weights_keep_their_ranges_and_depend_on_the_token():
    read, mix, write = mixing_mhc().weights(torch.randn(2, 3, 4, 16))
    assert read.min() > 0 and read.max() < 1 and write.min() > 0 and write.max() < 2 and mix.min() >= 0
    for dim in (-1, -2):
        torch.testing.assert_close(mix.sum(dim), torch.ones(2, 3, 4), rtol=0, atol=1e-3)
    for weights in (read, mix, write):
        assert (weights[0, 0] - weights[1, 1]).abs().max() > 1e-2


def test_mhc_keeps_the_mean_of_its_streams():
    stream = tuple(torch.randn(4, 2, 3, 16))
    out = mixing_mhc()(stream, torch.zeros_like)
    assert (out[0] - stream[0]).abs().max() > 0.1
    torch.testing.assert_close(sum(out), sum(stream), rtol=0, atol=1e-2)


def test_fresh_attention_residuals_read_the_mean_of_all_outputs():
    model = make("attention_residuals")
    stream, outputs = (torch.randn(1, 3, 16),), []
    for index, layer in enumerate(model.model.decoder.layers):
        for connection in (layer.self_attn_residual, layer.encoder_attn_residual, layer.ffn_residual):
            seen = []
            outputs = list(stream)
            stream = connection(stream, lambda z, seen=seen: seen.append(z) or torch.randn(1, 3, 16))
            mean = torch.stack(outputs).mean(0)
            torch.testing.assert_close(seen[0], nn.functional.layer_norm(mean, (16,)))
        assert len(stream) == 1 + 3 * (index + 1)


def test_attention_residuals_attend_to_the_output_their_query_points_at():
    attention = make("attention_residuals").model.encoder.boundary.depth_attention
    members = tuple(torch.randn(3, 1, 1, 16))
    with torch.no_grad():
        attention.query.copy_(100 * members[1].flatten())
    torch.testing.assert_close(attention(members), members[1], rtol=1e-4, atol=1e-4)


def test_attention_residuals_sum_within_blocks():
    model = make("attention_residuals", encoder_layers=4, ln_mode_options={"block_size": 3})
    x = torch.randn(1, 2, 16)
    stream, branches = (x,), []
    for layer in model.model.encoder.layers:
        for connection in (layer.self_attn_residual, layer.ffn_residual):
            branches.append(torch.randn(1, 2, 16))
            stream = connection(stream, lambda z: branches[-1])
    blocks = [sum(branches[6:8]), sum(branches[3:6]), sum(branches[:3]), x]
    assert len(stream) == len(blocks)
    for mine, block in zip(stream, blocks, strict=True):
        torch.testing.assert_close(mine, block)


def test_one_block_of_attention_residuals_is_the_sum_beside_the_embeddings():
    model = make("attention_residuals", ln_mode_options={"block_size": 99})
    stream = (torch.randn(1, 2, 16),)
    for layer in model.model.encoder.layers:
        stream = layer.ffn_residual(layer.self_attn_residual(stream, lambda z: z), lambda z: z)
    assert len(stream) == 2


@cache
def count_parameters(name):
    with torch.device("meta"):
        config = ResidualConfig(vocab_size=100, ln_mode=name, norm_type="layer_norm")
        model = ResidualForConditionalGeneration(config)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("mode", "extra"),
    [
        ("sandwich_ln", 30 * 2 * 512),
        ("output_ln", 0),
        ("ln_scaling", 0),
        ("mix_ln", 0),
        ("layer_scale", 30 * 512),
        ("siamese_norm", (30 * 2 + 2 * 2) * 2 * 512),
        ("hyper_connections", 30 * (4 + 16 + 4 + 2 * 512 + 6 * 512 + 2)),
        ("mhc", 30 * (4 + 16 + 4 + 4 * 512 + 24 * 4 * 512 + 3)),
        ("attention_residuals", 30 * 2 * 512),
    ],
)
def test_number_of_parameters_beside_pre_ln_of_the_base_model(mode, extra):
    assert count_parameters(mode) - count_parameters("pre_ln") == extra
