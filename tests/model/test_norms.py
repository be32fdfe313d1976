"""The norms, alone and in every mode."""

import math

import numpy as np
import pytest
import torch
from support.models import OURS, logits_of, make
from torch import nn
from transformers.models.t5.modeling_t5 import T5LayerNorm

from residual_hf.model.configuration_image import ResidualImageConfig
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES
from residual_hf.model.norms import NORM_TYPES, AdaNorm, ScaleNorm, build_norm

WITHOUT_NORMS = {"b2t_no_ln", "fixup", "rezero", "skip_init", "t_fixup", "xskip"}


def test_scale_norm_has_the_length_of_its_gain():
    norm = ScaleNorm(16).double()
    x = 5 * torch.randn(3, 16, dtype=torch.float64) + 2
    torch.testing.assert_close(norm(x).norm(dim=-1), torch.full((3,), 4.0, dtype=torch.float64))
    torch.testing.assert_close(norm(7 * x), norm(x))
    nn.init.constant_(norm.weight, 0.3)
    torch.testing.assert_close(norm(x).norm(dim=-1), torch.full((3,), 0.3, dtype=torch.float64))
    assert norm(torch.zeros(2, 16)).abs().max() == 0


@pytest.mark.parametrize("kind", ["dynamic_tanh", "dynamic_erf"])
def test_functions_in_the_place_of_norms_equal_their_formulas(kind):
    norm = NORM_TYPES[kind](8)
    assert {name: p.unique().tolist() for name, p in norm.named_parameters()} == {
        "alpha": [0.5], "weight": [1.0], "bias": [0.0], **({"shift": [0.0]} if kind == "dynamic_erf" else {})
    }  # fmt: skip
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, 8)
    a, g, b = (p.double().numpy() for p in (norm.alpha.data, norm.weight.data, norm.bias.data))
    if kind == "dynamic_tanh":
        expected = g * np.tanh(a * x.double().numpy()) + b
    else:
        expected = g * np.vectorize(math.erf)(a * x.double().numpy() + norm.shift.double().item()) + b
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, atol=1e-6)


def test_ada_norm_equals_its_formula():
    x = (3 * torch.randn(4, 16, dtype=torch.float64) + 1).requires_grad_()
    z = AdaNorm(16, eps=0.0)(x)
    y = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
    torch.testing.assert_close(z, 2 * (1 - 0.1 * y) * y)
    torch.testing.assert_close(z.mean(-1), torch.full((4,), -2 * 0.1 * 15 / 16, dtype=torch.float64))
    weight = torch.randn(4, 16, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weight * z).sum(), x, retain_graph=True)
    (constant_factor,) = torch.autograd.grad((weight * 2 * (1 - 0.1 * y.detach()) * y).sum(), x, retain_graph=True)
    (whole,) = torch.autograd.grad((weight * 2 * (1 - 0.1 * y) * y).sum(), x)
    torch.testing.assert_close(gradient, constant_factor)
    assert (gradient - whole).abs().max() > 1e-3


def test_the_constant_of_ada_norm_is_a_field_of_the_config():
    one, two = (make("pre_ln", norm_type="ada_norm", ada_norm_scale=scale) for scale in (1, 2.0))
    assert {module.scale for module in one.modules() if isinstance(module, AdaNorm)} == {1}
    assert not torch.equal(logits_of(one), logits_of(two))
    assert torch.equal(logits_of(make("pre_ln", norm_type="ada_norm")), logits_of(two))


@pytest.mark.parametrize(
    ("mode", "norm_type"),
    [(name, ScaleNorm) for name in OURS if LN_MODES[name].attention_implementations is None]
    + [(name, AdaNorm) for name in ("post_ln", "resi_dual", "normformer", "fixup")],
)
def test_norm_types_work_with_every_mode(mode, norm_type):
    sizes = {"encoder_layers": 1, "decoder_layers": 2}
    model = make(mode, norm_type={ScaleNorm: "scale_norm", AdaNorm: "ada_norm"}[norm_type], **sizes)
    norms = [module for module in model.modules() if isinstance(module, norm_type)]
    assert bool(norms) != (mode in WITHOUT_NORMS)
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    if norm_type is ScaleNorm:
        assert all(norm.weight.item() == pytest.approx(norm.size**0.5) for norm in norms)
    assert logits_of(model).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm_type", sorted(NORM_TYPES))
def test_statistics_of_half_precision_are_those_of_single(norm_type, dtype):
    """The squares of these values overflow fp16; the dual norm's eps of 1e-7 is nothing in it."""
    config_class = ResidualImageConfig if norm_type == "batch_norm" else ResidualConfig
    norm = build_norm(config_class(norm_type=norm_type, d_model=64).of("encoder"), eps=1e-7)
    for x in (300 * torch.randn(8, 64), 1e-3 * torch.randn(8, 64)):
        x = x.to(dtype)
        exact, half = norm.float()(x.float()), norm.to(dtype)(x)
        assert half.dtype == dtype
        torch.testing.assert_close(half.float(), exact, rtol=0.02, atol=0.02)


def test_rms_norm_is_that_of_t5_with_a_gain_and_no_bias():
    norm = build_norm(ResidualConfig(norm_type="rms_norm", d_model=64).of("encoder"), eps=1e-5)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    nn.init.normal_(norm.weight)
    reference = T5LayerNorm(64, eps=1e-5)
    reference.load_state_dict(norm.state_dict())
    x = 3 * torch.randn(2, 5, 64) + 1
    torch.testing.assert_close(norm(x), reference(x))


def test_rms_norm_under_autocast_is_fused_and_in_fp32(recwarn):
    """PyTorch falls back to a slow kernel, with a warning, where input and gain have two types."""
    norm = build_norm(ResidualConfig(norm_type="rms_norm").of("encoder"))
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(torch.randn(2, 3, 512).bfloat16()).dtype == torch.float32
    assert not [warning for warning in recwarn if "dtype" in str(warning.message)]
