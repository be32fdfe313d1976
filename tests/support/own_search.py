"""Models and sources on which the search of this package is compared with that of Transformers."""

import random

import torch

from residual_hf import ResidualConfig, ResidualForConditionalGeneration
from support import small_sizes

VOCABULARY = 200


def make_model(mode: str, seed: int = 0, **fields) -> ResidualForConditionalGeneration:
    """Random weights, large enough that hypotheses of different lengths compete."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, **small_sizes(32, 2, 64, 4)}
    config = ResidualConfig(ln_mode=mode, output_bias=True, **sizes, **fields)
    model = ResidualForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(2.0)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        model.lm_head.bias.normal_()
        model.lm_head.bias[model.config.eos_token_id] += 2.5
    return model


def make_sources(generator: random.Random, sentences: int, left_padded: bool) -> torch.Tensor:
    sources = torch.full((sentences, 12), 1)
    for row in sources:
        length = generator.randrange(2, 13)
        words = torch.tensor([*(generator.randrange(4, VOCABULARY) for _ in range(length - 1)), 2])
        row[-length:] = words if left_padded else row[-length:]
        row[:length] = row[:length] if left_padded else words
    return sources


def transformers_loop(model, input_ids, generation_config, **kwargs):
    """The loop of Transformers, as `custom_generate`."""
    loop = model._beam_search if generation_config.num_beams > 1 else model._sample
    return loop(input_ids, generation_config=generation_config, **kwargs)
