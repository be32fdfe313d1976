"""Small models of one stack, and what tests do with them."""

import torch

from residual_hf import ResidualConfig, ResidualForCausalLM

SIZES = {
    "vocab_size": 50,
    "d_model": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "dropout": 0.0,
}

MODERN = {"position_embedding_type": "rotary", "gated_ffn": True, "activation_function": "silu"}


def disturbed(model):
    """The model with all parameters away from their initial values, so that outputs depend on each of them."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def causal(**fields):
    torch.manual_seed(0)
    return disturbed(ResidualForCausalLM(ResidualConfig(is_decoder_only=True, **{**SIZES, **fields})))


def left_padded():
    ids = torch.randint(4, 50, (2, 8), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 1, 0
    return ids, mask


def logits_by_steps(model, ids, mask):
    """Logits with a cache, the first three tokens at once and then one at a time."""
    cache, steps = None, []
    for start, end in [(0, 3), *((i, i + 1) for i in range(3, ids.shape[1]))]:
        output = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        steps.append(output.logits)
    return torch.cat(steps, dim=1)
