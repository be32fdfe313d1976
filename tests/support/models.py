"""Small models of any mode, and what tests do with them."""

import pytest
import torch

from residual_hf.model.branch_warmup import branch_warmups
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from support import small_sizes
from support.slow import slow_except

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 1, 1]])
TARGET = torch.tensor([[2, 11, 12, 13], [2, 14, 15, 16]])


def make(ln_mode, attention="sdpa", **fields):
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, **small_sizes(16, 2, 32, 4), "decoder_layers": 3, "max_position_embeddings": 16}
    config = ResidualConfig(**{**sizes, "dropout": 0.0, "ln_mode": ln_mode, **fields})
    model = ResidualForConditionalGeneration._from_config(config, attn_implementation=attention).eval()
    if config.branch_warmup is None:
        for warmup in branch_warmups(model):  # of a mode that has one: halfway, so that branches are neither 0 nor 1
            warmup.updates.fill_(warmup.duration // 2)
    return model


def randomise(model):
    """Random values everywhere, norm gains and biases included, so that no 1 or 0 hides a mistake."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def copy_shared(source, target):
    """The weights that both models have; the others of `target` stay as they are."""
    missing, unexpected = target.load_state_dict(source.state_dict(), strict=False)
    assert not unexpected
    return target


OURS = sorted(name for name, mode in LN_MODES.items() if mode.__module__.startswith("residual_hf."))
every_mode = pytest.mark.parametrize("mode", OURS)
SHAPES = ["attention_residuals", "b2t", "branch_norm", "mhc", "normformer", "pre_ln_gpas", "realformer", "resi_dual"]
"""A mode of each shape of connection, for what does not depend on its equation: members that every layer adds, the
input of the layer, one member and a warm-up, several members, modules in the branches, a gate of the layer, scores,
two members."""


def shapes_of(modes, *others):
    """The values of a parameter, and of others, for these modes, slow except for one of each shape."""
    return slow_except(SHAPES, modes, *others)


every_shape = pytest.mark.parametrize("mode", shapes_of(OURS))
LABELS = torch.tensor([[11, 12, 13, 2], [14, 15, 2, -100]])


@torch.no_grad()
def logits_of(model, source=SOURCE, mask=None, target=TARGET, **inputs):
    mask = SOURCE.ne(1) if mask is None else mask
    return model(source, attention_mask=mask, decoder_input_ids=target, **inputs).logits


@torch.no_grad()
def logits_in_pieces(model, cache=None, sizes=(1, 1, 2)):
    """Logits of decoding `TARGET` in pieces, each one after what the cache holds."""
    mask, pieces = SOURCE.ne(1), []
    inputs = {"encoder_outputs": model.get_encoder()(SOURCE, attention_mask=mask), "attention_mask": mask}
    for piece in TARGET.split(sizes, dim=1):
        output = model(**inputs, decoder_input_ids=piece, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        pieces.append(output.logits)
    return torch.cat(pieces, dim=1)
