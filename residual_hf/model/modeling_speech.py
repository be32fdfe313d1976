# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The encoder-decoder for speech recognition: that of translation behind the front end of `speech_encoder.py`."""

from __future__ import annotations

from transformers.models.auto import modeling_auto

from .decoding import FastGenerationMixin
from .modeling_residual import ResidualForConditionalGeneration
from .speech_encoder import of_features


class ResidualForSpeechSeq2Seq(ResidualForConditionalGeneration, FastGenerationMixin):
    """Speech encoder, decoder and output projection, for speech recognition and translation (`conv_channels`).

    Inputs are `input_features` (batch, frames, bins), and `attention_mask` (batch, frames) marks real frames.
    """

    main_input_name = "input_features"
    input_modalities = ("audio", "text")
    forward = of_features(ResidualForConditionalGeneration.forward)


# the table in which pipelines look up the name of a class
modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.setdefault("residual", ResidualForSpeechSeq2Seq.__name__)

__all__ = ["ResidualForSpeechSeq2Seq"]
