# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Encoder-decoder Transformers whose residual connections `config.ln_mode` selects.

The layers are in `layers.py`, the connections in `ln_modes.py` and the `modes_*.py` files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_residual import ResidualConfig
from .connections import STACKS, get_ln_mode
from .decoding import FastGenerationMixin
from .embeddings import (
    ScaledEmbedding,
    build_positions,
    drop_words,
    first_position,
    position_ids_from_mask,
    positions_padding,
    shift_tokens_right,
)
from .initialization import INIT_STYLES, init_embedding
from .layers import ResidualAttention, ResidualDecoderLayer, ResidualEncoderLayer
from .norms import build_norm
from .profiling import profile_admin


class ResidualPreTrainedModel(PreTrainedModel):
    """Initialisation, weight tying and the capabilities that all models of the family share."""

    config: ResidualConfig
    config_class = ResidualConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ResidualEncoderLayer", "ResidualDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config: ResidualConfig, *args: Any, **kwargs: Any):
        config.validate_residual()
        super().__init__(config, *args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """For a mode that supports only some implementations, default to its first and refuse the others."""
        for mode in {get_ln_mode(self.config.stack_ln_mode(stack)) for stack in STACKS}:
            allowed = mode.attention_implementations
            if allowed is None:
                continue
            requested_attention = requested_attention or allowed[0]
            if requested_attention not in allowed:
                raise ValueError(
                    f"ln_mode {mode.name!r} needs attn_implementation {' or '.join(map(repr, allowed))}, "
                    f"not {requested_attention!r}"
                )
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    @property
    def _keys_to_ignore_on_save(self) -> set[str]:
        """The keys that are tied at the moment, so that a table that was untied later is saved."""
        parameters = dict(self.named_parameters(remove_duplicate=False))
        tied = getattr(self, "all_tied_weights_keys", {})
        return {name for name, source in tied.items() if parameters.get(name) is parameters.get(source)}

    @_keys_to_ignore_on_save.setter
    def _keys_to_ignore_on_save(self, value: set[str]) -> None:
        """Ignore the assignment in `post_init`: the getter computes the value."""

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and not hasattr(module, "role") and module.bias is not None:
            init.zeros_(module.bias)  # of the output projection, whose weight may be tied
        if getattr(module, "is_tied", False):
            return
        if hasattr(module, "role"):
            gain = module.place.mode(self.config).init_gain(self.config, module.place, module.role)
            INIT_STYLES[self.config.stack_init_style(module.place.stack)].linear(module, module.role, gain)
        elif isinstance(module, (nn.Embedding, nn.Linear)):
            init_embedding(module, self._embedding_gain(getattr(module, "table", None)), self.config.fix_norm)
        elif hasattr(module, "init_parameters"):
            module.init_parameters()
        else:
            super()._init_weights(module)

    def _embedding_gain(self, table: str | None) -> float:
        """Factor on the initial scale of a token table (encoder, decoder or output), 1 for other tables.

        Each stack's mode decides on its table, and the decoder's mode on the output projection. A shared table has the
        factor of the encoder's mode, or, if that is 1, of the decoder's.
        """
        if table is None:
            return 1.0
        modes = {stack: get_ln_mode(self.config.stack_ln_mode(stack)) for stack in STACKS}
        if table == "output":
            return modes["decoder"].embedding_gain(self.config, table)
        stacks = STACKS if self.config.share_encoder_decoder_embeddings else (table,)
        gains = (modes[stack].embedding_gain(self.config, stack) for stack in stacks)
        return next((gain for gain in gains if gain != 1.0), 1.0)

    def _mark_tied_modules(self) -> None:
        """Mark the modules that use the weight of another module, so that they do not initialise it again."""
        for name in self._tied_weights_keys or {}:
            self.get_submodule(name.removesuffix(".weight")).is_tied = True

    def profile_admin(self, batch: Mapping[str, Tensor]) -> list[float]:
        """Initialise Admin from one batch of model inputs, see `profiling.profile_admin`."""
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
        table = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.vocab_size = table.num_embeddings
        return table

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        ids = torch.tensor([[4, 5, 6, 2], [4, 5, 2, self.config.pad_token_id]], device=self.device)
        return {"input_ids": ids, "attention_mask": ids.ne(self.config.pad_token_id), "decoder_input_ids": ids}


class ResidualStack(ResidualPreTrainedModel):
    """Common part of encoder and decoder: embeddings, layers, and the boundary of the stream."""

    stack: str

    def __init__(self, config: ResidualConfig, vocab_size: int, layers: list[nn.Module], layerdrop: float):
        super().__init__(config)
        scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.embed_tokens = ScaledEmbedding(vocab_size, config.d_model, config.pad_token_id, scale, config.fix_norm)
        self.embed_tokens.table = self.stack  # for `_init_weights`
        self.embed_positions = build_positions(config)
        self.embed_norm = build_norm(config, self.stack) if config.embedding_norm else nn.Identity()
        self.layers = nn.ModuleList(layers)
        self.boundary = get_ln_mode(config.stack_ln_mode(self.stack)).Boundary(config, self.stack)
        self.word_dropout = getattr(config, f"{self.stack}_word_dropout")
        self.layerdrop = layerdrop
        self.gradient_checkpointing = False
        self.post_init()

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"the {self.stack} needs either input ids or inputs_embeds, not both")
        embeddings = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.training and self.word_dropout > 0.0:
            embeddings = drop_words(embeddings, self.word_dropout, keep_first=self.stack == "decoder")
        return embeddings

    def add_positions(self, embeddings: Tensor, mask: Tensor | None, past_length: int | Tensor) -> Tensor:
        """Add positions, counting only real tokens if a mask is given, then apply the norm (if any) and dropout."""
        if self.embed_positions is not None:
            length, padding_idx = embeddings.shape[1], positions_padding(self.config)
            total = length + past_length if isinstance(past_length, int) else length
            if total > self.config.max_position_embeddings:
                raise ValueError(
                    f"the {self.stack} received {total} tokens, but max_position_embeddings is "
                    f"{self.config.max_position_embeddings}: shorten the input (truncation=True) or the output "
                    "(max_new_tokens)"
                )
            if mask is not None and padding_idx is not None:
                position_ids = position_ids_from_mask(mask, length, padding_idx)
            else:
                first = past_length + first_position(padding_idx)
                position_ids = (torch.arange(length, device=embeddings.device) + first).unsqueeze(0)
            embeddings = embeddings + self.embed_positions(position_ids).to(embeddings.dtype)
        return nn.functional.dropout(self.embed_norm(embeddings), self.config.dropout, self.training)

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
    _can_record_outputs = {"hidden_states": ResidualEncoderLayer, "attentions": ResidualAttention}

    def __init__(self, config: ResidualConfig):
        layers = [ResidualEncoderLayer(config, i) for i in range(config.encoder_layers)]
        super().__init__(config, config.vocab_size, layers, config.encoder_layerdrop)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Map source tokens (batch, length) to hidden states (batch, length, d_model).

        Without `attention_mask`, tokens equal to `pad_token_id` are padding, as in fairseq.
        """
        embeddings = self.embed(input_ids, inputs_embeds)
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        real = attention_mask if attention_mask is not None and attention_mask.ndim == 2 else None
        hidden_states = self.add_positions(embeddings, real, 0)
        if real is not None:
            hidden_states = hidden_states * real.unsqueeze(-1).to(hidden_states.dtype)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=embeddings, attention_mask=attention_mask)
        return BaseModelOutput(last_hidden_state=self.run_layers(hidden_states, attention_mask=mask, **kwargs))


class ResidualDecoder(ResidualStack):
    """`config.decoder_layers` layers of causal self-attention, cross-attention and feed-forward."""

    stack = "decoder"
    _can_record_outputs = {
        "hidden_states": ResidualDecoderLayer,
        "attentions": OutputRecorder(ResidualAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(ResidualAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: ResidualConfig):
        layers = [ResidualDecoderLayer(config, i) for i in range(config.decoder_layers)]
        super().__init__(config, config.decoder_vocab_size, layers, config.decoder_layerdrop)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Map target tokens (batch, length) and the encoder output to hidden states (batch, length, d_model)."""
        if encoder_hidden_states is None:
            raise ValueError("the decoder needs encoder_hidden_states for its cross-attention")
        embeddings = self.embed(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0

        dense = attention_mask if isinstance(attention_mask, Tensor) else None  # not a flex BlockMask
        hidden_states = self.add_positions(embeddings, dense, past_length)
        causal_mask = create_causal_mask(
            config=self.config,
            inputs_embeds=embeddings,
            attention_mask=attention_mask,
            past_key_values=past_key_values.self_attention_cache if past_key_values is not None else None,
        )
        cross_mask = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=embeddings,
            attention_mask=encoder_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
        )
        hidden_states = self.run_layers(
            hidden_states,
            encoder_hidden_states,
            attention_mask=causal_mask,
            encoder_attention_mask=cross_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **kwargs,
        )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden_states, past_key_values=past_key_values
        )


class ResidualModel(ResidualPreTrainedModel):
    """Encoder and decoder without output projection."""

    def __init__(self, config: ResidualConfig):
        super().__init__(config)
        self.encoder = ResidualEncoder(config)
        self.decoder = ResidualDecoder(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self._mark_tied_modules()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Map source and target tokens, each (batch, length), to decoder states (batch, target length, d_model)."""
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("the decoder needs an input: pass decoder_input_ids, decoder_inputs_embeds or labels")
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class ResidualForConditionalGeneration(ResidualPreTrainedModel, FastGenerationMixin):
    """Encoder, decoder and output projection, for translation and other sequence-to-sequence tasks.

    If `criterion` is set, it computes the loss from decoder states without materialising all logits:
    `criterion(hidden_states, output_weight, labels, num_items_in_batch) -> loss`, with an additional `bias=` if
    `config.output_bias` is set. It is not saved.
    """

    def __init__(self, config: ResidualConfig):
        super().__init__(config)
        self.model = ResidualModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=config.output_bias)
        self.lm_head.table = "output"  # for `_init_weights`
        self.loss_type = "ForMaskedLM"  # the class name would select the causal loss, which shifts labels again
        self.criterion: Callable[..., Tensor] | None = None
        shared = config.share_encoder_decoder_embeddings
        source = "model.encoder.embed_tokens.weight" if shared else "model.decoder.embed_tokens.weight"
        tied = {"model.decoder.embed_tokens.weight": source} if shared else {}
        self._tied_weights_keys = {**tied, "lm_head.weight": source} if config.tie_word_embeddings else tied
        self._mark_tied_modules()
        self.post_init()
        self.generation_config._from_model_config = False  # else fields that Transformers lacks are lost on loading

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    @property
    def output_weight(self) -> Tensor:
        """The matrix that maps decoder states to logits, (vocabulary, d_model)."""
        weight = self.lm_head.weight
        return nn.functional.normalize(weight, dim=-1) if self.config.fix_norm else weight

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Decoder states (..., d_model) to logits (..., vocabulary)."""
        if self.config.fix_norm:
            return nn.functional.linear(hidden_states, self.output_weight, self.lm_head.bias)
        return self.lm_head(hidden_states)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the shared table and the output projection, or only the source table if the target has its own."""
        if self.config.share_encoder_decoder_embeddings:
            return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        return self.model.resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the target table and the output projection. Arguments as in `resize_token_embeddings`.

        Raises `ValueError` if source and target share their embeddings.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError("source and target share their embeddings: use resize_token_embeddings")
        table = self._get_resized_embeddings(
            self.model.decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        self.config.decoder_vocab_size = table.num_embeddings
        self.lm_head = self._get_resized_lm_head(self.lm_head, table.num_embeddings, mean_resizing=mean_resizing)
        self.tie_weights()
        return table

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """See `shift_tokens_right`."""
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
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
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Compute logits (batch, target length, vocabulary), and the loss if `labels` are given.

        Labels (batch, target length) are not shifted, and -100 is ignored. The loss is the mean over target tokens, or
        their sum divided by `num_items_in_batch`. Decoder inputs default to the shifted labels.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        num_items = kwargs.pop("num_items_in_batch", None)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        loss = logits = None
        if labels is not None and self.criterion is not None:
            bias = {"bias": self.lm_head.bias} if self.config.output_bias else {}
            loss = self.criterion(hidden_states, self.output_weight, labels, num_items, **bias)
        else:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.logits(hidden_states[:, kept])
            if labels is not None:
                loss = self.loss_function(
                    logits, labels, vocab_size=self.config.decoder_vocab_size, num_items_in_batch=num_items
                )
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )


__all__ = [
    "ResidualDecoder",
    "ResidualEncoder",
    "ResidualForConditionalGeneration",
    "ResidualModel",
    "ResidualPreTrainedModel",
]
