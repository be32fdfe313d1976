"""The constants of the modes in a stack alone, from the closed forms of their papers."""

import math

import pytest
import torch
from model.test_mode_constants import ROLES
from torch.nn import functional as F

from residual_hf import ResidualConfig, ResidualForCausalLM, ResidualForMaskedLM

SIZES = {"vocab_size": 100, "d_model": 64, "num_attention_heads": 2, "intermediate_size": 128}
STACKS = {"decoder": ResidualForCausalLM, "encoder": ResidualForMaskedLM}


def alone(stack, mode, layers, **fields):
    torch.manual_seed(0)
    config = ResidualConfig(**{f"is_{stack}_only": True}, ln_mode=mode, num_hidden_layers=layers, **SIZES, **fields)
    return STACKS[stack](config)


def gains(model):
    """The factor of the mode on each weight of the first layer, by role."""
    (own,) = model.config.stack_configs
    linears = [m for m in model.model.get_submodule(own.stack).layers[0].modules() if hasattr(m, "role")]
    return {m.role: own.mode.init_gain(own, m.place, m.role) for m in linears}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(("layers", "alpha", "beta"), [(6, 1.8612, 0.3799), (18, 2.4495, 0.2887)])
def test_deep_norm(stack, layers, alpha, beta):
    model = alone(stack, "deep_norm", layers)
    connections = [m for m in model.modules() if hasattr(m, "alpha")]
    assert len(connections) == 2 * layers
    assert all(math.isclose(m.alpha, (2 * layers) ** 0.25) for m in connections)
    assert math.isclose((2 * layers) ** 0.25, alpha, abs_tol=5e-5)
    scaled = (8 * layers) ** -0.25
    assert math.isclose(scaled, beta, abs_tol=5e-5)
    assert gains(model) == pytest.approx(dict(zip(ROLES, (1, 1, *[scaled] * 4), strict=True)))
    first = getattr(model.model, stack).layers[0]
    assert first.self_attn.v_proj.weight.std().item() == pytest.approx(scaled * 64**-0.5, rel=0.05)
    assert first.ffn.fc1.weight.std().item() == pytest.approx(scaled * (2 / (64 + 128)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(("layers", "gamma"), [(6, 1.5764), (12, 1.7827), (18, 1.8930)])
def test_sub_ln(stack, layers, gamma):
    expected = dict(zip(ROLES, (1, 1, *[gamma] * 4), strict=True))
    assert gains(alone(stack, "sub_ln", layers)) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("stack", STACKS)
def test_t_fixup(stack):
    model = alone(stack, "t_fixup", 6)
    scale = 0.4281  # 0.67 * 6^-1/4, of a stack that reads no memory
    expected = (1, 1, 2**0.5 * scale, scale, scale, scale)
    assert gains(model) == pytest.approx(dict(zip(ROLES, expected, strict=True)), abs=1e-4)
    embeddings = model.get_input_embeddings().weight
    assert embeddings.std().item() == pytest.approx(0.3689 * 64**-0.5, rel=0.03)  # (9 * 6)^-1/4


@pytest.mark.parametrize(
    ("mode", "layers", "expected"), [("fixup", 6, (*[12 ** (-1 / 6)] * 3, 0, 12**-0.5, 0)), ("b2t", 16, [0.25] * 6)]
)
def test_the_size_of_one_stack_counts(mode, layers, expected):
    assert gains(alone("decoder", mode, layers)) == pytest.approx(dict(zip(ROLES, expected, strict=True)))


def test_admin_torch_counts_two_sublayers_per_layer():
    model = alone("decoder", "admin_torch", 6)
    omegas = {m.omega for m in model.modules() if hasattr(m, "omega")}
    assert len(omegas) == 1 and omegas.pop() == pytest.approx(2.0170, abs=5e-5)


def test_admin_is_profiled_with_a_batch_of_the_trainer():
    model = alone("decoder", "admin", 3, dropout=0.0)
    ids = torch.randint(4, 100, (8, 10))
    profile = model.profile_admin({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
    assert len(profile) == 6 and profile[0] == 1.0 and sorted(profile) == profile
    omegas = [m.omega[0].item() for m in model.modules() if hasattr(m, "omega")]
    assert omegas == pytest.approx(profile)
    assert ResidualForCausalLM(model.config).config.admin_profile == profile


@pytest.mark.slow
def test_gradients_of_36_layers_do_not_vanish_without_cross_attention():
    """The norms of dL/dw that fairseq's decoder without cross-attention has; those of the first layer depend on the
    seed by 20 %."""
    sizes = {**SIZES, "vocab_size": 1000, "d_model": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    for mode, last in (("post_ln", 0.813), ("pre_ln", 0.203)):
        torch.manual_seed(1)
        config = ResidualConfig(is_decoder_only=True, ln_mode=mode, num_hidden_layers=36, dropout=0.0, **sizes)
        model = ResidualForCausalLM(config)
        ids, targets = torch.randint(4, 1000, (2, 16, 20))
        F.cross_entropy(model(ids, use_cache=False).logits.flatten(0, 1), targets.flatten()).backward()
        layers = model.model.decoder.layers
        first_block, last_block = (
            torch.stack([p.grad.norm() for p in block.parameters()]).norm().item()
            for block in (layers[0].self_attn, layers[-1].ffn)
        )
        assert last_block == pytest.approx(last, rel=0.05)
        assert 0.6 < first_block < 1.4
