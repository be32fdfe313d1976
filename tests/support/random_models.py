"""Models with random parameters, and what an equation of `support/equations.py` makes of the same parameters."""

import torch
from torch import nn

from residual_hf import ResidualForCausalLM
from residual_hf.model.branch_warmup import branch_warmups
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from support.plain_models import run_decoder, run_encoder, tree

WIDTH, HEADS, UPDATES = 8, 2, 1500
CLOSE = {"rtol": 1e-8, "atol": 1e-8}
SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1], [1, 1, 4, 3, 2]])
TARGET = torch.tensor([[2, 11, 12, 3], [2, 4, 5, 6], [2, 9, 9, 10]])


class Factors(nn.Module):
    """In place of dropout: fixed factors, which show where a model drops out the output of its branches."""

    def forward(self, x):
        return x * torch.linspace(0.5, 1.5, WIDTH, dtype=x.dtype)


STACK = {"dropout": Factors(), "t": UPDATES}
"""What a stack of an equation has in common with the models of `build`."""


def config_of(architecture, mode, options, **fields):
    """Of a model of 3 layers in a stack (4 in a decoder beside an encoder)."""
    sizes = {"vocab_size": 13, "d_model": WIDTH, "encoder_layers": 3, "decoder_layers": 4}
    sizes |= {f"{stack}_attention_heads": HEADS for stack in ("encoder", "decoder")}
    sizes |= {f"{stack}_ffn_dim": 12 for stack in ("encoder", "decoder")}
    if architecture is not ResidualForConditionalGeneration:
        stack = "decoder" if architecture is ResidualForCausalLM else "encoder"
        sizes = {"vocab_size": 13, "d_model": WIDTH, "num_hidden_layers": 3, "num_attention_heads": HEADS}
        sizes |= {"intermediate_size": 12, f"is_{stack}_only": True}
    return ResidualConfig(
        ln_mode=mode, ln_mode_options=options, position_embedding_type="none", dropout=0.0, **sizes, **fields
    )


def fresh(architecture, mode, options, **fields):
    """A model of `config_of` with its initial parameters."""
    torch.manual_seed(0)
    return architecture._from_config(config_of(architecture, mode, options, **fields), attn_implementation="eager")


def build(architecture, mode, options, **fields):
    """A model with random parameters of all kinds in fp64, and these parameters by name."""
    model = fresh(architecture, mode, options, **fields).double().eval()
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
    torch.testing.assert_close(actual, expected, **CLOSE)
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
            torch.testing.assert_close(mine, reference, **CLOSE, msg=lambda text, name=name: name + text)


def outputs_of(model, p, equation, **stack):
    """Outputs of encoder and decoder, whose sources have padding on the right and on the left, and of an equation."""
    table, real = p.encoder.embed_tokens.weight, SOURCE.ne(1)
    stack = {**STACK, **stack}
    memory = run_encoder(p.encoder, equation, HEADS, embed(table, SOURCE), real, others=4, **stack)
    decoded = run_decoder(p.decoder, equation, HEADS, embed(table, TARGET), memory, real, others=3, **stack)
    outputs = model.model(SOURCE, attention_mask=real, decoder_input_ids=TARGET)
    return [outputs.encoder_last_hidden_state, outputs.last_hidden_state], [memory, decoded]
