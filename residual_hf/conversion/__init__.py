# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of other code bases in."""

from .fairseq import convert_fairseq_state_dict

__all__ = ["convert_fairseq_state_dict"]
