# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The encoder-decoder for speech recognition: that of translation behind the front end of `speech_encoder.py`."""

# no `from __future__ import annotations`, as in `modeling_residual.py`

from torch import Tensor
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.models.auto import modeling_auto
from transformers.utils import TransformersKwargs
from typing_extensions import Unpack

from .caches import accepts_cache
from .decoding import FastGenerationMixin
from .modeling_residual import ResidualForConditionalGeneration


class ResidualForSpeechSeq2Seq(ResidualForConditionalGeneration, FastGenerationMixin):
    """Speech encoder, decoder and output projection, for speech recognition and translation (`conv_channels`)."""

    main_input_name = "input_features"
    input_modalities = ("audio", "text")

    @accepts_cache
    def forward(
        self,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """As `ResidualForConditionalGeneration`, from features (batch, frames, bins) of frames.

        `attention_mask` (batch, frames) marks real frames.
        """
        return super().forward(
            None,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            past_key_values,
            inputs_embeds,
            decoder_inputs_embeds,
            labels,
            use_cache,
            logits_to_keep,
            input_features=input_features,
            **kwargs,
        )


# the table in which pipelines look up the name of a class
modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.setdefault("residual", ResidualForSpeechSeq2Seq.__name__)

__all__ = ["ResidualForSpeechSeq2Seq"]
