# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The pre-activation ResNet for CIFAR (He et al. 2016, Identity Mappings in Deep Residual Networks).

A block is a sub-layer and has the residual connection of a sub-layer, on streams (batch, height * width, channels).
Images as (batch, channels, height, width) in the format channels_last have the same layout in memory.

Between stages every member of the stream takes the shortcut without parameters: every second pixel of every second
row, and zeros as new channels. The branch reads all pixels. So that any connection can read and add, its stream has
all pixels and the new channels in that block, and the pixels are left out after it.
"""

from functools import partial

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import TransformersKwargs
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs
from typing_extensions import Unpack

from .configuration_image import STAGES, ResidualImageConfig
from .connections import SublayerPlace, build_connections, slot
from .kernels import Dropout
from .layers import ResidualLayer, connect
from .stack_config import StackConfig
from .stacks import ResidualStack


def as_stream(maps: Tensor) -> Tensor:
    """(batch, channels, height, width) to (batch, height * width, channels)."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2)


def as_maps(states: Tensor, height: int) -> Tensor:
    """(batch, height * width, channels) to (batch, channels, height, width)."""
    return states.unflatten(1, (height, -1)).permute(0, 3, 1, 2)


class Convolution(nn.Conv2d):
    """A 3x3 convolution without bias, initially N(0, gain * sqrt(2 / (9 * out_channels))), He et al. 2015."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, gain: float = 1.0):
        super().__init__(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.gain = gain

    def init_parameters(self) -> None:
        init.normal_(self.weight, std=self.gain * (2 / (9 * self.out_channels)) ** 0.5)


class Stem(nn.Module):
    """The first convolution, from images (batch, channels, height, width) to a stream."""

    def __init__(self, config: ResidualImageConfig):
        super().__init__()
        self.projection = Convolution(config.num_channels, config.of_stage(0).d_model)

    def forward(self, pixel_values: Tensor) -> Tensor:
        images = pixel_values.to(self.projection.weight.dtype, memory_format=torch.channels_last)
        return as_stream(self.projection(images))


class ResNetBranch(nn.Module):
    """conv(relu(BN(conv(relu(BN(x)))))) with slots for the inner modules of a mode, as in a feed-forward."""

    def __init__(self, config: StackConfig, place: SublayerPlace, in_channels: int, stride: int):
        super().__init__()
        mode, width = config.mode, config.d_model
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = Convolution(in_channels, width, stride, mode.init_gain(config, place, "ffn_in"))
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = Convolution(width, width, gain=mode.init_gain(config, place, "ffn_out"))
        self.dropout = Dropout(config.activation_dropout)
        self.inner = nn.ModuleDict(mode.inner_modules(config, place))

    def _slot(self, name: str, maps: Tensor) -> Tensor:
        return slot(self.inner, name, maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def forward(self, hidden_states: Tensor, height: int) -> tuple[Tensor]:
        maps = self.conv1(nn.functional.relu(self.norm1(as_maps(hidden_states, height))))
        maps = nn.functional.relu(self._slot("pre_activation", self.norm2(maps)))
        maps = self._slot("inner", self.dropout(maps))
        return (as_stream(self._slot("output", self.conv2(maps))),)


class ResNetLayer(ResidualLayer):
    """A block with its residual connection; the first block of the second and third stage halves height and width."""

    def __init__(self, config: StackConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        stage, block = divmod(layer_idx, config.layers // STAGES)
        is_first = stage > 0 and block == 0
        self.stride = 2 if is_first else 1
        self.read_stage = stage - 1 if is_first else stage
        own, self.in_channels = config.of_stage(stage), config.of_stage(self.read_stage).d_model
        (self.ffn_residual,) = build_connections(own, layer_idx)
        self.ffn = ResNetBranch(own, self.ffn_residual.place, self.in_channels, self.stride)

    def forward(self, *stream: Tensor, height: int) -> tuple[Tensor, ...]:
        """`height`: of the first stage."""
        height = -(-height // 2**self.read_stage)
        if self.stride == 1:
            return connect(self.ffn_residual, stream, self.sublayer()(partial(self.ffn, height=height)))
        wide = tuple(nn.functional.pad(member, (0, member.shape[-1])) for member in stream)
        stream = connect(self.ffn_residual, wide, self.sublayer()(partial(self.enlarged_branch, height=height)))
        return tuple(as_stream(as_maps(member, height)[:, :, ::2, ::2]) for member in stream)

    def enlarged_branch(self, states: Tensor, height: int) -> tuple[Tensor]:
        """The output of the branch with each pixel in the place of the four (at borders two or one) it stands for."""
        (output,) = self.ffn(states[..., : self.in_channels], height)
        maps = as_maps(output, -(-height // 2)).repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
        return (as_stream(maps[:, :, :height, : states.shape[1] // height]),)


class ResidualResNet(ResidualStack):
    """Convolution, three stages of blocks, batch norm and ReLU."""

    config: ResidualImageConfig
    main_input_name = "pixel_values"
    stack = "encoder"
    Layer = ResNetLayer
    _can_record_outputs = {"hidden_states": ResNetLayer}

    def __init__(self, config: ResidualImageConfig):
        super().__init__(config)
        self.norm = nn.BatchNorm2d(config.d_model)
        self.post_init()

    def build_embeddings(self, config: ResidualImageConfig, scale: float) -> nn.Module:
        return Stem(config)

    @merge_with_config_defaults
    @capture_outputs
    def forward(self, pixel_values: Tensor, **kwargs: Unpack[TransformersKwargs]) -> BaseModelOutput:
        """Map images (batch, channels, height, width) to states (batch, positions, d_model) of the last stage."""
        height = pixel_values.shape[-2]
        states = self.run_layers(self.embed_tokens(pixel_values), height=height)
        maps = as_maps(states, -(-height // 2 ** (STAGES - 1)))
        return BaseModelOutput(last_hidden_state=as_stream(nn.functional.relu(self.norm(maps))))
