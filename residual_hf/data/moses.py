# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Moses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MosesRules:
    language: str = "en"

    def normalizers(self):
        return []

    def decoders(self):
        return []
