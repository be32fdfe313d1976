# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of models that classify images."""

import copy
from typing import Any

from huggingface_hub.dataclasses import strict

from .configuration_residual import ResidualConfig
from .norms import NORM_TYPES
from .options import option
from .stack_config import StackConfig

STAGES = 3
OTHER_INPUTS = (  # fields of text and speech
    *("adaptive_cutoffs", "adaptive_factor", "adaptive_softmax_dropout", "conv_channels", "conv_kernel_sizes"),
    *("final_norm", "fix_norm", "language_tags", "max_source_positions", "num_mel_bins", "output_bias"),
    *("placeholders", "position_counting", "position_padding", "reads_capitals", "rope_theta", "scale_embedding"),
    *("share_encoder_decoder_embeddings", "source_lang", "target_lang", "term_tags", "vocab_size"),
)
OF_TRANSFORMERS = (  # fields that a ResNet does not have
    *("activation_function", "attention_dropout", "classifier_pooling", "embedding_norm", "encoder_ffn_dim"),
    *("encoder_init_style", "encoder_layerdrop", "encoder_word_dropout", "gated_ffn", "init_style"),
    *("max_position_embeddings", "patch_size"),
)


@strict
class ResidualImageConfig(ResidualConfig):
    r"""Configuration of a residual network or a vision Transformer whose connections `ln_mode` selects.

    Fields not listed here are those of `ResidualConfig`, without those of text and of a decoder. A ResNet has those of
    connections and dropout only: its branches have batch norm, ReLU and the initial weights of He et al. 2015.

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
        if self.is_resnet and self.depth is None:
            self.depth = 20
        for name, value in self._of_other_fields().items():
            if self.is_default(name):
                setattr(self, name, value)
        super().__post_init__(**kwargs)

    def _of_other_fields(self) -> dict[str, Any]:
        """The fields whose values follow from others."""
        if self.is_resnet and self.depth is not None:
            blocks = (self.depth - 2) // 2
            return {"encoder_layers": blocks, "encoder_attention_heads": 1, "position_embedding_type": "none"}
        patches = (self.image_size // max(self.patch_size, 1)) ** 2
        return {"max_position_embeddings": patches + (self.classifier_pooling == "first")}

    def _record_defaults(self, field: str) -> None:
        if not (self.is_resnet and field == "init_style"):
            super()._record_defaults(field)

    @property
    def is_resnet(self) -> bool:
        return self.architecture == "preact_resnet"

    def sublayer_kinds(self, stack: str) -> tuple[str, ...]:
        """A block of a ResNet is one sub-layer of two maps with an activation between them, as a feed-forward is."""
        return ("feed_forward",) if self.is_resnet else super().sublayer_kinds(stack)

    def of_stage(self, stage: int) -> StackConfig:
        """The settings with which the connections and branches of a stage of a ResNet, 0 to 2, are built."""
        config = copy.copy(self)
        config.d_model = config.encoder_ffn_dim = self.d_model // 2 ** (STAGES - 1 - stage)
        return config.of("encoder")

    def validate_residual(self) -> None:
        if not self.__dict__.get("_awaits_mode"):
            (self._validate_resnet if self.is_resnet else self._validate_vit)()
            for name, value in self._of_other_fields().items():
                if getattr(self, name) != value:
                    raise ValueError(f"{name} must be {value!r} in {self.described}, not {getattr(self, name)!r}")
        super().validate_residual()

    def _validate_resnet(self) -> None:
        if self.depth is None or self.depth < 8 or (self.depth - 2) % (2 * STAGES):
            raise ValueError(f"depth must be 6n + 2 (20, 32, 44, 56, 110 ...), not {self.depth}")
        if self.d_model % 2 ** (STAGES - 1):
            raise ValueError(f"d_model must be a multiple of 4 for three stages, not {self.d_model}")
        mode = self.mode_of("encoder")
        if mode.attention_implementations is not None:
            raise ValueError(f"ln_mode {mode.name!r} passes on scores of attention, which a ResNet does not have")

    def _validate_vit(self) -> None:
        if self.depth is not None:
            raise ValueError(f"depth: {self.depth} given, but a 'vit' has encoder_layers")
        if self.image_size % max(self.patch_size, 1):
            raise ValueError(f"patch_size must divide image_size {self.image_size}, not {self.patch_size}")

    @property
    def described(self) -> str:
        if self.is_resnet:
            return f"a ResNet of depth {self.depth}"
        return f"a ViT of image_size {self.image_size} and patch_size {self.patch_size}"

    def absent_fields(self) -> list[str]:
        return [*super().absent_fields(), *OTHER_INPUTS, *(OF_TRANSFORMERS if self.is_resnet else ())]
