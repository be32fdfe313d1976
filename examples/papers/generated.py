"""The generated corpus, and fresh models of a shape, for short trainings."""

from functools import lru_cache
from typing import Any

import torch

from residual_hf.analysis.short_training import ShortCorpus
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.synthetic import generate_corpus
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

PAIRS = {"train": 20000, "valid": 200, "test": 1}
VOCABULARY = 1000


def generated_corpus(max_tokens: int = 1024, device: str = "cpu") -> ShortCorpus:
    """The generated corpus, with a vocabulary that both languages share."""
    corpora, tokenizer = generated_corpora()
    return ShortCorpus(corpora, tokenizer, {"vocab_size": len(tokenizer)}, max_tokens, device)


@lru_cache(maxsize=1)
def generated_corpora() -> tuple[dict[str, EncodedCorpus], Any]:
    """The encoded corpora by name, and their tokenizer."""
    texts = {name: list(zip(*pairs, strict=True)) for name, pairs in generate_corpus(PAIRS).items()}
    tokenizer = train_tokenizer([*texts["train"][0], *texts["train"][1]], TokenizerSettings(vocab_size=VOCABULARY))
    corpora = {
        name: EncodedCorpus.from_ids(*(tokenizer(list(side))["input_ids"] for side in sides))
        for name, sides in texts.items()
    }
    return corpora, tokenizer


def new_model(
    mode: str, layers: int, width: int, *, ffn: int, seed: int, **fields: Any
) -> ResidualForConditionalGeneration:
    """A fresh model of this shape, to which `fields` of the config are added."""
    torch.manual_seed(seed)
    return ResidualForConditionalGeneration(ResidualConfig(**{**shape(mode, layers, width, ffn), **fields}))


def shape(mode: str, layers: int, width: int, ffn: int) -> dict[str, Any]:
    """Fields of a config with two stacks of the same sizes and without dropout."""
    stacks = {"layers": layers, "ffn_dim": ffn, "attention_heads": max(4, width // 64)}
    sizes = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in stacks.items()}
    return {"ln_mode": mode, "d_model": width, "dropout": 0.0, "max_position_embeddings": 256, **sizes}
