# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Models that classify images: a pre-activation ResNet (`resnet.py`) or a vision Transformer.

Their residual connections are those of the Transformers for text.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, ImageClassifierOutput
from transformers.models.auto import modeling_auto
from transformers.utils import TransformersKwargs, can_return_tuple
from typing_extensions import Unpack

from .configuration_image import ResidualImageConfig
from .initialization import BareParameters
from .modeling_residual import with_logits
from .modeling_single_stack import ResidualForSequenceClassification
from .resnet import ResidualResNet
from .stacks import ResidualEncoder, ResidualPreTrainedModel


class PatchEmbedding(BareParameters):
    """One vector for each patch, after a learned one if `classifier_pooling` is "first"."""

    def __init__(self, config: ResidualImageConfig):
        super().__init__()
        size, self.image_size = config.patch_size, config.image_size
        self.projection = nn.Conv2d(config.num_channels, config.d_model, kernel_size=size, stride=size)
        pools_first = config.classifier_pooling == "first"
        self.token = nn.Parameter(0.02 * torch.randn(config.d_model)) if pools_first else None

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to (batch, positions, d_model)."""
        if pixel_values.shape[-2:] != (self.image_size, self.image_size):
            height, width = pixel_values.shape[-2:]
            raise ValueError(f"images of {height} x {width} given, must be {self.image_size} x {self.image_size}")
        patches = self.projection(pixel_values.to(self.projection.weight.dtype)).flatten(2).transpose(1, 2)
        if self.token is None:
            return patches
        return torch.cat([self.token.to(patches.dtype).expand(len(patches), 1, -1), patches], dim=1)


class ResidualViT(ResidualEncoder):
    """The encoder on patches of an image, with learned positions by default."""

    config: ResidualImageConfig
    main_input_name = "pixel_values"

    def build_embeddings(self, config: ResidualImageConfig, scale: float) -> nn.Module:
        return PatchEmbedding(config)

    def forward(self, pixel_values: Tensor, **kwargs: Unpack[TransformersKwargs]) -> BaseModelOutput:
        """Map images (batch, channels, height, width) to states (batch, positions, d_model)."""
        return super().forward(inputs_embeds=self.embed_tokens(pixel_values), **kwargs)


class OfImages(ResidualPreTrainedModel):
    """Common part of the models."""

    config: ResidualImageConfig
    config_class = ResidualImageConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    @property
    def dummy_inputs(self) -> dict[str, Any]:
        size = (2, self.config.num_channels, self.config.image_size, self.config.image_size)
        return {"pixel_values": torch.zeros(size, device=self.device)}


class ResidualImageModel(OfImages):
    """A ResNet or a ViT without classifier."""

    def __init__(self, config: ResidualImageConfig):
        super().__init__(config)
        self.encoder = ResidualResNet(config) if config.is_resnet else ResidualViT(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    @can_return_tuple
    def forward(self, pixel_values: Tensor, **kwargs: Unpack[TransformersKwargs]) -> BaseModelOutput:
        """Map images (batch, channels, height, width) to states (batch, positions, d_model)."""
        shape, channels = tuple(pixel_values.shape), self.config.num_channels
        if len(shape) != 4 or shape[1] != channels:
            raise ValueError(f"pixel_values of shape {shape} given, must be (batch, {channels}, height, width)")
        return self.encoder(pixel_values, **kwargs)


class ResidualForImageClassification(OfImages, ResidualForSequenceClassification):
    """A ResNet or a ViT and a linear map of its pooled states to classes."""

    Model = ResidualImageModel

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **kwargs: Unpack[TransformersKwargs]
    ) -> ImageClassifierOutput:
        """Compute logits (batch, num_labels) of images (batch, channels, height, width), and the loss of `labels`."""
        outputs = self.model(pixel_values, **kwargs)
        loss, logits = self.classify(outputs.last_hidden_state, None, labels)
        return with_logits(ImageClassifierOutput, loss, logits, outputs)


modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.setdefault(
    ResidualImageConfig.model_type, ResidualForImageClassification.__name__
)
