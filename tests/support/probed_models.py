"""Models and batches for probes."""

import torch

from residual_hf import ResidualConfig, ResidualForConditionalGeneration


def model_of(mode, depth=2, decoder_depth=None, width=32, seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {"d_model": width, "vocab_size": 1000, "dropout": 0.0, "max_position_embeddings": 64}
    for stack, layers in (("encoder", depth), ("decoder", decoder_depth or depth)):
        sizes |= {f"{stack}_layers": layers, f"{stack}_ffn_dim": 4 * width, f"{stack}_attention_heads": 4}
    return ResidualForConditionalGeneration(ResidualConfig(ln_mode=mode, **(sizes | fields)))


def random_batch(sentences=16, length=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(4, 1000, (2, sentences, length), generator=generator)
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}
