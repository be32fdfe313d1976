# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The settings of one stack, with which its connections, norms, layers and embeddings are built."""

from dataclasses import dataclass
from typing import Any

from .branch_warmup import BranchWarmupSettings


@dataclass(frozen=True)
class StackConfig:
    """The settings of an encoder or a decoder, from `ResidualConfig.of`.

    Fields of the model that all stacks share, such as `d_model` and `layer_norm_eps`, are attributes too.
    """

    model: Any  # the `ResidualConfig`
    stack: str  # "encoder" or "decoder"
    kinds: tuple[str, ...]  # of the sub-layers of each layer, in the order in which they run
    layers: int
    attention_heads: int
    ffn_dim: int
    layerdrop: float
    word_dropout: float
    positions: int  # of a speech encoder, those after its convolutions
    mode: Any  # the class of its `ln_mode`, a `ResidualConnection`
    options: Any  # `Options` of the mode
    norm_type: str
    init_style: str
    branch_warmup: BranchWarmupSettings | None

    @property
    def ln_mode(self) -> str:
        """The name of the mode."""
        return str(self.mode.name)

    @property
    def num_sublayers(self) -> int:
        return len(self.kinds) * self.layers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "model":  # of an object that is being copied
            raise AttributeError(name)
        return getattr(self.model, name)
