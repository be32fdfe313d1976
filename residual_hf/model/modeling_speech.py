# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Speech models: strided convolutions in front of the layers of the encoder, as in fairseq S2T (Wang et al. 2020)."""

from functools import wraps
from inspect import Signature, signature
from typing import Any

from torch import Tensor, nn
from transformers.models.auto import modeling_auto

from .caches import Method
from .configuration_residual import ResidualConfig
from .decoding import FastGenerationMixin
from .initialization import BareParameters
from .modeling_residual import ResidualForConditionalGeneration, ResidualModel  # noqa: F401  # for AutoModel
from .stacks import ENCODERS, ResidualEncoder


def of_features(forward: Method) -> Method:
    """The `forward` of a model of text whose first argument is called `input_features`."""
    itself, first, *others = signature(forward).parameters.values()

    @wraps(forward)
    def renamed(self: Any, input_features: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("input_ids", None) is not None:
            raise ValueError("input_ids given, but a speech model reads input_features")
        return forward(self, input_features, *args, **kwargs)

    renamed.__signature__ = Signature([itself, first.replace(name="input_features"), *others])  # type: ignore[attr-defined]
    return renamed  # type: ignore[return-value]


class StridedConv(BareParameters, nn.Conv1d):
    """A convolution that halves the length, with the initialization of PyTorch, which fairseq S2T leaves as it is."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int):
        super().__init__(in_channels, out_channels, kernel_size, stride=2, padding=kernel_size // 2)


class SpeechFrontEnd(nn.Module):
    """Convolutions with gated linear units: frames (batch, frames, bins) to vectors (batch, frames / 4, d_model).

    The last vectors of a recording depend a little on padding behind it, as in fairseq: a convolution reads what the
    previous one makes of padding. Raises `ValueError` for more frames than `max_source_positions`.
    """

    def __init__(self, config: ResidualConfig, scale: float):
        super().__init__()
        assert config.conv_channels is not None
        channels = [config.conv_channels] * (len(config.conv_kernel_sizes) - 1)
        inputs, outputs = [config.num_mel_bins, *(c // 2 for c in channels)], [*channels, 2 * config.d_model]
        sizes = zip(inputs, outputs, config.conv_kernel_sizes, strict=True)
        self.convs = nn.ModuleList(StridedConv(*size) for size in sizes)
        self.scale, self.most = scale, config.max_source_positions

    def forward(self, input_features: Tensor) -> Tensor:
        if (frames := input_features.shape[1]) > self.most:
            limit = f"max_source_positions is {self.most}"
            raise ValueError(f"the encoder received {frames} frames, but {limit}: cut the recording")
        first: StridedConv = self.convs[0]  # type: ignore[assignment]
        states = input_features.to(first.weight.dtype).transpose(1, 2)
        for conv in self.convs:
            states = nn.functional.glu(conv(states), dim=1)
        return states.transpose(1, 2).contiguous() * self.scale


class ResidualSpeechEncoder(ResidualEncoder):
    """`SpeechFrontEnd` and the layers of an encoder of text, from frames (batch, frames, bins) and their mask."""

    main_input_name = "input_features"

    def build_embeddings(self, config: ResidualConfig, scale: float) -> nn.Module:
        return SpeechFrontEnd(config, scale)

    def inputs_mask(self, inputs: Tensor) -> Tensor | None:
        return None if inputs.is_meta else inputs.new_ones(inputs.shape[:2])

    def states_mask(self, attention_mask: Tensor) -> Tensor:
        return attention_mask[:, :: 2 ** len(self.config.conv_kernel_sizes)]

    forward = of_features(ResidualEncoder.forward)


ENCODERS[True] = ResidualSpeechEncoder


class ResidualForSpeechSeq2Seq(ResidualForConditionalGeneration, FastGenerationMixin):
    """Speech encoder, decoder and output projection, for speech recognition and translation (`conv_channels`).

    Inputs are `input_features` (batch, frames, bins), and `attention_mask` (batch, frames) marks real frames.
    """

    main_input_name = "input_features"
    input_modalities = ("audio", "text")
    forward = of_features(ResidualForConditionalGeneration.forward)

    def freeze_feature_encoder(self) -> None:
        """Train the convolutions no further; the scripts of Transformers call this."""
        self.get_encoder().embed_tokens.requires_grad_(False)


# the table in which pipelines look up the name of a class
modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.setdefault("residual", ResidualForSpeechSeq2Seq.__name__)
