# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Configuration of the model family."""

import copy
import difflib
import math
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.utils import logging

from .branch_warmup import BranchWarmupSettings
from .catalogue import ResiDual
from .configuration_checks import check_config
from .connections import STACKS, SUBLAYERS, get_ln_mode, is_registered
from .embeddings import POSITION_COUNTING, POSITION_EMBEDDINGS
from .initialization import INIT_STYLES
from .norms import TEXT_NORM_TYPES
from .options import from_mapping, option, unknown_choice, unknown_name
from .presets import PRESETS
from .self_contained import code_fields, write_model_code
from .stack_config import StackConfig

logger = logging.get_logger(__name__)
ELSEWHERE = {
    **dict.fromkeys(("layers", "num_layers", "n_layers", "n_layer", "num_encoder_layers"), "encoder_layers"),
    **dict.fromkeys(("heads", "num_heads", "n_heads", "n_head", "nhead", "encoder_heads"), "encoder_attention_heads"),
    **dict.fromkeys(("ffn_dim", "ff_size", "d_ff", "intermediate_size", "dim_feedforward"), "encoder_ffn_dim"),
    **dict.fromkeys(("dropout_rate", "hidden_dropout", "hidden_dropout_prob", "resid_pdrop"), "dropout"),
    **dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim", "embed_dim", "n_embd"), "d_model"),
    **dict.fromkeys(("activation", "activation_fn"), "activation_function"),
    **dict.fromkeys(("max_positions", "max_seq_len", "max_source_positions"), "max_position_embeddings"),
    "num_decoder_layers": "decoder_layers",
    "encoder_ffn_embed_dim": "encoder_ffn_dim",
    "decoder_ffn_embed_dim": "decoder_ffn_dim",
    "relu_dropout": "activation_dropout",
    "share_all_embeddings": "share_encoder_decoder_embeddings",
    **dict.fromkeys(("arch", "architecture"), "preset"),
}
"""Names of other programs for fields, where the field of the closest name is another."""
LORA_TARGETS = ["q_proj", "v_proj"]  # as PEFT adapts BART and Marian

if TYPE_CHECKING:
    Required = Any  # `validate_residual` and `__post_init__` leave no None
else:
    Required = int | None


def _of_first_stack(size: str) -> Any:
    """The property of a config that Transformers reads as a size of the model."""

    def read(config: "ResidualConfig") -> int:
        return cast(int, getattr(config, f"{config.stacks[0]}_{size}"))

    def write(config: "ResidualConfig", value: int) -> None:
        setattr(config, f"{config.stacks[0]}_{size}", value)

    return property(read, write)


@strict
class ResidualConfig(PreTrainedConfig):
    r"""Configuration of an encoder-decoder, or of one stack alone, whose residual connections `ln_mode` selects.

    Fields not listed here are those of BART. Defaults are those of the Transformer "base" in fairseq.

    `num_hidden_layers`, `num_attention_heads` and `intermediate_size` name the sizes of the encoder, or of the decoder
    if it is alone.

    Args:
        is_decoder_only: the model is a decoder without cross-attention, for `ResidualForCausalLM`. All fields of the
            encoder keep their defaults.
        is_encoder_only: the model is an encoder, for `ResidualForMaskedLM` and `ResidualForSequenceClassification`.
            All fields of the decoder keep their defaults.
        ln_mode: residual connection of every sub-layer: `"resi_dual"`, `"post_ln"`, `"pre_ln"`, ... or a name
            registered with `register_ln_mode`.
        ln_mode_options: options of the mode, as declared by its `Options` dataclass.
        encoder_ln_mode, decoder_ln_mode: mode of one stack, instead of `ln_mode`. `ln_mode_options` do not apply to a
            stack with another mode.
        encoder_ln_mode_options, decoder_ln_mode_options: options of one stack, which override `ln_mode_options`.
        admin_profile: initial shortcut scales of `"admin"`, one per sub-layer, encoder first; see `profile_admin`.
        norm_type: `"layer_norm"`, `"rms_norm"`, `"scale_norm"`, `"ada_norm"`, or a function in the place of a norm,
            `"dynamic_tanh"` (DyT) or `"dynamic_erf"` (Derf). By default that of the mode with which a config is made.
        encoder_norm_type, decoder_norm_type: norm of one stack, instead of `norm_type`.
        ada_norm_scale: the constant C of `"ada_norm"`: 2 in the authors' code, 1 in its README.
        init_style: distributions of the initial weights, such as `"fairseq_main"` (ResiDual) or `"fairseq_legacy"`
            (Admin). By default that of the mode with which a config is made.
        encoder_init_style, decoder_init_style: style of one stack, instead of `init_style`.
        branch_warmup: factor on all branches that grows from 0 to 1 in training, see `BranchWarmupSettings`:
            `{"schedule": "linear", "updates": 1000}`. None: that of the mode, which only `"branch_norm"` has.
        position_embedding_type: `"sinusoidal"` (fairseq's table), `"sinusoidal_marian"`, `"learned"`, `"rotary"` (in
            a stack alone, with angles of base `rope_theta`), `"relative"` (T5's biases of the scores of
            self-attention, see `RelativeBias`; decoded by Transformers, without kernels) or `"none"`.
        position_counting: `"real_tokens"` (fairseq: behind `position_padding`, without padding; tables of positions
            have as many rows more) or `"all_tokens"`
            (Transformers' BART and Marian: from 0, with padding, so that left padding changes the result).
        position_padding: the position of padding under `"real_tokens"`. None: `pad_token_id` as it is when the config
            is made; another one later, such as that which `Trainer` takes from a tokenizer, moves no position.
        max_position_embeddings: maximum length of source and target in tokens.
        conv_channels: output channels of the inner convolution in front of the encoder of a speech model, 1,024 in
            fairseq; see `modeling_speech.py`. None: the encoder reads tokens.
        conv_kernel_sizes: kernel size of each convolution, an odd number. Each halves the number of frames.
        num_mel_bins: values of a frame.
        max_source_positions: maximum length of a recording in frames.
        embedding_norm: apply a norm to the sum of token and position embeddings, before dropout (fairseq's
            `--layernorm-embedding`, BART).
        fix_norm: normalize token embeddings to length 1 (before `scale_embedding`), as input and as output projection
            (Nguyen & Salazar 2019, Transformers without Tears, whose code also has `output_bias`).
        output_bias: add a learned bias to the logits.
        encoder_word_dropout, decoder_word_dropout: share of tokens whose embeddings are zeroed in training, see
            `drop_words`. The recipe of B2T's deep models uses 0.1.
        share_encoder_decoder_embeddings: use one table for source and target. If False, the decoder has its own table
            of `decoder_vocab_size` rows (default `vocab_size`).
        tie_word_embeddings: use the decoder's table as output projection.
        gated_ffn: the activation gates a second linear map; with `activation_function="silu"` this is SwiGLU. In a
            stack alone.
        adaptive_cutoffs: first tokens of the rarer bands of an adaptive input and softmax, see `adaptive.py`. In a
            decoder alone.
        adaptive_factor: factor by which the vectors of each band are smaller than those of the previous one.
        adaptive_softmax_dropout: dropout within the rarer bands of the softmax.
        final_norm: the norm at the end of the stack, in modes that have one; False, in a decoder alone, is fairseq's
            `--no-decoder-final-norm`.
        classifier_pooling: what `ResidualForSequenceClassification` classifies: the `"mean"` of the states of all
            tokens, or the state of the `"first"` one.
        source_lang, target_lang: languages of the model, for pipelines and model cards.
        language_tags: `"source"` or `"target"` if the tag of the target language, such as `<2de>`, starts the source
            or the target text of a multilingual model.
        placeholders: source and target have tokens such as `<ph1>` in the place of placeholders, tags, addresses and
            numbers, see `placeholders.py`.
        term_tags: the source may have translations of its terms: `<term> dog <trans> Hund </term>`.
        reads_capitals: read a line in capitals as it is; by default it is read in lower case, and its translation is
            written in capitals.

    Raises `huggingface_hub.errors.StrictDataclassError` (`ValueError` for an unknown mode or a misspelled field)
    naming the field, its value and the allowed values.
    """

    model_type = "residual"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    attribute_map = {"hidden_size": "d_model"}

    vocab_size: int = option(32000, minimum=1)
    decoder_vocab_size: Required = option(None, minimum=1)
    d_model: int = option(512, minimum=1)
    encoder_layers: int = option(6, minimum=1, maximum=10_000)
    decoder_layers: int = option(6, minimum=1, maximum=10_000)
    encoder_ffn_dim: int = option(2048, minimum=1)
    decoder_ffn_dim: int = option(2048, minimum=1)
    encoder_attention_heads: int = option(8, minimum=1)
    decoder_attention_heads: int = option(8, minimum=1)
    ln_mode: str | None = ResiDual.name
    encoder_ln_mode: str | None = None
    decoder_ln_mode: str | None = None
    ln_mode_options: dict | None = None
    encoder_ln_mode_options: dict | None = None
    decoder_ln_mode_options: dict | None = None
    admin_profile: list[float] | None = None
    norm_type: str | None = option(None, choices=(None, *TEXT_NORM_TYPES))
    encoder_norm_type: str | None = option(None, choices=(None, *TEXT_NORM_TYPES))
    decoder_norm_type: str | None = option(None, choices=(None, *TEXT_NORM_TYPES))
    ada_norm_scale: float | int = option(2.0, above=0, below=math.inf)
    branch_warmup: dict | None = None
    init_style: str | None = option(None, choices=(None, *INIT_STYLES))
    encoder_init_style: str | None = option(None, choices=(None, *INIT_STYLES))
    decoder_init_style: str | None = option(None, choices=(None, *INIT_STYLES))
    layer_norm_eps: float | int = option(1e-5, above=0, below=math.inf)
    activation_function: str = "relu"
    dropout: float | int = option(0.1, minimum=0, below=1, may_change=True)
    attention_dropout: float | int = option(0.0, minimum=0, below=1, may_change=True)
    activation_dropout: float | int = option(0.0, minimum=0, below=1, may_change=True)
    encoder_word_dropout: float | int = option(0.0, minimum=0, below=1, may_change=True)
    decoder_word_dropout: float | int = option(0.0, minimum=0, below=1, may_change=True)
    encoder_layerdrop: float | int = option(0.0, minimum=0, below=1, may_change=True)
    decoder_layerdrop: float | int = option(0.0, minimum=0, below=1, may_change=True)
    position_embedding_type: str = option("sinusoidal", choices=POSITION_EMBEDDINGS)
    position_counting: str = option("real_tokens", choices=POSITION_COUNTING)
    position_padding: int | None = None
    max_position_embeddings: int = option(1024, minimum=1, maximum=2**20)
    conv_channels: int | None = None
    conv_kernel_sizes: list[int] | tuple[int, ...] = (5, 5)
    num_mel_bins: int = option(80, minimum=1, maximum=2**20)
    max_source_positions: int = option(6000, minimum=1, maximum=2**20)
    scale_embedding: bool = True
    embedding_norm: bool = False
    fix_norm: bool = False
    output_bias: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    rope_theta: float | int = option(10000.0, above=0, below=math.inf)
    gated_ffn: bool = False
    adaptive_cutoffs: list[int] | None = None
    adaptive_factor: float | int = 4
    adaptive_softmax_dropout: float | int = option(0.0, minimum=0, below=1, may_change=True)
    final_norm: bool = True
    classifier_pooling: str = option("mean", choices=("mean", "first"))
    use_cache: bool = True
    is_encoder_decoder: bool = True
    is_decoder_only: bool = False
    is_encoder_only: bool = False
    bos_token_id: int | None = 0
    pad_token_id: Required = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: Required = 2
    source_lang: str | None = None
    target_lang: str | None = None
    language_tags: str | None = option(None, choices=(None, "source", "target"))
    placeholders: bool = False
    term_tags: bool = False
    reads_capitals: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        has_code = "auto_map" in kwargs  # of a checkpoint, which may have the mode
        if not type(self).__module__.startswith("transformers_modules."):
            for remote_code in ("auto_map", "custom_pipelines"):  # the classes of the installed package are registered
                kwargs.pop(remote_code, None)
        if not self.is_encoder_decoder and len(self.stacks) == 2:
            raise ValueError("is_encoder_decoder is False: set is_decoder_only or is_encoder_only instead")
        if len(self.stacks) == 1:
            self.is_encoder_decoder, self.decoder_start_token_id = False, None
            heads = f"{self.stacks[0]}_attention_heads"
            given, own = kwargs.get("num_attention_heads"), getattr(self, heads)
            if given is not None and own not in (given, getattr(type(self), heads)):
                raise ValueError(f"num_attention_heads: {given} given, but {heads} is {own}")
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        if self.position_padding is None and self.position_counting == "real_tokens":
            self.position_padding = self.pad_token_id
        if has_code and not all(is_registered(self._ln_mode(stack)) for stack in self.stacks):
            self._awaits_mode = True
        else:
            if self.ln_mode is not None:
                self._record_defaults("norm_type")
                self._record_defaults("init_style")
            self._refuse_misspelled(kwargs)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Extends `PreTrainedConfig.from_dict` by a warning where an argument gives a saved model another mode."""
        for name in [name for name in kwargs if name.endswith("ln_mode") and kwargs[name] != config_dict.get(name)]:
            logger.warning(
                f"{name}: {kwargs[name]!r} given, but the saved config has {config_dict.get(name)!r}: trained weights "
                "give other outputs with another mode; `residual_hf.conversion.change_ln_mode` keeps them"
            )
        if ignored := [name for name in config_dict if name in ELSEWHERE and not hasattr(cls, name)]:
            logger.warning(f"{', '.join(ignored)}: unknown fields of the saved config, which are ignored")
        return super().from_dict({n: value for n, value in config_dict.items() if n not in ignored}, **kwargs)

    def _refuse_misspelled(self, names: Iterable[str]) -> None:
        """Refuse misspelled fields and options of the modes, which Transformers would keep unused."""
        known = [field.name for field in fields(self)]
        options = [f.name for stack in self.stacks for f in fields(self.mode_of(stack).Options)]
        own = f"{self.stacks[0]}_"
        elsewhere = {name: re.sub("^encoder_", own, field) for name, field in ELSEWHERE.items() if field != "preset"}
        for name in names:
            if name in options:
                raise ValueError(f"{name}: unknown field; did you mean ln_mode_options={{{name!r}: ...}}?")
            close = name in elsewhere or difflib.get_close_matches(name, known, cutoff=0.92)
            if close and not hasattr(self, name):
                raise ValueError(unknown_name(name, known, elsewhere))

    def _record_defaults(self, field: str) -> None:
        """Set a field to the defaults of the modes: `field` if the stacks agree, otherwise one field per stack."""
        defaults = [getattr(self.mode_of(stack), f"default_{field}") for stack in self.stacks]
        if getattr(self, field) is None and len(set(defaults)) == 1:
            setattr(self, field, defaults[0])
        elif getattr(self, field) is None:
            for stack, default in zip(self.stacks, defaults, strict=True):
                own = f"{stack}_{field}"
                setattr(self, own, getattr(self, own) or default)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "vocab_size" and self.share_encoder_decoder_embeddings:
            super().__setattr__("decoder_vocab_size", value)  # one vocabulary has one size, also after a resize

    def get_text_config(self, *args: Any, **kwargs: Any) -> PreTrainedConfig:
        """The config that `generate` reads, whose `vocab_size` is that of the target."""
        config = super().get_text_config(*args, **kwargs)
        if config is not self or self.decoder_vocab_size == self.vocab_size:
            return config
        config = copy.copy(self)
        config.vocab_size = self.decoder_vocab_size
        return config

    @property
    def auto_map(self) -> dict[str, str]:
        """The classes of the code of a saved model by Auto class, which TRL and others look up; not a field."""
        if "auto_map" not in vars(self) and not self.name_or_path:
            raise AttributeError("auto_map: this config is of no saved model")
        return cast(dict[str, str], vars(self).get("auto_map") or code_fields(self)["auto_map"])

    @auto_map.setter
    def auto_map(self, value: dict[str, str]) -> None:
        self.__dict__["auto_map"] = value  # of a config in the code of a checkpoint

    def to_dict(self) -> dict[str, Any]:
        """All fields; for a stack alone also `num_attention_heads`, which PEFT reads here.

        PEFT also looks for the targets of `LoraConfig()` now, in a table that it has when it has been imported.
        """
        if constants := sys.modules.get("peft.utils.constants"):
            constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault(self.model_type, LORA_TARGETS)
        heads = {"num_attention_heads": self.num_attention_heads} if len(self.stacks) == 1 else {}
        return super().to_dict() | heads

    def to_diff_dict(self) -> dict[str, Any]:
        """The saved fields: without those of a stack that the model does not have, and without `use_cache`, which
        `Trainer` sets to False for training."""
        left_out = {"use_cache", "num_attention_heads", "position_padding", *self.absent_fields()}
        saved = {name: value for name, value in super().to_diff_dict().items() if name not in left_out}
        if self.position_padding not in (None, self.pad_token_id):
            saved["position_padding"] = self.position_padding
        return saved

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save the config together with the model code, so that the folder loads without residual_hf.

        `save_pretrained` of a model calls this method. See `self_contained.py`.
        """
        super().save_pretrained(save_directory)
        write_model_code(save_directory, self)
        if push_to_hub:
            self.push_to_hub(kwargs.pop("repo_id", os.path.basename(save_directory)), **kwargs)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "ResidualConfig":
        """The configuration of a paper by name, with `overrides` for single fields.

        Raises `ValueError` with the list of presets for an unknown name.
        """
        if name not in PRESETS:
            raise ValueError(unknown_choice("preset", name, PRESETS))
        return cls(**{**PRESETS[name], **overrides})

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of the model, `"encoder"` and `"decoder"` or one of them."""
        return ("decoder",) if self.is_decoder_only else ("encoder",) if self.is_encoder_only else STACKS

    @property
    def reads_speech(self) -> bool:
        """Whether the encoder reads frames of speech, not tokens."""
        return self.conv_channels is not None

    @property
    def token_stacks(self) -> tuple[str, ...]:
        """The stacks that read tokens."""
        return self.stacks[-1:] if self.reads_speech else self.stacks

    num_hidden_layers = _of_first_stack("layers")
    num_attention_heads = _of_first_stack("attention_heads")
    intermediate_size = _of_first_stack("ffn_dim")

    def sublayer_kinds(self, stack: str) -> tuple[str, ...]:
        """The sub-layers of each layer, in the order in which they run: a decoder alone has no cross-attention."""
        return SUBLAYERS[stack if self.is_encoder_decoder else "encoder"]

    @property
    def stack_configs(self) -> tuple[StackConfig, ...]:
        """The settings of each stack of the model."""
        return tuple(map(self.of, self.stacks))

    def of(self, stack: str) -> StackConfig:
        """The settings of one stack, `"encoder"` or `"decoder"`.

        Raises `ValueError` for a mode that is not registered, or for options that it does not have.
        """
        values = vars(self)  # Transformers looks in several places for an attribute that is read by its name
        own = {name.removeprefix(f"{stack}_"): values[name] for name in fields_of(stack)}
        mode, positions, warmup = self.mode_of(stack), self.max_position_embeddings, None
        shared = self.ln_mode_options if mode.name == self.ln_mode else None
        options = {**(shared or {}), **(own["ln_mode_options"] or {})}
        if stack not in self.token_stacks:
            positions = -(-self.max_source_positions // 2 ** len(self.conv_kernel_sizes))
        if self.branch_warmup is not None:
            warmup = from_mapping(BranchWarmupSettings, self.branch_warmup, "branch_warmup.")
        return StackConfig(
            model=self,
            stack=stack,
            kinds=self.sublayer_kinds(stack),
            positions=positions,
            mode=mode,
            options=from_mapping(mode.Options, options, f"options of ln_mode {mode.name!r} ({stack}): "),
            norm_type=own["norm_type"] or self.norm_type or mode.default_norm_type,
            init_style=own["init_style"] or self.init_style or mode.default_init_style,
            branch_warmup=warmup or mode.default_branch_warmup,
            **{name: own[name] for name in ("layers", "attention_heads", "ffn_dim", "layerdrop", "word_dropout")},
        )

    def _ln_mode(self, stack: str) -> str:
        return cast(str, getattr(self, f"{stack}_ln_mode") or self.ln_mode)

    def mode_of(self, stack: str) -> Any:
        """The class of the mode of a stack."""
        return get_ln_mode(self._ln_mode(stack))

    def validate_residual(self) -> None:
        """Check all fields of this class. Runs when a config is created or saved and when a model is created.

        A config that is read from a checkpoint with a mode that is not registered yet, whose code the checkpoint may
        have, is checked when its model is created.
        """
        if not self.__dict__.pop("_awaits_mode", False):
            check_config(self)

    def validate_token_ids(self) -> None:
        """Override of Transformers, which copies the config to warn of what `validate_residual` refuses."""

    @property
    def described(self) -> str:
        """The kind of a model of one stack, for messages."""
        return f"a model with is_{self.stacks[0]}_only"

    def is_default(self, name: str) -> bool:
        """Whether a field has the value of its declaration."""
        return bool(getattr(self, name) == type(self).__dataclass_fields__[name].default)

    def absent_fields(self) -> list[str]:
        """The fields that the model does not have."""
        return [name for stack in STACKS if stack not in self.stacks for name in fields_of(stack)]


@cache
def fields_of(stack: str) -> tuple[str, ...]:
    """The fields that only one stack has."""
    names = (f.name for f in fields(ResidualConfig) if f.name.startswith(f"{stack}_"))
    return tuple(name for name in names if name not in ("decoder_vocab_size", "decoder_start_token_id"))
