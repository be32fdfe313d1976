# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Encoder and decoder: embeddings, layers, and the start and end of the residual stream."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs
from typing_extensions import Unpack

from .adaptive import AdaptiveEmbedding
from .branch_warmup import branch_warmups
from .caches import CACHE, accepts_cache, check_runs, self_attention_cache, static_length
from .checksums import of_model, refuse_damage
from .configuration_residual import ResidualConfig
from .embeddings import (
    RelativeBias,
    ScaledEmbedding,
    build_positions,
    drop_words,
    first_position,
    position_ids_from_mask,
    positions_padding,
    rotary_positions,
)
from .initialization import INIT_STYLES, init_embedding
from .kernels import Dropout, Projection
from .layers import ResidualAttention, ResidualDecoderLayer, ResidualEncoderLayer
from .length_limits import has_length_rule
from .norms import build_norm
from .profiling import profile_admin
from .self_contained import import_saved_modes, model_code

logger = logging.get_logger(__name__)
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


class ResidualPreTrainedModel(PreTrainedModel):
    """Initialization, weight tying and the capabilities that all models of the family share."""

    config: ResidualConfig
    config_class = ResidualConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ResidualEncoderLayer", "ResidualDecoderLayer", "ResNetLayer"]
    _skip_keys_device_placement = [CACHE]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _code_is_read = False
    needed_stacks: tuple[str, ...] = ()  # those that a config for the class must have; none: any

    def __init__(self, config: ResidualConfig, *args: Any, **kwargs: Any):
        config.validate_residual()
        if self.needed_stacks and config.stacks != self.needed_stacks:
            field = "is_encoder_decoder" if len(self.needed_stacks) == 2 else f"is_{self.needed_stacks[0]}_only"
            raise ValueError(
                f"{type(self).__name__} needs a config with {field}=True, but the model of this one has "
                f"{' and '.join(config.stacks)}"
            )
        super().__init__(config, *args, **kwargs)

    def post_init(self) -> None:
        """Override of Transformers: FSDP looks for each of `_no_split_modules`, so only present layers are listed.

        Gradient checkpointing would count each batch twice in the running means of batch norms, and is refused.
        """
        super().post_init()
        present = {type(module).__name__ for module in self.modules()}
        self._no_split_modules = [name for name in self._no_split_modules if name in present]
        norms = (nn.BatchNorm1d, nn.BatchNorm2d)
        self.supports_gradient_checkpointing = not any(isinstance(module, norms) for module in self.modules())

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Override of Transformers. With `trust_remote_code`, modes in the code of the checkpoint are registered.

        Raises `ValueError` for a folder whose weights or config are not as they were saved.
        """
        name = pretrained_model_name_or_path
        if kwargs.get("trust_remote_code") and name is not None:
            import_saved_modes(name, **{option: kwargs[option] for option in HUB_OPTIONS if option in kwargs})
        loaded = super().from_pretrained(name, *args, **kwargs)
        if name is not None:
            refuse_damage(name, of_model)
        return loaded

    def train(self, mode: bool = True) -> Any:
        """Override of PyTorch; first reads the code for checkpoints, which an upgrade may replace during training."""
        if mode and not self._code_is_read:  # once: `Trainer` calls this at every step
            self._code_is_read = True
            with suppress(OSError):  # `save_pretrained` warns
                model_code(self.config)
        return super().train(mode)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """Override of Transformers; warns of a branch warm-up whose updates nobody has counted, and saves no
        `max_length` that is only the default of Transformers. The config says whether the output is tied."""
        if "lm_head.weight" in self._keys_to_ignore_on_save:
            self.config.tie_word_embeddings = True  # PEFT, which compares it with the encoder's table, says no
        if self.can_generate() and has_length_rule(self.generation_config):
            self.generation_config.max_length = None
        if any(not warmup.updates for warmup in branch_warmups(self)):
            logger.warning("branch_warmup: no update was counted; a trainer needs `BranchWarmupCallback`")
        return super().save_pretrained(*args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Default to the first implementation that a mode or task supports, and refuse those that it does not."""
        modes = {own.mode for own in self.config.stack_configs}
        limits = {f"ln_mode {mode.name!r}": mode.attention_implementations for mode in modes}
        if self.config.position_embedding_type == "relative":
            limits["position_embedding_type 'relative'"] = "sdpa", "eager"
        for what, allowed in limits.items():
            if allowed is not None:
                requested_attention = requested_attention or allowed[0]
                if requested_attention not in allowed:
                    choices = " or ".join(map(repr, sorted(allowed)))
                    raise ValueError(f"{what} needs attn_implementation {choices}, not {requested_attention!r}")
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    @property
    def _keys_to_ignore_on_save(self) -> set[str]:
        """The keys that are tied at the moment, so that a table that was untied later is saved."""
        tied, own = getattr(self, "all_tied_weights_keys", {}), dict(self.named_parameters(remove_duplicate=False))
        return {name for name, source in tied.items() if own.get(name) is own.get(source)}

    @_keys_to_ignore_on_save.setter
    def _keys_to_ignore_on_save(self, value: set[str]) -> None:
        """Ignore the assignment in `post_init`: the getter computes the value."""

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and not hasattr(module, "role") and module.bias is not None:
            init.zeros_(module.bias)  # of the output projection, whose weight may be tied
        if getattr(module, "is_tied", False):
            return
        role: Any = getattr(module, "role", None)
        if isinstance(module, Projection) and role is not None:
            INIT_STYLES[module.init_style].linear(module, role, module.init_gain)
        elif callable(initialize := getattr(module, "init_parameters", None)):
            initialize()
        elif isinstance(module, (nn.Embedding, nn.Linear)):
            table = getattr(module, "table", None)  # None: positions and classes
            init_embedding(module, self._embedding_gain(table), self.config.fix_norm and table is not None)
        elif next(chain(module.parameters(recurse=False), module.buffers(recurse=False)), None) is not None:
            super()._init_weights(module)
        if hasattr(module, "initial_gain"):
            init.constant_(module.weight, module.initial_gain)

    def _embedding_gain(self, table: str | None) -> float:
        """Factor on the initial scale of a token table (encoder, decoder or output), 1 for other tables.

        Each stack's mode decides on its table, and the mode of the last stack on the output projection. A shared table
        has the factor of the encoder's mode, or, if that is 1, of the decoder's.
        """
        if table is None:
            return 1.0
        if table == "output":
            last = self.config.stack_configs[-1]
            return last.mode.embedding_gain(last, table)
        stacks = self.config.token_stacks if self.config.share_encoder_decoder_embeddings else (table,)
        gains = (own.mode.embedding_gain(own, own.stack) for own in map(self.config.of, stacks))
        return next((gain for gain in gains if gain != 1.0), 1.0)

    def _mark_tied_modules(self) -> None:
        """Mark the modules that use the weight of another module, so that they do not initialize it again."""
        for name in self._tied_weights_keys or {}:
            self.get_submodule(name.removesuffix(".weight")).is_tied = True

    def profile_admin(self, batch: Mapping[str, Tensor]) -> list[float]:
        """Initialize Admin from one batch of model inputs, see `profiling.profile_admin`."""
        return profile_admin(self, batch)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Tied parameters {target: source}, by `share_encoder_decoder_embeddings` and `tie_word_embeddings`.

        In Transformers' default rule `tie_word_embeddings=False` also unties encoder and decoder.
        """
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the source table, which may also be the target table and the output projection."""
        if self.config.adaptive_cutoffs and new_num_tokens is not None:
            raise ValueError("the vocabulary of a model with adaptive_cutoffs cannot be resized")
        table = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.vocab_size = table.num_embeddings
        return table

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        ids = torch.tensor([[4, 5, 6, 2], [4, 5, 2, self.config.pad_token_id]], device=self.device)
        inputs = {"input_ids": ids, "attention_mask": ids.ne(self.config.pad_token_id)}
        if self.config.reads_speech:
            inputs = {"input_features": torch.zeros(2, 8, self.config.num_mel_bins, device=self.device)}
        return {**inputs, "decoder_input_ids": ids} if self.config.is_encoder_decoder else inputs


class ResidualStack(ResidualPreTrainedModel):
    """Common part of encoder and decoder: embeddings, layers, and the boundary of the stream."""

    stack: str
    Layer: Any

    def __init__(self, config: ResidualConfig):
        super().__init__(config)
        own = config.of(self.stack)
        self.embed_tokens: Any = self.build_embeddings(config, config.d_model**0.5 if config.scale_embedding else 1.0)
        for table in (m for m in self.embed_tokens.modules() if isinstance(m, nn.Embedding)):
            table.table = self.stack  # type: ignore[assignment]  # for `_init_weights`
        self.embed_positions = build_positions(own)
        if config.position_embedding_type == "relative":
            self.relative_bias = RelativeBias(own.attention_heads, config.d_model, is_causal=self.stack == "decoder")
        self.embed_norm: nn.Module = build_norm(own) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(self.Layer(own, i) for i in range(own.layers))
        self.boundary = own.mode.Boundary(own)
        self.max_positions, self.word_dropout, self.layerdrop = own.positions, own.word_dropout, own.layerdrop
        self.gradient_checkpointing = False
        self.post_init()

    def build_embeddings(self, config: ResidualConfig, scale: float) -> nn.Module:
        """The map from inputs to vectors (batch, length, d_model), times `scale`."""
        if config.adaptive_cutoffs:
            return AdaptiveEmbedding(config, scale)
        rows = config.vocab_size if self.stack == "encoder" else config.decoder_vocab_size
        return ScaledEmbedding(rows, config.d_model, config.pad_token_id, scale, config.fix_norm)

    def embed(self, inputs: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (inputs is None) == (inputs_embeds is None):
            names = self.main_input_name.replace("_", " ")
            raise ValueError(f"the {self.stack} requires exactly one of {names} and inputs_embeds")
        embeddings = self.embed_tokens(inputs) if inputs_embeds is None else inputs_embeds
        if self.training and self.word_dropout > 0.0:
            embeddings = drop_words(embeddings, self.word_dropout, keep_first=self.stack == "decoder")
        return embeddings

    def add_positions(
        self,
        embeddings: Tensor,
        mask: Tensor | None,
        past_length: int | Tensor,
        position_ids: Tensor | None = None,
        static_length: int | None = None,
    ) -> Tensor:
        """Add positions, see `number`, then apply the norm (if any) and dropout.

        `static_length` is the size of a static cache, whose `past_length` is a tensor: to read it, the CPU would wait
        for the GPU, and a compiled step cannot. It is read only if the cache has more places than there are positions.
        """
        if self.embed_positions is not None:
            length, limit = embeddings.shape[1], self.max_positions
            unread = not isinstance(past_length, int) and (
                torch.compiler.is_compiling() or (static_length is not None and static_length <= limit)
            )
            total = length if unread else length + int(past_length)
            if total > limit and not self.has_positions(position_ids):
                raise ValueError(
                    f"the {self.stack} received {total} tokens, but max_position_embeddings is {limit}: shorten the "
                    "input (truncation=True) or the output (max_new_tokens)"
                )
            numbers = self.number(embeddings, mask, past_length, position_ids)
            embeddings = embeddings + self.embed_positions(numbers).to(embeddings)
        return self.dropout(self.embed_norm(embeddings))

    def has_positions(self, position_ids: Tensor | None) -> bool:
        """Whether the given positions are in the table: packed texts, each from 0, may be longer together."""
        if position_ids is None or torch.compiler.is_compiling():
            return position_ids is not None
        return bool(position_ids.max() < self.config.max_position_embeddings)

    def number(
        self, embeddings: Tensor, mask: Tensor | None, past_length: int | Tensor, position_ids: Tensor | None
    ) -> Tensor:
        """The numbers of positions (batch or 1, length): those given, which count from 0, or those of real tokens if a
        mask is given, or those of all tokens."""
        length, padding_idx = embeddings.shape[1], positions_padding(self.config)
        if position_ids is not None:
            return position_ids + first_position(padding_idx)
        if mask is not None and padding_idx is not None:
            return position_ids_from_mask(mask, length, padding_idx, past_length)
        return (torch.arange(length, device=embeddings.device) + past_length + first_position(padding_idx))[None]

    def run_layers(self, hidden_states: Tensor, *memory: Tensor, **kwargs: Any) -> Tensor:
        stream = self.boundary.begin(hidden_states)
        for layer in self.layers:
            if self.training and self.layerdrop > 0.0 and torch.rand([]) < self.layerdrop:
                continue  # LayerDrop, Fan et al. 2019
            stream = layer(*stream, *memory, **kwargs)
        return self.boundary.end(stream)


class ResidualEncoder(ResidualStack):
    """`config.encoder_layers` layers of self-attention and feed-forward."""

    stack = "encoder"
    Layer = ResidualEncoderLayer
    _can_record_outputs = {"hidden_states": ResidualEncoderLayer, "attentions": ResidualAttention}

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Map source tokens (batch, length) to hidden states (batch, length, d_model).

        Without `attention_mask`, tokens equal to `pad_token_id` are padding, as in fairseq.

        Raises `ValueError` for `position_ids`: an encoder numbers its tokens itself.
        """
        if kwargs.get("position_ids") is not None:
            raise ValueError("the encoder has no position_ids: do not pack several texts into a row")
        embeddings = self.embed(input_ids, inputs_embeds)
        if attention_mask is None and input_ids is not None:
            attention_mask = self.inputs_mask(input_ids)
        attention_mask = None if attention_mask is None else self.states_mask(attention_mask)
        real = attention_mask if attention_mask is not None and attention_mask.ndim == 2 else None
        hidden_states = self.add_positions(embeddings, real, 0)
        if self.config.position_embedding_type == "rotary":
            numbers = self.number(embeddings, real, 0, None)
            kwargs["rotary"] = rotary_positions(self.config, numbers)  # type: ignore[typeddict-unknown-key]
        if self.config.position_embedding_type == "relative":
            kwargs["relative"] = self.relative_bias, 0  # type: ignore[typeddict-unknown-key]
        if real is not None:
            hidden_states = hidden_states * real.unsqueeze(-1).to(hidden_states.dtype)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=embeddings, attention_mask=attention_mask)
        return BaseModelOutput(last_hidden_state=self.run_layers(hidden_states, attention_mask=mask, **kwargs))

    def inputs_mask(self, inputs: Tensor) -> Tensor | None:
        """The mask (batch, length) of inputs that are no padding; None on the meta device, where nobody knows."""
        return None if inputs.is_meta else inputs.ne(self.config.pad_token_id)

    def states_mask(self, attention_mask: Tensor) -> Tensor:
        """The mask of hidden states for a mask (batch, length) of inputs."""
        return attention_mask


ENCODERS: dict[bool, type[ResidualEncoder]] = {False: ResidualEncoder}
"""The class of an encoder, by whether it reads speech, whose file adds its own."""


class ResidualDecoder(ResidualStack):
    """`config.decoder_layers` layers of causal self-attention, cross-attention (unless alone) and feed-forward."""

    stack = "decoder"
    Layer = ResidualDecoderLayer
    _can_record_outputs = {
        "hidden_states": ResidualDecoderLayer,
        "attentions": OutputRecorder(ResidualAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(ResidualAttention, index=1, layer_name="encoder_attn"),
    }

    @merge_with_config_defaults
    @capture_outputs
    @accepts_cache
    def forward(  # type: ignore[misc]  # Transformers' type of kwargs has position_ids too
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Map target tokens (batch, length) and the encoder output to hidden states (batch, length, d_model).

        `position_ids` (batch, length) count from 0 within each text, so that texts packed into a row are told apart
        if there is no `attention_mask`; by flash attention in a batch of one row only.
        """
        embeddings = self.embed(input_ids, inputs_embeds)
        # the cache of continuous batching comes with position_ids and has no length
        past_length = past_key_values.get_seq_length() if isinstance(past_key_values, Cache) else 0

        dense = attention_mask if isinstance(attention_mask, Tensor) else None  # not a flex BlockMask
        hidden_states = self.add_positions(
            embeddings, dense, past_length, position_ids, static_length(past_key_values)
        )
        if self.config.position_embedding_type == "rotary":
            numbers = self.number(embeddings, dense, past_length, position_ids)
            kwargs["rotary"] = rotary_positions(self.config, numbers)
        if self.config.position_embedding_type == "relative":
            kwargs["relative"] = self.relative_bias, past_length + 0  # a static cache counts in place
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=embeddings,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **{CACHE: None if past_key_values is None else self_attention_cache(past_key_values)},
        )
        given = past_key_values
        if use_cache and past_key_values is None:  # after the mask: with a cache it does not tell packed texts apart
            past_key_values = DynamicCache(config=self.config)
            if self.config.is_encoder_decoder:
                past_key_values = EncoderDecoderCache(past_key_values, DynamicCache(config=self.config))
        if position_ids is not None:
            kwargs["position_ids"] = position_ids  # by which flash attention tells packed texts apart
        memory: tuple[Tensor, ...] = ()
        if self.config.is_encoder_decoder:
            if encoder_hidden_states is None:
                raise ValueError("the decoder needs encoder_hidden_states for its cross-attention")
            memory = (encoder_hidden_states,)
            kwargs["encoder_attention_mask"] = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=embeddings,
                attention_mask=encoder_attention_mask,
                encoder_hidden_states=encoder_hidden_states,
            )
        hidden_states = self.run_layers(
            hidden_states,
            *memory,
            attention_mask=causal_mask,
            use_cache=use_cache,
            **{CACHE: past_key_values},
            **kwargs,
        )
        if given is not None:
            check_runs(self_attention_cache(given), past_length + embeddings.shape[1])
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **{CACHE: past_key_values})
