# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Every mode as a whole model against its equation in `support/equations.py`: outputs and all gradients, in fp64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from support.equations import EQUATIONS
from support.models import OURS
from support.plain_models import run_decoder, run_encoder, tree
from torch import nn

from residual_hf import ResidualForCausalLM, ResidualForMaskedLM
from residual_hf.model.branch_warmup import branch_warmups
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

WIDTH, HEADS, UPDATES = 8, 2, 1500
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1], [1, 1, 4, 3, 2]])
TARGET = torch.tensor([[2, 11, 12, 3], [2, 4, 5, 6], [2, 9, 9, 10]])
OPTIONS = [
    ("resi_dual", {"dual_scale": 0.3, "main_scale": 0.7, "dual_layer_norm_eps": 1e-2}),
    ("b2t_no_ln", {"stack_norm": True}),
    ("dense_former", {"dilation": 2}),
    ("dense_former", {"period": 2}),
    ("dense_former", {"dilation": 3, "period": 3}),
    ("attention_residuals", {"block_size": 2}),
    ("attention_residuals", {"block_size": 4}),
    ("admin_torch", {"target": "constant"}),
    ("admin_torch", {"target": "linear"}),
    ("admin_torch", {"learned": True}),
    ("xskip", {"skip_scale": 1.7}),
    ("xskip_ln", {"skip_scale": 0.6}),
    ("rskip_ln", {"skip_order": 1}),
    ("rskip_ln", {"skip_order": 3}),
    ("keel", {"alpha": 2.5}),
    ("scaled_branch", {"tau": 2.0, "exponent": 1.0}),
    ("rezero", {"gate": "sublayer"}),
    ("rezero_post_ln", {"gate": "sublayer"}),
    ("mix_ln", {"fraction": 0.4}),
    ("mix_ln_gpas", {"fraction": 0.7}),
    ("hybrid_norm", {"star": True}),
    ("normformer", {"scale_residual": True}),
    ("normformer", {"head_scale_position": "pre_out"}),
    ("realformer", {"running_mean": True}),
    ("hyper_connections", {"streams": 2}),
    ("hyper_connections", {"streams": 1}),
    ("hyper_connections", {"dynamic": False}),
    ("mhc", {"streams": 3}),
    ("mhc", {"mixing": "kronecker"}),
    ("mhc", {"mixing": "kronecker", "streams": 8}),
]
CASES = [(mode, {}) for mode in OURS] + OPTIONS
cases = pytest.mark.parametrize(
    ("mode", "options"), CASES, ids=["-".join([mode, *(f"{k}={v}" for k, v in o.items())]) for mode, o in CASES]
)
WARMED = ("post_ln", "sandwich_ln", "peri_ln", "output_ln", "realformer", "fixup", "mhc", "sandwich_ln_gpas")


class Factors(nn.Module):
    """In place of dropout: fixed factors, which show where a model drops out the output of its branches."""

    def forward(self, x):
        return x * torch.linspace(0.5, 1.5, WIDTH, dtype=x.dtype)


def build(architecture, mode, options, **fields):
    """A model of 3 layers in a stack (4 in a decoder beside an encoder) with random parameters of all kinds."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "d_model": WIDTH, "encoder_layers": 3, "decoder_layers": 4}
    sizes |= {f"{stack}_attention_heads": HEADS for stack in ("encoder", "decoder")}
    sizes |= {f"{stack}_ffn_dim": 12 for stack in ("encoder", "decoder")}
    if architecture is not ResidualForConditionalGeneration:
        stack = "decoder" if architecture is ResidualForCausalLM else "encoder"
        sizes = {"vocab_size": 13, "d_model": WIDTH, "num_hidden_layers": 3, "num_attention_heads": HEADS}
        sizes |= {"intermediate_size": 12, f"is_{stack}_only": True}
    config = ResidualConfig(
        ln_mode=mode, ln_mode_options=options, position_embedding_type="none", dropout=0.0, **sizes, **fields
    )
    model = architecture._from_config(config, attn_implementation="eager").double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.normal_(mean=0.5, std=0.3)
    for warmup in branch_warmups(model):
        warmup.updates.fill_(UPDATES)
    for stack in model.model.children():
        for layer in getattr(stack, "layers", ()):
            layer.dropout = Factors()
    return model, tree(model.state_dict(keep_vars=True)).model


def embed(table, ids):
    return table[ids] * WIDTH**0.5


def assert_same(model, actual, expected):
    """The same outputs, and the same gradient of a random function of them in every parameter."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    parameters = list(model.parameters())
    weights = [torch.randn(y.shape, dtype=y.dtype) for y in actual]
    gradients, references = (
        torch.autograd.grad(
            sum((y * w).sum() for y, w in zip(ys, weights, strict=True)), parameters, allow_unused=True
        )
        for ys in (actual, expected)
    )
    for (name, _), mine, reference in zip(model.named_parameters(), gradients, references, strict=True):
        assert (mine is None) == (reference is None), name
        if mine is not None:
            torch.testing.assert_close(mine, reference, rtol=1e-8, atol=1e-8, msg=lambda text, name=name: name + text)


def compare(mode, options, equation_of_stack, **fields):
    """Outputs of encoder and decoder, whose sources have padding on the right and on the left."""
    model, p = build(ResidualForConditionalGeneration, mode, options, **fields)
    table, real = p.encoder.embed_tokens.weight, SOURCE.ne(1)
    memory = equation_of_stack(run_encoder, p.encoder, HEADS, embed(table, SOURCE), real, others=4)
    decoded = equation_of_stack(run_decoder, p.decoder, HEADS, embed(table, TARGET), memory, real, others=3)
    outputs = model.model(SOURCE, attention_mask=real, decoder_input_ids=TARGET)
    assert_same(model, [outputs.encoder_last_hidden_state, outputs.last_hidden_state], [memory, decoded])


def equation_of(mode, options, **stack):
    equation = partial(EQUATIONS[mode], **options)
    return lambda run, p, *args, **kw: run(p, equation, *args, dropout=Factors(), t=UPDATES, **stack, **kw)


@cases
def test_encoder_and_decoder(mode, options):
    compare(mode, options, equation_of(mode, options))


@cases
def test_decoder_alone(mode, options):
    model, p = build(ResidualForCausalLM, mode, options)
    embeddings = embed(p.decoder.embed_tokens.weight, TARGET)
    expected = equation_of(mode, options)(run_decoder, p.decoder, HEADS, embeddings)
    assert_same(model, [model.model(TARGET, use_cache=False).last_hidden_state], [expected])


@pytest.mark.parametrize("mode", ["deep_norm", "admin_torch", "keel", "scaled_branch", "fixup", "siamese_norm"])
def test_encoder_alone(mode):
    """Modes with constants of the depth, or with another end of an encoder."""
    model, p = build(ResidualForMaskedLM, mode, {})
    embeddings, real = embed(p.encoder.embed_tokens.weight, SOURCE), SOURCE.ne(1)
    expected = equation_of(mode, {})(run_encoder, p.encoder, HEADS, embeddings, real)
    assert_same(model, [model.model(SOURCE, attention_mask=real).last_hidden_state], [expected])


@pytest.mark.parametrize("mode", WARMED)
def test_branch_warmup_multiplies_what_is_added(mode):
    settings = {"schedule": "linear", "updates": 1000}
    equation = equation_of(mode, {}, warmup=lambda layer, t: min(t / (1000 * layer), 1))
    compare(mode, {}, equation, branch_warmup=settings)


def test_every_mode_has_an_equation():
    assert sorted(EQUATIONS) == OURS
