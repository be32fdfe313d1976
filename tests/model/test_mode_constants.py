"""What a mode sets beside its equation: initial values, gains, where it equals a simpler mode, factors for probes."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.equations import EQUATIONS
from support.models import OURS, every_mode
from support.random_models import CLOSE, build, config_of, fresh, outputs_of
from torch import nn

from residual_hf import ResidualForCausalLM, ResidualForConditionalGeneration
from residual_hf.model.connections import (
    LN_MODES,
    ResidualConnection,
    StreamBoundary,
    build_connections,
    layer_places,
)

N, M = 3, 4  # layers of encoder and decoder
LAYERS = [("encoder", i) for i in range(N)] + [("decoder", i) for i in range(M)]
LEGACY = ("admin", "admin_torch", "dlcl_post", "dlcl_pre", "fixup", "rezero", "rezero_post_ln")
STYLES = dict.fromkeys(OURS, "fairseq_main") | dict.fromkeys(LEGACY, "fairseq_legacy")
STYLES |= dict.fromkeys(("deep_norm", "deep_norm_gpas", "sub_ln"), "xavier_normal") | {"t_fixup": "t_fixup"}
STATIC = ("static_read", "static_mix", "static_write")
UNDECAYED = {"hyper_connections": STATIC, "mhc": STATIC, "layer_scale": ("scale",), "skip_init": ("alpha",)}
WITHOUT_LAYERDROP = ("dlcl_post", "dlcl_pre", "dense_former")  # layers know the number of outputs before them


def model_of(mode, **options):
    return fresh(ResidualForConditionalGeneration, mode, options)


def options_of(mode, **options):
    return config_of(ResidualForConditionalGeneration, mode, options).of("encoder").options


def modules_of(model):
    """Connections, boundaries and what modes put inside the branches, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if any(part in name for part in ("residual", "boundary", ".inner"))
    }


@every_mode
def test_declarations(mode):
    cls = LN_MODES[mode]
    assert cls.default_init_style == STYLES[mode]
    assert cls.linear_bias == (mode != "fixup")
    assert cls.no_weight_decay == UNDECAYED.get(mode, ())
    assert cls.supports_layerdrop == (mode not in WITHOUT_LAYERDROP)
    assert cls.attention_implementations == (("eager",) if mode == "realformer" else None)


INITIAL = {
    ("admin", "omega"): 1.0,
    ("admin_torch", "omega"): None,
    ("wskip_ln", "w"): 1.0,
    ("normformer", "w"): 1.0,
    ("layer_scale", "scale"): 0.1,
    ("skip_init", "alpha"): 0.0,
    ("rezero", "alpha"): 0.0,
    ("rezero_post_ln", "alpha"): 0.0,
    ("hyper_connections", "dynamic_weight"): 0.0,
    ("hyper_connections", "dynamic_scale"): 0.01,
    ("hyper_connections", "static_write"): 1.0,
    ("mhc", "dynamic_weight"): 0.0,
    ("mhc", "dynamic_scale"): 0.01,
    ("attention_residuals", "query"): 0.0,
    ("siamese_norm", "gain"): 1.0,
    ("dense_former", "outer_weight"): 0.0,
}


def initial_value(mode, name, module, parameter, options):
    """Of a parameter of a mode that is fresh: of norms and scales 1, of biases and shifts 0."""
    if name == "weight" and type(module).__name__ == "LayerMix":
        return 1 / len(parameter)
    if name == "weight" and type(module).__name__ in ("DepthWeightedAverage", "DynamicAverage"):
        return torch.eye(len(parameter))[-1]
    if name == "inner_weight":
        assert 0.4 < parameter.std() * parameter.shape[1] ** 0.5 < 1.6
        return parameter.detach()
    if name in ("weight", "bias"):
        return float(name == "weight")
    if mode == "admin_torch":
        n = module.place.sublayers_per_layer * module.place.num_layers
        return math.sqrt((n + 1) / math.log(n + 1) - 1)
    if name in ("static_read", "static_write", "static_mix") and (mode, name) not in INITIAL:
        if not hasattr(module, "place"):
            return 0.0  # of the end of a stack
        n = options.get("streams", 4)
        own = torch.eye(n)[module.place.index % n]  # sub-layer k reads stream k mod n
        if mode == "hyper_connections":
            return own if name == "static_read" else torch.eye(n)
        if name != "static_mix":
            return 2 * own - 1
        return torch.tensor([[0.0, -8.0]] * 2) if "mixing" in options else 8 * torch.eye(n) - 8
    return 0.0 if name == "gate" else INITIAL[mode, name]


initial_cases = pytest.mark.parametrize(
    ("mode", "options"),
    [(mode, {}) for mode in OURS]
    + [
        ("admin_torch", {"learned": True}),
        ("dense_former", {"dilation": 2, "period": 2}),
        ("normformer", {"scale_residual": True}),
        ("normformer", {"head_scale_position": "pre_out"}),
        ("rezero", {"gate": "sublayer"}),
        ("b2t_no_ln", {"stack_norm": True}),
        ("hyper_connections", {"streams": 2, "dynamic": False}),
        ("mhc", {"streams": 3}),
        ("mhc", {"mixing": "kronecker"}),
        ("mhc", {"learned_end": True}),
        ("siamese_norm", {"hybrid": True}),
        ("dense_former", {"dynamic": True}),
    ],
    ids=str,
)


def assert_initial(mode, options, modules):
    for path, module in modules.items():
        for name, parameter in module.named_parameters(recurse=False):
            expected = torch.as_tensor(initial_value(mode, name, module, parameter, options)).expand_as(parameter)
            torch.testing.assert_close(parameter.detach(), expected, msg=lambda text, path=path: f"{path}: {text}")


@initial_cases
def test_initial_values(mode, options):
    """Those of `_init_weights`, also where the values were lost."""
    model = model_of(mode, **options)
    for module in modules_of(model).values():
        for parameter in module.parameters(recurse=False):
            nn.init.constant_(parameter, 7.0)
            parameter._is_hf_initialized = False
        model._init_weights(module)
    assert_initial(mode, options, modules_of(model))


@initial_cases
def test_initial_values_without_a_model(mode, options):
    """Those of the constructors; mHC has its static weights from `_init_weights`."""
    config = config_of(ResidualForConditionalGeneration, mode, options)
    for stack, depth in (("encoder", N), ("decoder", M)):
        layers = (build_connections(config.of(stack), layer) for layer in range(depth))
        parts = [LN_MODES[mode].Boundary(config.of(stack)), *(c for layer in layers for c in layer)]
        for part in parts:
            if mode == "mhc" and isinstance(part, ResidualConnection):
                for name in STATIC:
                    delattr(part, name)
            assert_initial(mode, options, dict(part.named_modules()))


@pytest.mark.parametrize(
    ("mode", "options", "name", "value"),
    [
        ("wskip_ln", {"skip_init": 2.5}, "w", 2.5),
        ("layer_scale", {"initial_scale": 0.3}, "scale", 0.3),
        ("skip_init", {"initial_alpha": 0.2}, "alpha", 0.2),
    ],
)
def test_initial_values_of_an_option(mode, options, name, value):
    connection = model_of(mode, **options).model.encoder.layers[1].ffn_residual
    torch.testing.assert_close(getattr(connection, name).mean().item(), value)


@pytest.mark.parametrize(
    ("mode", "name", "by_depth"),
    [
        ("b2t_no_ln", "alpha", {6: 0.5, 8: 0.6667, 9: 0.7192, 18: 0.6482, 100: 0.5012}),  # of the paper
        ("layer_scale", "scale", {1: 0.1, 18: 0.1, 19: 1e-5, 24: 1e-5, 25: 1e-6}),
    ],
)
def test_constants_and_initial_values_by_depth(mode, name, by_depth):
    model = model_of(mode)
    for depth, value in by_depth.items():
        place = replace(model.model.encoder.layers[0].ffn_residual.place, num_layers=depth)
        found = torch.as_tensor(getattr(LN_MODES[mode](model.config.of("encoder"), place), name)).unique().item()
        assert found == pytest.approx(value, rel=1e-4)


def test_omegas_of_a_profile_are_those_of_the_encoder_then_of_the_decoder():
    for architecture, count in ((ResidualForConditionalGeneration, 2 * N + 3 * M), (ResidualForCausalLM, 2 * N)):
        profile = [1.0 + i for i in range(count)]
        model = fresh(architecture, "admin", {}, admin_profile=profile)
        omegas = [p.tolist() for name, p in model.named_parameters() if name.endswith("omega")]
        assert omegas == [[value] * 8 for value in profile]


INVALID = [
    *(("resi_dual", name, 0.0) for name in ("dual_scale", "dual_layer_norm_eps", "output_gain")),
    ("resi_dual", "main_scale", -0.1),
    ("scaled_branch", "tau", 0.0),
    ("scaled_branch", "exponent", -0.1),
    ("layer_scale", "initial_scale", -0.1),
    ("skip_init", "initial_alpha", -0.1),
    ("mix_ln", "fraction", -0.1),
    ("mix_ln", "fraction", 1.1),
    ("keel", "alpha", 0.9),
    *((mode, "skip_scale", 0.0) for mode in ("xskip", "xskip_ln")),
    ("wskip_ln", "skip_init", 0.0),
    ("rskip_ln", "skip_order", 0),
    ("dense_former", "dilation", 0),
    ("dense_former", "period", 0),
    ("hyper_connections", "streams", 0),
    ("mhc", "streams", 0),
    ("attention_residuals", "block_size", 0),
    *((mode, "gate", "none") for mode in ("rezero", "rezero_post_ln")),
    *((mode, "rescale_init", "no") for mode in ("b2t", "b2t_no_ln")),
    ("admin_torch", "target", "none"),
    ("normformer", "head_scale_position", "none"),
    ("mhc", "mixing", "none"),
]


@pytest.mark.parametrize(("mode", "name", "value"), INVALID)
def test_values_out_of_range_are_refused(mode, name, value):
    with pytest.raises(StrictDataclassError, match=f"{name}: {value!r} given, must be"):
        options_of(mode, **{name: value})


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("resi_dual", {"main_scale": 0.0}),
        ("mix_ln", {"fraction": 0.0}),
        ("mix_ln", {"fraction": 1.0}),
        ("keel", {"alpha": 1.0}),
        ("xskip", {"skip_scale": 0.5}),
        ("xskip_ln", {"skip_scale": 0.5}),
        ("wskip_ln", {"skip_init": 0.5}),
        ("scaled_branch", {"tau": 0.5, "exponent": 0.0}),
        ("layer_scale", {"initial_scale": 0.0}),
        ("resi_dual", {"dual_scale": 0.05, "dual_layer_norm_eps": 1e-9, "output_gain": 0.5}),
    ],
)
def test_values_at_the_end_of_a_range_are_accepted(mode, options):
    assert vars(options_of(mode, **options)).items() >= options.items()


ROLES = ("query", "key", "value", "attention_output", "ffn_in", "ffn_out")


def gains(value, output, ffn_in=None, attention=1.0):
    """By role; queries and keys have that of `attention`, and the maps of the feed-forward that of the output."""
    factors = attention, attention, value, output, output if ffn_in is None else ffn_in, output
    return dict(zip(ROLES, factors, strict=True))


def expected_gains(mode, stack, kind, options):
    """Factors on the initial weights, by the closed forms of the papers and of the official code."""
    is_encoder, depth = stack == "encoder", {"encoder": N, "decoder": M}[stack]
    if mode in ("b2t", "b2t_no_ln") and not options:
        return gains(depth**-0.5, depth**-0.5, attention=depth**-0.5)
    if mode == "t_fixup":
        scale = 0.67 * N**-0.25 if is_encoder else (9 * M) ** -0.25
        return gains(2**0.5 * scale, scale)
    if mode in ("deep_norm", "deep_norm_gpas"):
        constant = 1.15 if options else 0.87
        beta = constant * (N**4 * M) ** (-1 / 16) if is_encoder else (12 * M) ** -0.25
        return gains(beta, beta)
    if mode == "sub_ln" and kind != "cross_attention":
        gamma = math.sqrt(math.log(3 * M) * (math.log(2 * N) / 3 if is_encoder else 1))
        return gains(gamma, gamma)
    if mode == "fixup":
        branches = 2 * N + 3 * M
        attention = (12 if kind == "cross_attention" else branches) ** (-1 / 6)
        return gains(attention, 0, branches**-0.5, attention=attention)
    return gains(1, 1)


@pytest.mark.parametrize(
    ("mode", "options"),
    [(mode, {}) for mode in OURS]
    + [(mode, {"rescale_init": "none"}) for mode in ("b2t", "b2t_no_ln")]
    + [(mode, {"torchscale_gain": True}) for mode in ("deep_norm", "deep_norm_gpas")],
    ids=str,
)
def test_gains_of_initial_weights(mode, options):
    config = config_of(ResidualForConditionalGeneration, mode, options)
    cls = LN_MODES[mode]
    for stack, layer in LAYERS:
        own = config.of(stack)
        for place in layer_places(own, layer):
            expected = expected_gains(mode, stack, place.kind, options)
            assert {role: cls.init_gain(own, place, role) for role in expected} == pytest.approx(expected)
    tables = dict.fromkeys(("encoder", "decoder", "output"), 1.0)
    tables |= {"t_fixup": {"encoder": (9 * N) ** -0.25, "decoder": (9 * M) ** -0.25}, "fixup": {"output": 0}}.get(
        mode, {}
    )
    found = {table: config.of("encoder" if table == "encoder" else "decoder") for table in tables}
    assert {table: cls.embedding_gain(own, table) for table, own in found.items()} == pytest.approx(tables)


STARTS = [  # a mode with its options, and the simpler one whose equation it follows at its starting values
    ("admin", {}, "post_ln", {}),
    ("admin_torch", {"learned": True}, "post_ln", {}),
    ("admin_torch", {"target": "linear"}, "post_ln", {}),
    ("wskip_ln", {"skip_init": 2.0}, "post_ln", {}),
    ("resi_dual", {"dual_scale": 0.3}, "post_ln", {}),
    ("rezero_post_ln", {}, "post_ln", {}),
    ("rezero_post_ln", {"gate": "sublayer"}, "post_ln", {}),
    ("rezero", {}, "xskip", {}),
    ("skip_init", {}, "xskip", {}),
    ("t_fixup", {}, "xskip", {}),
    ("layer_scale", {}, "pre_ln", {}),
    ("dense_former", {}, "pre_ln", {}),
    ("dense_former", {"dilation": 2, "period": 2}, "pre_ln", {}),
    ("dense_former", {"dynamic": True}, "pre_ln", {}),
    ("hyper_connections", {"dynamic": False}, "pre_ln", {}),
    ("hyper_connections", {"streams": 3}, "pre_ln", {}),
    ("pre_ln_gpas", {}, "pre_ln", {}),
    ("ln_scaling_gpas", {}, "ln_scaling", {}),
    ("sandwich_ln_gpas", {}, "sandwich_ln", {}),
    ("deep_norm_gpas", {}, "deep_norm", {}),
    ("mix_ln_gpas", {"fraction": 0.4}, "mix_ln", {"fraction": 0.4}),
]


@pytest.mark.parametrize(("mode", "options", "base", "base_options"), STARTS, ids=str)
def test_starting_values_give_the_simpler_mode(mode, options, base, base_options):
    model, p = build(ResidualForConditionalGeneration, mode, options)
    assert base in (LN_MODES[mode].starts_from, LN_MODES[mode].folds_into)
    for module in model.modules():
        if isinstance(module, (ResidualConnection, StreamBoundary)):
            for name, value in module.starting_values().items():
                with torch.no_grad():
                    module.get_parameter(name).copy_(torch.as_tensor(value))
    actual, expected = outputs_of(model, p, partial(EQUATIONS[base], **base_options))
    torch.testing.assert_close(actual, expected, **CLOSE)


def test_the_norm_that_resi_dual_starts_without_has_a_gain():
    model = fresh(ResidualForConditionalGeneration, "resi_dual", {}, norm_type="ada_norm")
    with pytest.raises(ValueError, match="AdaNorm has no gain to set to 0"):
        model.model.encoder.boundary.starting_values()


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("mix_ln", {"fraction": 0.0}),
        ("resi_dual", {"main_scale": 1.0}),
        ("mix_ln_gpas", {"fraction": 0.25}),
        ("pre_ln_gpas", {}),
    ],
)
def test_options_at_which_a_mode_starts(mode, options):
    assert LN_MODES[mode].starting_options == options


def silu(x):
    return x * torch.sigmoid(x)


SCALES = {  # shortcut and branch of a sub-layer c, where they are added
    "admin": lambda c: (c.omega, 1),
    "admin_torch": lambda c: (c.omega, 1),
    "wskip_ln": lambda c: (c.w, 1),
    "xskip_ln": lambda c: (2.0, 1),
    "xskip": lambda c: (1.0, 1),
    "deep_norm": lambda c: (c.alpha, 1),
    "keel": lambda c: (1 if c.place.layer == 0 else {"encoder": 2 * N, "decoder": 3 * M}[c.place.stack], 1),
    "siamese_norm": lambda c: (1, (c.place.sublayers_per_layer * (c.place.layer + 1)) ** -0.5),
    "scaled_branch": lambda c: (1, {"encoder": 2 * N, "decoder": 3 * M}[c.place.stack] ** -0.5),
    "layer_scale": lambda c: (1, c.scale),
    "skip_init": lambda c: (1, c.alpha),
    "fixup": lambda c: (1, c.scale.weight),
}


@every_mode
def test_factors_on_shortcut_and_branch(mode):
    model, _ = build(ResidualForConditionalGeneration, mode, {})
    layers = (layer for stack in (model.model.encoder, model.model.decoder) for layer in stack.layers)
    for connections in ([m for m in layer.children() if isinstance(m, ResidualConnection)] for layer in layers):
        for c in connections:
            expected = SCALES.get(mode, lambda c: (1, 1))(c)
            if mode in ("rezero", "rezero_post_ln"):
                expected = 1, connections[0].alpha
            elif mode == "deep_norm_gpas":
                expected = c.alpha * (1 - silu(connections[0].gate)), 1
            elif mode == "mix_ln_gpas" and (c.place.stack, c.place.layer) == ("decoder", 0):
                expected = 1 - silu(connections[0].gate), 1
            scales = c.joining_scales()
            assert set(scales) <= {"shortcut", "branch", "norm"}
            for name, value in zip(("shortcut", "branch"), expected, strict=True):
                torch.testing.assert_close(
                    *(torch.as_tensor(v, dtype=torch.float64) for v in (scales.get(name, 1.0), value))
                )


def test_factors_of_post_ln_layers_with_a_gate_and_of_a_normformer():
    model, _ = build(ResidualForConditionalGeneration, "mix_ln_gpas", {"fraction": 0.4})
    first, second = (layer.ffn_residual for layer in model.model.encoder.layers[:2])
    gate = model.model.encoder.layers[0].self_attn_residual.gate
    torch.testing.assert_close(first.joining_scales()["shortcut"], 1 - silu(gate))
    assert second.joining_scales() == {}
    model, _ = build(ResidualForConditionalGeneration, "normformer", {"scale_residual": True})
    layer = model.model.encoder.layers[0]
    assert layer.ffn_residual.joining_scales() == {"shortcut": layer.ffn_residual.w}
    assert layer.self_attn_residual.joining_scales() == {}


def foldable(mode, **options):
    return build(ResidualForCausalLM, mode, options)[0].model.decoder.layers[1].ffn_residual.foldable_scales()


def test_only_some_scales_fold():
    """GPAS has gradients that no other mode has."""
    assert foldable("deep_norm_gpas") == {} and foldable("pre_ln_gpas") == {} and foldable("ln_scaling_gpas") == {}
    assert foldable("deep_norm") == {"shortcut": (2 * 3) ** 0.25}
    assert foldable("ln_scaling") == {"norm": pytest.approx(2**-0.5)}
    assert foldable("branch_norm") == {} and foldable("keel") == {} and foldable("xskip") == {}


SHORTCUTS = {  # where a probe finds what the branch is added to, if it is not the state before the sub-layer
    "siamese_norm": "post_norm.output",
    "dlcl_post": "branch.input",
    "dlcl_pre": "norm.input",
    "dense_former": "norm.input",
    "hybrid_norm": "branch.input",
    "hyper_connections": None,
    "mhc": None,
    "attention_residuals": None,
}
NORMS_ON_BRANCHES = dict.fromkeys(("sandwich_ln", "sandwich_ln_gpas", "peri_ln"), "output_norm") | {
    "output_ln": "norm"
}


@every_mode
def test_where_probes_find_the_shortcut_and_the_norm_of_the_branch(mode):
    config = config_of(ResidualForConditionalGeneration, mode, {})
    for connection in (c for stack, i in LAYERS for c in build_connections(config.of(stack), i)):
        expected = SHORTCUTS.get(mode, "input")
        if mode in ("span_norm", "b2t", "b2t_no_ln") and connection.place.kind == "feed_forward":
            expected = None  # the input of the layer, alone or too
        assert connection.shortcut_at == expected
        assert connection.norm_on_branch == NORMS_ON_BRANCHES.get(mode)


def test_where_probes_find_the_shortcut_with_options():
    assert model_of("b2t", around="all").model.encoder.layers[0].ffn_residual.shortcut_at == "input"
    first, second = (layer.ffn_residual for layer in model_of("hybrid_norm", star=True).model.encoder.layers[:2])
    assert (first.shortcut_at, second.shortcut_at) == ("input", "branch.input")
    layer = model_of("siamese_norm", hybrid=True).model.encoder.layers[0]
    assert (layer.self_attn_residual.shortcut_at, layer.ffn_residual.shortcut_at) == ("input", "post_norm.output")
