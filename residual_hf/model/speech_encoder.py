# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The encoder of a speech model: strided convolutions in front of the layers, as in fairseq S2T (Wang et al. 2020)."""

# no `from __future__ import annotations`, as in `modeling_residual.py`

from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import TransformersKwargs
from typing_extensions import Unpack

from .configuration_residual import ResidualConfig
from .stacks import ResidualEncoder


class StridedConv(nn.Conv1d):
    """A convolution that halves the length, with the initialization of PyTorch, which fairseq S2T leaves as it is."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int):
        super().__init__(in_channels, out_channels, kernel_size, stride=2, padding=kernel_size // 2)

    def init_parameters(self) -> None:
        assert self.bias is not None
        init.kaiming_uniform_(self.weight, a=5**0.5)
        bound = self.weight[0].numel() ** -0.5
        init.uniform_(self.bias, -bound, bound)


class SpeechFrontEnd(nn.Module):
    """Convolutions with gated linear units: frames (batch, frames, bins) to vectors (batch, frames / 4, d_model).

    The last vectors of a recording depend a little on padding behind it, as in fairseq: a convolution reads what the
    previous one makes of padding.
    """

    def __init__(self, config: ResidualConfig, scale: float):
        super().__init__()
        assert config.conv_channels is not None
        channels = [config.conv_channels] * (len(config.conv_kernel_sizes) - 1)
        inputs, outputs = [config.num_mel_bins, *(c // 2 for c in channels)], [*channels, 2 * config.d_model]
        sizes = zip(inputs, outputs, config.conv_kernel_sizes, strict=True)
        self.convs = nn.ModuleList(StridedConv(*size) for size in sizes)
        self.scale = scale

    def forward(self, input_features: Tensor) -> Tensor:
        states = input_features.to(next(self.parameters()).dtype).transpose(1, 2)
        for conv in self.convs:
            states = nn.functional.glu(conv(states), dim=1)
        return states.transpose(1, 2).contiguous() * self.scale


class ResidualSpeechEncoder(ResidualEncoder):
    """`SpeechFrontEnd` and the layers of an encoder of text."""

    main_input_name = "input_features"

    def build_embeddings(self, config: ResidualConfig, scale: float) -> nn.Module:
        return SpeechFrontEnd(config, scale)

    def inputs_mask(self, inputs: Tensor) -> Tensor:
        return inputs.new_ones(inputs.shape[:2])

    def states_mask(self, attention_mask: Tensor) -> Tensor:
        return attention_mask[:, :: 2 ** len(self.config.conv_kernel_sizes)]

    def forward(
        self,
        input_features: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Map frames (batch, frames, bins) to hidden states (batch, frames / 4, d_model).

        Args:
            attention_mask: of real frames, (batch, frames); padding is zero and behind them.
            inputs_embeds: in the place of what the convolutions return.

        Raises `ValueError` for more frames than `max_source_positions`.
        """
        if input_features is not None and input_features.shape[1] > self.config.max_source_positions:
            raise ValueError(
                f"the encoder received {input_features.shape[1]} frames, but max_source_positions is "
                f"{self.config.max_source_positions}: cut the recording"
            )
        return super().forward(input_features, attention_mask, inputs_embeds, **kwargs)


__all__ = ["ResidualSpeechEncoder"]
