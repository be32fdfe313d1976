# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes against their formulas, written for whole stacks; fresh DenseFormer, GPAS and KromHC."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.models import copy_shared, logits, make, randomise
from torch import nn

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import STACKS, SUBLAYERS, build_connections, get_ln_mode
from residual_hf.model.modes_gpas import GPAS
from residual_hf.model.modes_multi_stream import kronecker
from residual_hf.model.modes_skip_scaling import XSkipLN

LAYERS, WIDTH = 3, 16
stacks = pytest.mark.parametrize("stack", STACKS)


class Stack:
    """The connections of a stack in fp64 with random parameters, and branches that a formula can call as well."""

    def __init__(self, ln_mode, stack, **options):
        torch.manual_seed(0)
        sizes = {"encoder_layers": LAYERS, "decoder_layers": LAYERS, "d_model": WIDTH, "encoder_attention_heads": 2}
        config = ResidualConfig(
            ln_mode=ln_mode, ln_mode_options=options, decoder_attention_heads=2, vocab_size=9, **sizes
        )
        self.layers = [build_connections(config, stack, layer) for layer in range(LAYERS)]
        self.boundary = get_ln_mode(ln_mode).Boundary(config, stack)
        for module in (self.boundary, *(c for layer in self.layers for c in layer)):
            for parameter in module.double().parameters():
                nn.init.normal_(parameter, mean=0.5, std=0.3)
        self.kinds, self.x = SUBLAYERS[stack], torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
        self.maps = torch.randn(LAYERS, len(self.kinds), WIDTH, WIDTH, dtype=torch.float64) / 4

    def branch(self, layer, kind):
        """tanh(z W), and the norm of a mode that normalizes the output of its branches."""
        weight = self.maps[layer, self.kinds.index(kind)]
        return lambda z, norm=torch.clone: norm(torch.tanh(z @ weight))

    def run(self):
        stream = self.boundary.begin(self.x)
        for layer, connections in enumerate(self.layers):
            for connection in connections:
                stream = connection(stream, self.branch(layer, connection.place.kind))
        return self.boundary.end(stream)

    def assert_equal(self, expected):
        """The same output, and the same gradient of the input."""
        actual = self.run()
        torch.testing.assert_close(actual, expected)
        weights = torch.randn_like(actual)
        gradients = [torch.autograd.grad((y * weights).sum(), self.x)[0] for y in (actual, expected)]
        torch.testing.assert_close(*gradients)


def rms(x, norm):
    return norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def standardized(x, norm):
    return nn.functional.layer_norm(x, (WIDTH,), norm.weight, norm.bias)


@stacks
@pytest.mark.parametrize("alpha", [None, 2.5])
def test_keel(stack, alpha):
    model = Stack("keel", stack, alpha=alpha)
    large = alpha or {"encoder": 6.0, "decoder": 9.0}[stack]
    x = model.x
    for layer, connections in enumerate(model.layers):
        for kind, connection in zip(model.kinds, connections, strict=True):
            a = model.branch(layer, kind)(rms(x, connection.input_norm))
            if layer == 0 and kind == "self_attention":
                x = x + a
            else:
                x = rms((1.0 if layer == 0 else large) * x + a, connection.norm)
    model.assert_equal(x)


@stacks
def test_span_norm(stack):
    model = Stack("span_norm", stack)
    x = model.x
    for layer, (attention, *cross, ffn) in enumerate(model.layers):
        read = standardized(x, attention.input_norm) if layer == 0 else x
        y = standardized(x + model.branch(layer, "self_attention")(read), attention.norm)
        for connection in cross:
            y = standardized(y + model.branch(layer, "cross_attention")(y), connection.norm)
        x = standardized(x + model.branch(layer, "feed_forward")(y), ffn.norm)
    model.assert_equal(x)


@stacks
@pytest.mark.parametrize("options", [{}, {"dilation": 2}, {"period": 2}, {"dilation": 3, "period": 3}], ids=str)
def test_dense_former(stack, options):
    model = Stack("dense_former", stack, **options)
    dilation, period = options.get("dilation", 1), options.get("period", 1)
    averages = [layer[0].average for layer in model.layers] + [model.boundary.average]
    outputs, x = [model.x], model.x
    for depth in range(1, LAYERS + 1):
        for kind, connection in zip(model.kinds, model.layers[depth - 1], strict=True):
            x = x + model.branch(depth - 1, kind)(standardized(x, connection.norm))
        outputs.append(x)
        if depth % period == 0:
            read = [j for j in range(depth + 1) if (depth - j) % dilation == 0]
            x = sum(w * outputs[j] for w, j in zip(averages[depth].weight, read, strict=True))
        else:
            assert averages[depth] is None
    model.assert_equal(standardized(x, model.boundary.norm))


def test_a_fresh_dense_former_is_pre_ln():
    pre_ln = randomise(make("pre_ln"))
    dense = copy_shared(pre_ln, make("dense_former", ln_mode_options={"dilation": 2}))
    torch.testing.assert_close(logits(dense), logits(pre_ln))


@stacks
@pytest.mark.parametrize(("options", "power"), [({}, 0.5), ({"tau": 2.0, "exponent": 1.0}, 1.0)])
def test_scaled_branch(stack, options, power):
    model = Stack("scaled_branch", stack, **options)
    factor = options.get("tau", 1.0) / {"encoder": 6, "decoder": 9}[stack] ** power
    x = model.x
    for layer, connections in enumerate(model.layers):
        for kind, connection in zip(model.kinds, connections, strict=True):
            x = x + factor * model.branch(layer, kind)(standardized(x, connection.norm))
    model.assert_equal(standardized(x, model.boundary.norm))


class Passing(torch.autograd.Function):
    """(1 - SiLU(gate)) x whose gradient is that of x."""

    @staticmethod
    def forward(ctx, x, gate):
        return (1 - gate * torch.sigmoid(gate)) * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@stacks
@pytest.mark.parametrize("mode", ["pre_ln_gpas", "sandwich_ln_gpas", "deep_norm_gpas", "mix_ln_gpas"])
def test_gpas(stack, mode):
    model = Stack(mode, stack, **({"fraction": 0.4} if mode == "mix_ln_gpas" else {}))
    norm = rms if mode == "mix_ln_gpas" else standardized
    x = model.x
    for layer, connections in enumerate(model.layers):
        gate = connections[0].gate
        for kind, c in zip(model.kinds, connections, strict=True):
            branch = model.branch(layer, kind)
            if mode == "deep_norm_gpas" or (mode == "mix_ln_gpas" and layer == 0):
                x = norm(getattr(c, "alpha", 1.0) * Passing.apply(x, gate) + branch(x), c.norm)
            elif mode == "sandwich_ln_gpas":
                x = Passing.apply(x + norm(branch(norm(x, c.norm)), c.output_norm), gate)
            else:
                x = Passing.apply(x + branch(norm(x, c.norm)), gate)
    model.assert_equal(x if mode == "deep_norm_gpas" else norm(x, model.boundary.norm))


@pytest.mark.parametrize("host", ["pre_ln", "sandwich_ln", "deep_norm", "mix_ln"])
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
    connection = MyGPAS(ResidualConfig(ln_mode="xskip_ln", d_model=WIDTH, encoder_attention_heads=2), place)
    nn.init.ones_(connection.gate)
    x, a = torch.randn(2, 1, 3, WIDTH)
    shortcut = 2.0 * x * (1 - torch.sigmoid(torch.tensor(1.0)))
    torch.testing.assert_close(connection((x,), lambda z: a)[0], standardized(shortcut + a, connection.norm))


def doubly_stochastic(logits, mixing):
    """Matrices of mHC (batch, length, from, to): exp and 20 normalizations, or a Kronecker product."""
    if mixing == "sinkhorn":
        matrix = logits.exp()
        for _ in range(20):
            matrix = matrix / matrix.sum(-2, keepdim=True)
            matrix = matrix / matrix.sum(-1, keepdim=True)
        return matrix.mT
    p = torch.sigmoid(logits[..., 0] - logits[..., 1])  # (batch, length, factors)
    factors = torch.stack([p, 1 - p, 1 - p, p], dim=-1).unflatten(-1, (2, 2)).flatten(0, 1)
    matrices = [functools.reduce(torch.kron, token.unbind()) for token in factors]
    return torch.stack(matrices).unflatten(0, p.shape[:2]).mT


@stacks
@pytest.mark.parametrize(("mixing", "streams"), [("sinkhorn", 3), ("kronecker", 2), ("kronecker", 4)])
def test_mhc(stack, mixing, streams):
    model = Stack("mhc", stack, mixing=mixing, streams=streams)
    h = model.x.unsqueeze(-2).expand(-1, -1, streams, -1)
    for layer, connections in enumerate(model.layers):
        for kind, c in zip(model.kinds, connections, strict=True):
            dynamic = rms(h.flatten(-2), c.weights_norm) @ c.dynamic_weight.mT
            read, write, mix = dynamic.tensor_split((streams, 2 * streams), dim=-1)
            m = torch.sigmoid(c.static_read + c.dynamic_scale[0] * read)
            b = 2 * torch.sigmoid(c.static_write + c.dynamic_scale[1] * write)
            matrix = doubly_stochastic(
                c.static_mix + c.dynamic_scale[2] * mix.unflatten(-1, c.static_mix.shape), mixing
            )
            a = model.branch(layer, kind)(standardized(torch.einsum("...i,...id->...d", m, h), c.norm))
            h = torch.einsum("...ij,...id->...jd", matrix, h) + torch.einsum("...j,...d->...jd", b, a)
    model.assert_equal(standardized(h.sum(-2), model.boundary.norm))


@stacks
@pytest.mark.parametrize("block_size", [1, 2])
def test_attention_residuals(stack, block_size):
    model = Stack("attention_residuals", stack, block_size=block_size)

    def read(attention, embeddings, outputs):
        blocks = [sum(outputs[i : i + block_size]) for i in range(0, len(outputs), block_size)]
        values = torch.stack([embeddings, *blocks])
        logits = torch.stack([rms(v, attention.norm) @ attention.query for v in values])
        return (logits.softmax(0).unsqueeze(-1) * values).sum(0)

    outputs = []
    for layer, connections in enumerate(model.layers):
        for kind, c in zip(model.kinds, connections, strict=True):
            h = read(c.depth_attention, model.x, outputs) if outputs else model.x
            outputs.append(model.branch(layer, kind)(standardized(h, c.norm)))
    boundary = model.boundary
    model.assert_equal(standardized(read(boundary.depth_attention, model.x, outputs), boundary.norm))


@stacks
@pytest.mark.parametrize("order", [1, 2, 3])
def test_rskip_ln(stack, order):
    model = Stack("rskip_ln", stack, skip_order=order)
    x = model.x
    for layer, connections in enumerate(model.layers):
        for kind, connection in zip(model.kinds, connections, strict=True):
            y = model.branch(layer, kind)(x)
            for number in range(order):
                y = standardized(x + y, connection.norms[number])
            x = y
    model.assert_equal(x)


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
    torch.testing.assert_close(kronecker(logits), expected)
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
