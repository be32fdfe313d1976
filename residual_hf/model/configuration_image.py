# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of models that classify images."""

# no `from __future__ import annotations`: @strict does not check annotations that are strings

import copy
from typing import Any

from huggingface_hub.dataclasses import strict

from .configuration_residual import ResidualConfig
from .norms import NORM_TYPES
from .options import option

STAGES = 3
OTHER_INPUTS = (  # fields of text and speech
    "adaptive_cutoffs",
    "adaptive_factor",
    "adaptive_softmax_dropout",
    "conv_channels",
    "conv_kernel_sizes",
    "final_norm",
    "fix_norm",
    "language_tags",
    "max_source_positions",
    "num_mel_bins",
    "output_bias",
    "placeholders",
    "position_counting",
    "scale_embedding",
    "share_encoder_decoder_embeddings",
    "source_lang",
    "target_lang",
    "term_tags",
    "vocab_size",
)


@strict
class ResidualImageConfig(ResidualConfig):
    r"""Configuration of a residual network or a vision Transformer whose connections `ln_mode` selects.

    Fields not listed here are those of `ResidualConfig`, without those of text and of a decoder.

    Args:
        architecture: `"preact_resnet"`, the pre-activation ResNet for CIFAR (He et al. 2016, Identity Mappings in Deep
            Residual Networks), or `"vit"`, patches in front of the encoder (Dosovitskiy et al. 2021).
        depth: of a ResNet, 6n + 2 for three stages of n blocks; sets `encoder_layers` to the number of blocks.
        d_model: width; of a ResNet that of the last stage, with half and a quarter in the stages before.
        image_size, patch_size: height and width of the images and patches of a ViT. A ResNet takes images of any size.
        num_channels: of the images.
        norm_type: also `"batch_norm"`, over all positions of all images.
        classifier_pooling: the `"mean"` of all positions, or the `"first"`, a token in front of the patches.
    """

    model_type = "residual_image"

    architecture: str = option("preact_resnet", choices=("preact_resnet", "vit"))
    depth: int | None = None
    d_model: int = option(64, minimum=4)
    image_size: int = option(32, minimum=1)
    patch_size: int = option(4, minimum=1)
    num_channels: int = option(3, minimum=1)
    norm_type: str | None = option(None, choices=(None, *NORM_TYPES))
    dropout: float | int = option(0.0, minimum=0, below=1, may_change=True)
    position_embedding_type: str = option("learned", choices=("learned", "sinusoidal", "sinusoidal_marian", "none"))
    position_counting: str = "all_tokens"
    is_encoder_only: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.is_resnet:
            self.depth = 20 if self.depth is None else self.depth
            self.encoder_layers, self.encoder_attention_heads = (self.depth - 2) // 2, 1
            self.position_embedding_type = "none"
        else:
            has_token = self.classifier_pooling == "first"
            self.max_position_embeddings = (self.image_size // self.patch_size) ** 2 + has_token
        super().__post_init__(**kwargs)

    @property
    def is_resnet(self) -> bool:
        return self.architecture == "preact_resnet"

    def sublayer_kinds(self, stack: str) -> tuple[str, ...]:
        """A block of a ResNet is one sub-layer of two maps with an activation between them, as a feed-forward is."""
        return ("feed_forward",) if self.is_resnet else super().sublayer_kinds(stack)

    def of_stage(self, stage: int) -> "ResidualImageConfig":
        """The config that the connections and branches of a stage of a ResNet, 0 to 2, are built with."""
        config = copy.copy(self)
        config.d_model = config.encoder_ffn_dim = self.d_model // 2 ** (STAGES - 1 - stage)
        return config

    def validate_residual(self) -> None:
        """As in the base class."""
        if not self.__dict__.get("_awaits_mode"):
            (self._validate_resnet if self.is_resnet else self._validate_vit)()
        super().validate_residual()

    def _validate_resnet(self) -> None:
        if self.depth is None or self.depth < 8 or (self.depth - 2) % (2 * STAGES):
            raise ValueError(f"depth must be 6n + 2 (20, 32, 44, 56, 110 ...), not {self.depth}")
        if self.d_model % 2 ** (STAGES - 1):
            raise ValueError(f"d_model must be a multiple of 4 for three stages, not {self.d_model}")
        if self.classifier_pooling != "mean":
            raise ValueError(f"classifier_pooling must be 'mean' in a ResNet, not {self.classifier_pooling!r}")
        if self.encoder_layerdrop:
            raise ValueError(f"encoder_layerdrop must be 0 in a ResNet, not {self.encoder_layerdrop}")
        mode = self.mode("encoder")
        if mode.attention_implementations is not None:
            raise ValueError(f"ln_mode {mode.name!r} passes on scores of attention, which a ResNet does not have")

    def _validate_vit(self) -> None:
        if self.depth is not None:
            raise ValueError(f"depth: {self.depth} given, but a 'vit' has encoder_layers")
        if self.image_size % self.patch_size:
            raise ValueError(f"patch_size must divide image_size {self.image_size}, not {self.patch_size}")

    def _fields_of_absent_stack(self) -> list[str]:
        return [*super()._fields_of_absent_stack(), *OTHER_INPUTS]


__all__ = ["ResidualImageConfig"]
