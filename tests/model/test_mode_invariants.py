"""What must hold of the modes beside their equations (`test_equations.py`): the bits and the start of simpler modes,
precision, and for variants with options what other files test for every mode without."""

import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.models import OURS, SOURCE, TARGET, copy_shared, logits_in_pieces, logits_of, make, randomise
from support.reference import FIXTURES
from torch import nn

from residual_hf.model import modes_multi_stream
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.modes_gpas import GPAS
from residual_hf.model.modes_multi_stream import sinkhorn
from residual_hf.model.modes_skip_scaling import XSkipLN
from residual_hf.model.norms import NORM_TYPES


def options(**values):
    return {"ln_mode_options": values}


def parametrize(names, cases):
    ids = ["-".join(str(value) for value in case if value != {}) for case in cases]
    return pytest.mark.parametrize(names, cases, ids=ids)


SHALLOW = {"encoder_layers": 1, "decoder_layers": 1}


@parametrize(
    ("mode", "fields", "host"),
    [
        ("admin", {}, "post_ln"),
        ("admin_torch", options(target="linear"), "post_ln"),
        ("admin_torch", options(target="linear", learned=True), "post_ln"),
        ("wskip_ln", {}, "post_ln"),
        ("xskip_ln", options(skip_scale=1.0), "post_ln"),
        ("mix_ln", {"norm_type": "layer_norm", **options(fraction=0.0)}, "pre_ln"),
        ("layer_scale", options(initial_scale=1.0), "pre_ln"),
        ("ln_scaling", {"norm_type": "layer_norm", **SHALLOW}, "pre_ln"),
        *((f"{host}_gpas", {}, host) for host in ("pre_ln", "ln_scaling", "sandwich_ln", "deep_norm", "mix_ln")),
    ],
)
def test_special_values_give_the_bits_of_a_simpler_mode(mode, fields, host):
    model = randomise(make(host, **(SHALLOW if fields.keys() >= SHALLOW.keys() else {})))
    assert torch.equal(logits_of(copy_shared(model, make(mode, **fields))), logits_of(model))


def test_rskip_of_order_one_is_post_ln_bitwise():
    post_ln, model = randomise(make("post_ln")), make("rskip_ln", **options(skip_order=1))
    model.load_state_dict({name.replace(".norm.", ".norms.0."): p for name, p in post_ln.state_dict().items()})
    assert torch.equal(logits_of(model), logits_of(post_ln))


def test_resi_dual_without_its_dual_norm_is_post_ln_bitwise():
    post_ln = randomise(make("post_ln"))
    model = copy_shared(post_ln, make("resi_dual", **options(dual_scale=0.3)))
    for stack in (model.model.encoder, model.model.decoder):
        nn.init.zeros_(stack.boundary.norm.weight)
        nn.init.zeros_(stack.boundary.norm.bias)
    assert torch.equal(logits_of(model), logits_of(post_ln))


@parametrize(
    ("mode", "values"),
    [
        ("dense_former", {"dilation": 2}),
        ("dense_former", {"dynamic": True}),
        *(("hyper_connections", {"streams": n, "dynamic": dynamic}) for n in (1, 2, 4) for dynamic in (False, True)),
    ],
)
def test_a_fresh_model_is_pre_ln(mode, values):
    pre_ln = make("pre_ln")
    model = copy_shared(pre_ln, make(mode, **options(**values)))
    torch.testing.assert_close(logits_of(model), logits_of(pre_ln), rtol=1e-5, atol=1e-5)


VARIANTS = parametrize(
    ("mode", "fields"),
    [
        ("hybrid_norm", options(star=True)),
        ("hyper_connections", options(streams=2, dynamic=False)),
        ("attention_residuals", options(block_size=4)),
        ("attention_residuals", options(delta=True)),
        ("siamese_norm", options(hybrid=True)),
        ("mhc", options(learned_end=True)),
        ("mhc", options(mixing="kronecker")),
        ("pre_ln", {"norm_type": "scale_norm"}),
        ("post_ln", {"norm_type": "ada_norm"}),
        ("mhc", {"norm_type": "scale_norm"}),
    ],
)


@VARIANTS
def test_neither_a_cache_nor_padding_of_the_source_makes_a_difference(mode, fields):
    model = randomise(make(mode, **fields))
    full, alone = logits_of(model), SOURCE[1:, :3]
    close = {"rtol": 1e-4, "atol": 1e-4 * full.abs().max().item()}
    torch.testing.assert_close(logits_in_pieces(model), full, **close)
    torch.testing.assert_close(logits_of(model, alone, alone.ne(1), TARGET[1:]), full[1:], **close)


@VARIANTS
def test_a_saved_model_gives_the_same_numbers_and_trains_all_parameters(mode, fields, tmp_path):
    model = randomise(make(mode, **fields))
    model.save_pretrained(tmp_path)
    loaded = ResidualForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert torch.equal(logits_of(loaded), logits_of(model))
    model.train()(SOURCE, attention_mask=SOURCE.ne(1), labels=TARGET).loss.backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


@VARIANTS
def test_bfloat16_stays_bfloat16(mode, fields):
    out = logits_of(make(mode, **fields).to(torch.bfloat16))
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


def test_streams_keep_their_precision_under_autocast():
    connection = make("hyper_connections").model.encoder.layers[0].ffn_residual
    stream = tuple(torch.randn(4, 2, 3, 16))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = connection(stream, lambda h: torch.zeros_like(h, dtype=torch.bfloat16))
    for before, after in zip(stream, mixed, strict=True):  # a fresh model does not mix
        assert torch.equal(before, after)


def test_every_norm_has_the_epsilon_of_the_config():
    for mode in OURS:
        model = make(mode, None, layer_norm_eps=0.25, **(options(learned_end=True) if mode == "mhc" else {}))
        found = {module.eps for module in model.modules() if type(module) in NORM_TYPES.values()}
        assert found <= ({0.25, 1e-7} if mode == "resi_dual" else {0.25}), mode


def test_realformer_keeps_one_sum_of_scores_for_each_attention():
    model, members = make("realformer", "eager"), []
    for layer in model.model.decoder.layers:
        layer.register_forward_hook(lambda _, inputs, output: members.append(len(output)))
    logits_of(model)
    assert members == [3, 3, 3]


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


@pytest.mark.slow
def test_two_compiled_sublayers_of_mhc_have_their_gradients(monkeypatch):
    """By the C++ compiler, whose gradients are wrong for `torch.compiler.nested_compile_region`."""
    monkeypatch.setattr(modes_multi_stream, "SINKHORN_ROUNDS", 1)
    layer = randomise(make("mhc")).model.encoder.layers[0]
    x, weights = torch.randn(2, 3, 16, requires_grad=True), torch.randn(4, 2, 3, 16)

    def loss(x):
        stream = layer.self_attn_residual((x,) * 4, torch.tanh)
        return (torch.stack(layer.ffn_residual(stream, torch.tanh)) * weights).sum()

    torch._dynamo.reset()
    inputs = [x, *layer.self_attn_residual.parameters()]
    expected, found = (torch.autograd.grad(f(x), inputs) for f in (loss, torch.compile(loss, fullgraph=True)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("streams", [1, 3, 6])
def test_kronecker_mixing_needs_a_power_of_two(streams):
    with pytest.raises(StrictDataclassError, match=f"streams: {streams} given, must be a power of 2 above 1"):
        make("mhc", **options(mixing="kronecker", streams=streams))


@pytest.mark.parametrize(("depth", "fraction", "count"), [(3, 0.25, 0), (5, 0.25, 1), (100, 0.29, 29)])
def test_mix_ln_counts_layers_from_below_rounding_down(depth, fraction, count):
    layers = make("mix_ln", encoder_layers=depth, **options(fraction=fraction)).model.encoder.layers
    assert [layer.ffn_residual.is_post for layer in layers] == [True] * count + [False] * (depth - count)


def test_gpas_composes_with_a_mode_of_a_user():
    class MyGPAS(GPAS, XSkipLN):
        scales_shortcut = True

    place = make("xskip_ln").model.encoder.layers[1].self_attn_residual.place
    connection = MyGPAS(ResidualConfig(ln_mode="xskip_ln", d_model=16, encoder_attention_heads=2).of("encoder"), place)
    nn.init.ones_(connection.gate)
    x, a = torch.randn(2, 1, 3, 16)
    shortcut = 2.0 * x * (1 - torch.sigmoid(torch.tensor(1.0)))
    torch.testing.assert_close(connection((x,), lambda z: a)[0], connection.norm(shortcut + a))


def test_looklinear_feed_forward_is_linear_at_the_start():
    ffn = make("post_ln", init_style="looklinear").model.encoder.layers[0].ffn
    x, y = torch.randn(2, 5, 16)
    torch.testing.assert_close(ffn(x)[0] + ffn(y)[0], ffn(x + y)[0], rtol=1e-4, atol=2e-6)


def test_t_fixup_scales_the_plain_initialisation():
    official = json.loads((FIXTURES / "t_fixup_init_factors.json").read_text())
    fields = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 128, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
    fields |= {"init_style": "t_fixup", "vocab_size": 500}
    scaled, plain = (dict(make(mode, **fields).named_parameters()) for mode in ("t_fixup", "post_ln"))
    for name, factor in official["factor_over_xavier"].items():
        ours = "model." + name.replace(".fc", ".ffn.fc")
        ratio = scaled[ours].std() / plain[ours].std()
        assert ratio.item() == pytest.approx(factor, rel=1e-5), name
