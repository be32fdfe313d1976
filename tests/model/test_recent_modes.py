# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention of RealFormer, and fresh DenseFormer, GPAS and KromHC; their equations are in test_equations.py."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.models import copy_shared, logits, make, randomise
from torch import nn

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modes_gpas import GPAS
from residual_hf.model.modes_multi_stream import kronecker
from residual_hf.model.modes_skip_scaling import XSkipLN

WIDTH = 16


def standardized(x, norm):
    return nn.functional.layer_norm(x, (WIDTH,), norm.weight, norm.bias)


def test_a_fresh_dense_former_is_pre_ln():
    pre_ln = randomise(make("pre_ln"))
    dense = copy_shared(pre_ln, make("dense_former", ln_mode_options={"dilation": 2}))
    torch.testing.assert_close(logits(dense), logits(pre_ln))


@pytest.mark.parametrize("host", ["pre_ln", "ln_scaling", "sandwich_ln", "deep_norm", "mix_ln"])
def test_fresh_gpas_is_its_host_bitwise(host):
    model = randomise(make(host))
    assert torch.equal(logits(copy_shared(model, make(f"{host}_gpas"))), logits(model))


def test_gpas_has_one_gate_per_layer_and_its_gradient_is_that_of_the_scale():
    model = make("pre_ln_gpas")
    gates = [name for name, _ in model.named_parameters() if name.endswith("gate")]
    assert len(gates) == 2 + 3 and all("self_attn_residual" in name for name in gates)
    connection = model.model.encoder.layers[0].self_attn_residual
    x = torch.randn(1, 3, WIDTH)
    y, _ = connection((x,), torch.zeros_like)
    y.sum().backward()
    torch.testing.assert_close(connection.gate.grad, -x.sum().view(1) / 2)  # SiLU'(0) = 1/2


def test_gpas_composes_with_a_mode_of_a_user():
    class MyGPAS(GPAS, XSkipLN):
        scales_shortcut = True

    place = make("xskip_ln").model.encoder.layers[1].self_attn_residual.place
    connection = MyGPAS(
        ResidualConfig(ln_mode="xskip_ln", d_model=WIDTH, encoder_attention_heads=2).of("encoder"), place
    )
    nn.init.ones_(connection.gate)
    x, a = torch.randn(2, 1, 3, WIDTH)
    shortcut = 2.0 * x * (1 - torch.sigmoid(torch.tensor(1.0)))
    torch.testing.assert_close(connection((x,), lambda z: a)[0], standardized(shortcut + a, connection.norm))


@pytest.mark.parametrize("running_mean", [False, True])
def test_realformer(running_mean):
    """Attention is the softmax of the sum, or of the mean, of the scores up to its layer."""
    model = randomise(make("realformer", "eager", encoder_layers=3, ln_mode_options={"running_mean": running_mean}))
    encoder = model.model.encoder
    outputs = encoder(torch.randint(4, 9, (2, 5)), output_attentions=True, output_hidden_states=True)
    scores = []
    for layer, hidden, attention in zip(encoder.layers, outputs.hidden_states, outputs.attentions, strict=False):
        heads = attention.shape[1]
        queries, keys = (
            projection(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj)
        )
        scores.append(queries @ keys.mT / queries.shape[-1] ** 0.5)
        summed = sum(scores) / (len(scores) if running_mean else 1)
        torch.testing.assert_close(attention, summed.softmax(-1))
    assert len(scores) == 3


@pytest.mark.parametrize("streams", [2, 4, 8])
def test_kronecker_mixing_follows_its_formula(streams):
    logits = torch.randn(5, int(math.log2(streams)), 2, generator=torch.Generator().manual_seed(0))
    expected = torch.ones(5, 1, 1)
    for factor in range(logits.shape[1]):
        p = torch.sigmoid(logits[:, factor, 0] - logits[:, factor, 1])
        u = torch.stack([torch.stack([p, 1 - p], -1), torch.stack([1 - p, p], -1)], -2)
        expected = torch.stack([torch.kron(e, m) for e, m in zip(expected, u, strict=True)])
    torch.testing.assert_close(kronecker(logits, logits.shape[-2]), expected)
    for dim in (-1, -2):
        torch.testing.assert_close(expected.sum(dim), torch.ones(5, streams))


def test_fresh_kromhc_hardly_mixes_and_has_half_of_the_parameters():
    full, cheap = make("mhc"), make("mhc", ln_mode_options={"mixing": "kronecker"})
    connections = [model.model.encoder.layers[0].ffn_residual for model in (full, cheap)]
    states = torch.randn(2, 3, 4, WIDTH)
    (read, _, write), (cheap_read, mix, cheap_write) = (connection.weights(states) for connection in connections)
    assert torch.equal(cheap_read, read) and torch.equal(cheap_write, write)
    torch.testing.assert_close(mix, torch.eye(4).expand(2, 3, 4, 4), rtol=0, atol=2e-3)
    sizes = [connection.dynamic_weight.shape[0] for connection in connections]
    assert sizes == [24, 12]


@pytest.mark.parametrize("streams", [1, 3, 6])
def test_kronecker_mixing_needs_a_power_of_two(streams):
    with pytest.raises(StrictDataclassError, match=f"streams: {streams} given, must be a power of 2 above 1"):
        make("mhc", ln_mode_options={"mixing": "kronecker", "streams": streams})


def test_mhc_is_that_of_deepseek_v4():
    """The weights of a sub-layer and of the end, with the same parameters; there the matrix is transposed."""
    deepseek = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    model = randomise(make("mhc", ln_mode_options={"learned_end": True}))
    ours, end = model.model.encoder.layers[0].ffn_residual, model.model.encoder.boundary
    sizes = {"hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 0.0, "hidden_size": WIDTH, "rms_norm_eps": 1e-5}
    theirs, head = (
        kind(SimpleNamespace(**sizes)) for kind in (deepseek.DeepseekV4HyperConnection, deepseek.DeepseekV4HyperHead)
    )
    states = torch.randn(2, 3, 4, WIDTH)
    with torch.no_grad():
        read, write, mix = (ours.dynamic_weight * ours.weights_norm.weight).split((4, 4, 16))
        theirs.fn.copy_(torch.cat([read, write, mix.unflatten(0, (4, 4)).transpose(0, 1).flatten(0, 1)]))
        theirs.base.copy_(torch.cat([ours.static_read, ours.static_write, ours.static_mix.mT.flatten()]))
        theirs.scale.copy_(ours.dynamic_scale)
        head.hc_fn.copy_(end.dynamic_weight * end.weights_norm.weight)
        head.hc_base.copy_(end.static_read)
        head.hc_scale.copy_(end.dynamic_scale)
        write, mix, collapsed = theirs(states)
        reading, mixing, writing = ours.weights(states)
        torch.testing.assert_close(torch.einsum("...n,...nd->...d", reading, states), collapsed)
        torch.testing.assert_close((writing, mixing), (write, mix))
        end.norm = nn.Identity()
        torch.testing.assert_close(end.end(states.unbind(-2)), head(states))


def test_a_fresh_dynamic_dense_former_learns_both_maps():
    """Its weights start at those of Pre-LN; W1 receives gradients as soon as W2 has left 0."""
    average = make("dense_former", ln_mode_options={"dynamic": True}).model.encoder.boundary.average
    history = tuple(torch.randn(3, 2, 3, WIDTH))
    assert torch.equal(average(history), history[-1])
    nn.init.ones_(average.outer_weight)
    average(history).square().sum().backward()
    assert average.inner_weight.grad.abs().max() > 0
