# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The setting of a stress test."""

from __future__ import annotations

from dataclasses import dataclass

from residual_hf.base.errors import InputSettings
from residual_hf.model.options import option


@dataclass(frozen=True)
class StressSetting(InputSettings):
    """Sizes of a stress test; runs with another setting are not compared."""

    width: int = option(64, minimum=1, help="`d_model`")
    updates: int = option(1000, minimum=1, help="updates of a run; in the paper 5000")
    max_lr: float = option(5e-2, above=0, help="last learning rate")
    max_tokens: int = option(1024, minimum=1, help="padded tokens of a batch")
    corpus: str = option("the generated corpus", help="name of the training text")

    def check(self) -> None:
        heads = max(4, self.width // 64)
        self.require(self.width % heads == 0, "width", f"a multiple of {heads}, the number of heads")

    def lr(self, update: int) -> float:
        return self.max_lr * update / self.updates
