# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The configuration of the ResiDual model family."""

# no `from __future__ import annotations`: @strict would not check types that are strings

import copy
import os
from collections.abc import Iterable
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from .catalogue import ResiDual
from .connections import get_ln_mode
from .embeddings import POSITION_COUNTING, POSITION_EMBEDDINGS
from .initialization import INIT_STYLES
from .norms import NORM_TYPES
from .options import from_mapping
from .presets import PRESETS
from .self_contained import write_model_code

RATES = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "encoder_word_dropout",
    "decoder_word_dropout",
    "encoder_layerdrop",
    "decoder_layerdrop",
)
SIZES = (
    "vocab_size",
    "decoder_vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "max_position_embeddings",
)


@strict
class ResidualConfig(PreTrainedConfig):
    r"""Configuration of an encoder-decoder whose residual connections and norms are one word, `ln_mode`.

    The fields are BART's; the defaults are those of the Transformer "base" as fairseq builds it. What is particular:

    Args:
        ln_mode: how every sub-layer joins the residual stream: `"resi_dual"`, `"post_ln"`, `"pre_ln"`, ... or a name
            given to `register_ln_mode`.
        ln_mode_options: options of the mode, see its `Options` dataclass; anything it does not declare is refused.
        encoder_ln_mode, decoder_ln_mode: another mode for one stack. `ln_mode_options` belong to `ln_mode` and do not
            reach a stack with another mode.
        encoder_ln_mode_options, decoder_ln_mode_options: options for one stack, over `ln_mode_options`.
        admin_profile: initial shortcut scales of `"admin"`, one per sub-layer, encoder first; see `profile_admin`.
        norm_type: `"layer_norm"`, `"rms_norm"`, `"scale_norm"` or `"ada_norm"`; None is the default of the mode.
        init_style: `"fairseq_main"` (as ResiDual was trained), `"fairseq_legacy"`; None is the default of the mode.
        position_embedding_type: `"sinusoidal"` (fairseq's table), `"sinusoidal_marian"`, `"learned"` or `"none"`.
        position_counting: `"real_tokens"` (fairseq: from `pad_token_id + 1`, padding left out), or `"all_tokens"`
            (Transformers' BART and Marian: from 0, padding included, so that left padding changes the result).
        max_position_embeddings: longest sentence, in tokens.
        embedding_norm: a norm on the sum of token and position embeddings, before dropout: fairseq's
            `--layernorm-embedding`, in every BART.
        fix_norm: token embeddings have length 1 (before `scale_embedding`), as input and as output projection. Nguyen
            & Salazar 2019, Transformers without Tears; their code has `output_bias` beside it.
        output_bias: a learned bias on the logits.
        encoder_word_dropout, decoder_word_dropout: share of the tokens whose embeddings are zeroed in training, see
            `drop_words`; 0.1 in the recipe of B2T's deep models.
        share_encoder_decoder_embeddings: one table for source and target. If False the decoder has its own, of
            `decoder_vocab_size` rows (None: as many as `vocab_size`).
        tie_word_embeddings: the output projection is the table of the decoder.
        source_lang, target_lang: languages of the model, for pipelines and cards.
        language_tags: in a model of several languages the tag of the target, such as `<2de>`, begins the `"source"` or
            the `"target"`.

    Raises `huggingface_hub.errors.StrictDataclassError` (`ValueError` for an unknown mode) that names the field, its
    value and what is allowed.
    """

    model_type = "residual"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 32000
    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    ln_mode: str | None = ResiDual.name
    encoder_ln_mode: str | None = None
    decoder_ln_mode: str | None = None
    ln_mode_options: dict | None = None
    encoder_ln_mode_options: dict | None = None
    decoder_ln_mode_options: dict | None = None
    admin_profile: list[float] | None = None
    norm_type: str | None = None
    init_style: str | None = None
    layer_norm_eps: float = 1e-5
    activation_function: str = "relu"
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    encoder_word_dropout: float | int = 0.0
    decoder_word_dropout: float | int = 0.0
    encoder_layerdrop: float | int = 0.0
    decoder_layerdrop: float | int = 0.0
    position_embedding_type: str = "sinusoidal"
    position_counting: str = "real_tokens"
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    embedding_norm: bool = False
    fix_norm: bool = False
    output_bias: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    bos_token_id: int | None = 0
    pad_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 2
    source_lang: str | None = None
    target_lang: str | None = None
    language_tags: str | None = None

    def __post_init__(self, **kwargs: Any):
        if not type(self).__module__.startswith("transformers_modules."):
            for copies in ("auto_map", "custom_pipelines"):  # those of the installed package are registered
                kwargs.pop(copies, None)
        if self.ln_mode is not None:
            mode = get_ln_mode(self.ln_mode)
            self.norm_type = self.norm_type or mode.default_norm_type
            self.init_style = self.init_style or mode.default_init_style
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        super().__post_init__(**kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "vocab_size" and self.share_encoder_decoder_embeddings:
            super().__setattr__("decoder_vocab_size", value)  # one vocabulary has one size, also after a resize

    def get_text_config(self, *args: Any, **kwargs: Any) -> PreTrainedConfig:
        """What `generate` asks for; its `vocab_size` is that of the target, whose tokens are generated."""
        config = super().get_text_config(*args, **kwargs)
        if config is not self or self.decoder_vocab_size == self.vocab_size:
            return config
        config = copy.copy(self)
        config.vocab_size = self.decoder_vocab_size
        return config

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save, with the code of the model beside it: the folder loads where residual_hf is not installed."""
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
        self.write_code(save_directory, [(self.source_lang, self.target_lang)])

    def write_code(self, folder: str | os.PathLike, languages: Iterable[tuple[str | None, str | None]]) -> None:
        """Put the model code into a folder with a `config.json`, see `self_contained.py`."""
        from .modeling_residual import ResidualForConditionalGeneration, ResidualModel
        from .pipeline_translation import TranslationPipeline

        classes = {
            "AutoConfig": ResidualConfig,
            "AutoModel": ResidualModel,
            "AutoModelForSeq2SeqLM": ResidualForConditionalGeneration,
        }
        modes = dict.fromkeys(get_ln_mode(self.stack_ln_mode(stack)) for stack in ("encoder", "decoder"))
        write_model_code(folder, classes, TranslationPipeline, modes, languages)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "ResidualConfig":
        """A configuration of a paper by name, with some fields replaced.

        Raises `ValueError` with the list of presets for an unknown name.
        """
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}. Known: {', '.join(sorted(PRESETS))}.")
        return cls(**{**PRESETS[name], **overrides})

    def stack_ln_mode(self, stack: str) -> str:
        """The mode of the `"encoder"` or the `"decoder"`."""
        own = self.encoder_ln_mode if stack == "encoder" else self.decoder_ln_mode
        return own or self.ln_mode

    def ln_options(self, stack: str) -> Any:
        """The checked `Options` of the mode of a stack."""
        mode = self.stack_ln_mode(stack)
        own = self.encoder_ln_mode_options if stack == "encoder" else self.decoder_ln_mode_options
        shared = self.ln_mode_options if mode == self.ln_mode else None
        options = {**(shared or {}), **(own or {})}
        return from_mapping(get_ln_mode(mode).Options, options, f"options of ln_mode {mode!r} ({stack}): ")

    def validate_residual(self) -> None:
        """Check every field of this class against what is allowed; run at construction, saving and model creation."""
        for name in SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in RATES:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if not self.layer_norm_eps > 0:
            raise ValueError(f"layer_norm_eps must be above 0, not {self.layer_norm_eps}")
        for name in ("encoder_attention_heads", "decoder_attention_heads"):
            if self.d_model % getattr(self, name):
                raise ValueError(f"{name} must divide d_model, but {self.d_model} % {getattr(self, name)} is not 0")
        if self.position_embedding_type.startswith("sinusoidal") and self.d_model % 2:
            raise ValueError(f"d_model must be even for sinusoidal positions, not {self.d_model}")
        for name in ("ln_mode", "encoder_ln_mode", "decoder_ln_mode"):
            if name == "ln_mode" or getattr(self, name) is not None:
                get_ln_mode(getattr(self, name))
        self._validate_choices()
        self._validate_vocabularies()
        if self.ln_mode_options and self.ln_mode not in (self.stack_ln_mode("encoder"), self.stack_ln_mode("decoder")):
            raise ValueError(f"ln_mode_options are for ln_mode {self.ln_mode!r}, which no stack uses")
        for stack in ("encoder", "decoder"):
            self.ln_options(stack)
        sublayers = 2 * self.encoder_layers + 3 * self.decoder_layers
        if self.admin_profile and len(self.admin_profile) != sublayers:
            raise ValueError(f"admin_profile has {len(self.admin_profile)} values for {sublayers} sub-layers")

    def _validate_choices(self) -> None:
        allowed = {
            "norm_type": NORM_TYPES,
            "init_style": INIT_STYLES,
            "position_embedding_type": POSITION_EMBEDDINGS,
            "position_counting": POSITION_COUNTING,
            "language_tags": (None, "source", "target"),
            "activation_function": ACT2FN,
        }
        for name, choices in allowed.items():
            if getattr(self, name) not in choices:
                known = ", ".join(sorted(map(str, choices)))
                raise ValueError(f"{name} cannot be {getattr(self, name)!r}. Allowed: {known}.")

    def _validate_vocabularies(self) -> None:
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"decoder_vocab_size ({self.decoder_vocab_size}) differs from vocab_size ({self.vocab_size}): "
                "separate vocabularies need share_encoder_decoder_embeddings=False"
            )
        for name in ("pad_token_id", "decoder_start_token_id"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be set: an encoder-decoder needs it")
        size = min(self.vocab_size, self.decoder_vocab_size)
        for name in ("pad_token_id", "bos_token_id", "decoder_start_token_id", "eos_token_id"):
            value = getattr(self, name)
            for token in value if isinstance(value, list) else [value]:
                if token is not None and not 0 <= token < size:
                    raise ValueError(f"{name} {token} lies outside the vocabulary of {size} tokens")


__all__ = ["ResidualConfig"]
