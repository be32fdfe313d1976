# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""All residual connections of the package. Importing this module registers them."""
# ruff: noqa: F401

from __future__ import annotations

from .ln_modes import PostLN, PreLN, ResiDual
from .modes_branch_scaling import BranchNorm, LayerScale, LNScaling, ScaledBranch, SkipInit
from .modes_cross_layer import DenseFormer, DLCLPost, DLCLPre
from .modes_gpas import DeepNormGPAS, LNScalingGPAS, MixLNGPAS, PreLNGPAS, SandwichLNGPAS
from .modes_layer_input import B2T, B2TNoLN, SpanNorm
from .modes_multi_stream import MHC, AttentionResiduals, HyperConnections
from .modes_norm_free import Fixup, ReZero, ReZeroPostLN, TFixup
from .modes_norm_placement import HybridNorm, MixLN, OutputLN, PeriLN, SandwichLN, SiameseNorm
from .modes_skip_scaling import Admin, AdminTorch, DeepNorm, Keel, RSkipLN, WSkipLN, XSkip, XSkipLN
from .modes_sublayer import NormFormer, RealFormer, SubLN
