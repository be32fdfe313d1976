"""Encoder-decoder Transformers with residual connections and layer norms selected by the config field `ln_mode`.

Importing the package registers it with the Auto classes of Transformers and restores `pipeline("translation")`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .generation.translator import Translator
    from .model.configuration_image import ResidualImageConfig
    from .model.configuration_residual import ResidualConfig
    from .model.connections import ResidualConnection, StreamBoundary, register_ln_mode
    from .model.modeling_image import ResidualForImageClassification, ResidualImageModel
    from .model.modeling_residual import ResidualForConditionalGeneration, ResidualModel
    from .model.modeling_single_stack import (
        ResidualForCausalLM,
        ResidualForMaskedLM,
        ResidualForSequenceClassification,
    )
    from .model.modeling_speech import ResidualForSpeechSeq2Seq
    from .model.pipeline_translation import SummarizationPipeline, TranslationPipeline
    from .model.stacks import ResidualDecoder, ResidualEncoder, ResidualPreTrainedModel
    from .model.tokenization_residual import ResidualTokenizer
    from .training.callbacks import BranchWarmupCallback
    from .training.diagnostics import DiagnosticsCallback

_NAMES = {
    "generation.translator": ("Translator",),
    "model.configuration_image": ("ResidualImageConfig",),
    "model.configuration_residual": ("ResidualConfig",),
    "model.connections": ("ResidualConnection", "StreamBoundary", "register_ln_mode"),
    "model.modeling_image": ("ResidualForImageClassification", "ResidualImageModel"),
    "model.modeling_residual": ("ResidualForConditionalGeneration", "ResidualModel"),
    "model.modeling_single_stack": ("ResidualForCausalLM", "ResidualForMaskedLM", "ResidualForSequenceClassification"),
    "model.modeling_speech": ("ResidualForSpeechSeq2Seq",),
    "model.pipeline_translation": ("SummarizationPipeline", "TranslationPipeline"),
    "model.stacks": ("ResidualDecoder", "ResidualEncoder", "ResidualPreTrainedModel"),
    "model.tokenization_residual": ("ResidualTokenizer",),
    "training.callbacks": ("BranchWarmupCallback",),
    "training.diagnostics": ("DiagnosticsCallback",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "BranchWarmupCallback",
    "DiagnosticsCallback",
    "ResidualConfig",
    "ResidualConnection",
    "ResidualDecoder",
    "ResidualEncoder",
    "ResidualForCausalLM",
    "ResidualForConditionalGeneration",
    "ResidualForImageClassification",
    "ResidualForMaskedLM",
    "ResidualForSequenceClassification",
    "ResidualForSpeechSeq2Seq",
    "ResidualImageConfig",
    "ResidualImageModel",
    "ResidualModel",
    "ResidualPreTrainedModel",
    "ResidualTokenizer",
    "StreamBoundary",
    "SummarizationPipeline",
    "TranslationPipeline",
    "Translator",
    "register_ln_mode",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if "residual_hf_cli" not in sys.modules:  # the console script registers when a verb runs
    from .registration import register

    register()
