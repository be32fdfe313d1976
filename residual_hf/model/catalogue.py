# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""All residual connections of the package. Importing this module registers them.

Keel (Chen & Wei 2026, arXiv 2601.19895) and BranchNorm (Liu et al. 2023, arXiv 2305.02790) are missing: their papers
and official code were not available, and secondary sources contradict each other.
"""

from __future__ import annotations

from .ln_modes import PostLN, PreLN, ResiDual
from .modes_cross_layer import DLCLPost, DLCLPre
from .modes_multi_stream import MHC, AttentionResiduals, HyperConnections
from .modes_norm_free import Fixup, ReZero, ReZeroPostLN, TFixup
from .modes_norm_placement import (
    HybridNorm,
    LayerScale,
    LNScaling,
    MixLN,
    OutputLN,
    PeriLN,
    SandwichLN,
    SiameseNorm,
    SkipInit,
)
from .modes_skip_scaling import B2T, Admin, AdminTorch, B2TNoLN, DeepNorm, RSkipLN, WSkipLN, XSkip, XSkipLN
from .modes_sublayer import NormFormer, RealFormer, SubLN

__all__ = [
    "Admin",
    "AdminTorch",
    "AttentionResiduals",
    "B2T",
    "B2TNoLN",
    "DLCLPost",
    "DLCLPre",
    "DeepNorm",
    "Fixup",
    "HybridNorm",
    "HyperConnections",
    "LNScaling",
    "LayerScale",
    "MHC",
    "MixLN",
    "NormFormer",
    "OutputLN",
    "PeriLN",
    "PostLN",
    "PreLN",
    "RSkipLN",
    "ReZero",
    "ReZeroPostLN",
    "RealFormer",
    "ResiDual",
    "SandwichLN",
    "SiameseNorm",
    "SkipInit",
    "SubLN",
    "TFixup",
    "WSkipLN",
    "XSkip",
    "XSkipLN",
]
