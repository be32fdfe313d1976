# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Encoder-decoder Transformers whose residual connections `config.ln_mode` selects.

`modeling_single_stack.py` has the models of one stack alone.

Encoder and decoder are in `stacks.py`, their layers in `layers.py`, the connections in `ln_modes.py` and `modes_*.py`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple
from typing_extensions import Unpack

from .adaptive import AdaptiveSoftmax, tied_weights
from .caches import CACHE, accepts_cache
from .configuration_residual import ResidualConfig
from .decoding import FastGenerationMixin
from .embeddings import NormalizedLinear, shift_tokens_right, unit_vectors
from .kernels import Projection
from .stacks import ENCODERS, ResidualDecoder, ResidualPreTrainedModel


class ResidualModel(ResidualPreTrainedModel):
    """Encoder and decoder, or one of them alone, without output projection."""

    def __init__(self, config: ResidualConfig):
        super().__init__(config)
        if "encoder" in config.stacks:
            self.encoder = ENCODERS[config.reads_speech](config)
        if "decoder" in config.stacks:
            self.decoder = ResidualDecoder(config)
        if len(config.token_stacks) == 2 and config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}
        self._mark_tied_modules()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.get_submodule(self.config.token_stacks[0]).embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        stacks = self.config.token_stacks
        for stack in stacks if self.config.share_encoder_decoder_embeddings else stacks[:1]:
            self.get_submodule(stack).embed_tokens = value

    @can_return_tuple
    @accepts_cache
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
        input_features: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput | BaseModelOutput:
        """Map source and target tokens, each (batch, length), to decoder states (batch, target length, d_model).

        A stack alone maps `input_ids` to its states. A speech model has `input_features` (batch, frames, bins) instead
        of `input_ids`; its `attention_mask` is of frames.
        """
        if not self.config.is_encoder_decoder:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
            if self.config.is_encoder_only:
                return self.encoder(**inputs, **kwargs)
            return self.decoder(**inputs, past_key_values=past_key_values, use_cache=use_cache, **kwargs)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("the decoder needs an input: pass decoder_input_ids, decoder_inputs_embeds or labels")
        source = input_ids if input_features is None else input_features
        if attention_mask is None and source is not None:
            attention_mask = self.encoder.inputs_mask(source)
        if encoder_outputs is None:
            encoded = self.encoder(source, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        elif isinstance(encoder_outputs, ModelOutput):
            encoded = encoder_outputs
        else:
            encoded = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=None if attention_mask is None else self.encoder.states_mask(attention_mask),
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE: getattr(decoder_outputs, CACHE)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


def with_logits(kind: type[ModelOutput], loss: Tensor | None, logits: Tensor | None, outputs: ModelOutput) -> Any:
    """The output of this class of a model with a head, with those fields that the model without it returned."""
    return kind(loss=loss, logits=logits, **{name: value for name, value in outputs.items() if hasattr(kind, name)})


def build_projection(config: ResidualConfig) -> nn.Module:
    """The map from states to logits."""
    if config.adaptive_cutoffs:
        return AdaptiveSoftmax(config)
    projection = NormalizedLinear if config.fix_norm else Projection
    lm_head = projection(config.d_model, config.decoder_vocab_size, bias=config.output_bias)
    lm_head.table = "output"  # type: ignore[assignment]  # for `_init_weights`
    return lm_head


class ResidualLanguageModel(ResidualPreTrainedModel):
    """A model with a projection of its states to the vocabulary.

    If `criterion` is set, it computes the loss from the states without materializing all logits:
    `criterion(hidden_states, output_weight, labels, num_items_in_batch) -> loss`, with an additional `bias=` if
    `config.output_bias` is set. With an adaptive softmax `output_weight` is None, and `nll(hidden_states, labels)`
    gives the sum over labels. It is not saved. It is called in the context `criterion_products`, which a run may set.
    """

    criterion_products: Callable[[], AbstractContextManager[None]] = nullcontext

    def __init__(self, config: ResidualConfig):
        super().__init__(config)
        self.model = ResidualModel(config)
        self.lm_head: Any = build_projection(config)
        self.loss_type = "ForMaskedLM"  # of labels that are not shifted; the class name does not select one
        self.criterion: Callable[..., Tensor] | None = None
        first, last = config.token_stacks[0], config.token_stacks[-1]
        shared = config.share_encoder_decoder_embeddings
        source = f"model.{first if shared else last}.embed_tokens.weight"
        tied = {f"model.{stack}.embed_tokens.weight": source for stack in config.token_stacks[1:] if shared}
        if config.tie_word_embeddings:
            tied |= tied_weights(config) if config.adaptive_cutoffs else {"lm_head.weight": source}
        self._tied_weights_keys = tied
        self._mark_tied_modules()
        self.post_init()
        if self.can_generate():  # else fields that Transformers lacks are lost on loading
            self.generation_config._from_model_config = False

    @property
    def output_weight(self) -> Tensor:
        """The matrix that maps states to logits, (vocabulary, d_model)."""
        weight = self.lm_head.weight
        return unit_vectors(weight) if self.config.fix_norm else weight

    def _get_resized_lm_head(self, old_lm_head: nn.Linear, *args: Any, **kwargs: Any) -> nn.Linear:
        """Resize the module itself, as Transformers does for embeddings: a new one would be a plain `nn.Linear`."""
        resized = super()._get_resized_lm_head(old_lm_head, *args, **kwargs)
        old_lm_head.weight, old_lm_head.bias = resized.weight, resized.bias
        old_lm_head.out_features = resized.out_features
        return old_lm_head

    def criterion_loss(self, *arguments: Any, **options: Any) -> Tensor:
        assert self.criterion is not None
        with self.criterion_products():
            return self.criterion(*arguments, **options)

    def loss_and_logits(
        self, hidden_states: Tensor, labels: Tensor | None, num_items: Tensor | None, kept: int | Tensor = 0
    ) -> tuple[Tensor | None, Tensor | None]:
        """The loss of labels (batch, length), if given, and the logits (batch, kept, vocabulary), unless `criterion`
        or an adaptive softmax computes the loss without them.

        Args:
            num_items: number of labels that the sum of their losses is divided by; by default those in this batch.
            kept: number of last positions, or the positions, with logits; 0 for all.
        """
        if labels is not None and self.config.adaptive_cutoffs:
            if self.criterion is not None:
                return self.criterion_loss(hidden_states, None, labels, num_items, nll=self.lm_head.nll), None
            items = (labels != -100).sum() if num_items is None else num_items
            return self.lm_head.nll(hidden_states, labels) / items, None
        if labels is not None and self.criterion is not None:
            if hasattr(self.lm_head, "get_delta_weight"):  # of PEFT
                raise ValueError("criterion: given for a model with an adapter of lm_head, which it would ignore")
            bias = {"bias": self.lm_head.bias} if self.config.output_bias else {}
            return self.criterion_loss(hidden_states, self.output_weight, labels, num_items, **bias), None
        logits = self.lm_head(hidden_states[:, slice(-kept, None) if isinstance(kept, int) else kept])
        if labels is None:
            return None, logits
        size = self.config.decoder_vocab_size
        loss = self.loss_function(  # the causal loss would shift labels that are not `shift_labels`
            logits, labels, vocab_size=size, num_items_in_batch=num_items, shift_labels=labels
        )
        return loss, logits


class ResidualForConditionalGeneration(ResidualLanguageModel, FastGenerationMixin):
    """Encoder, decoder and output projection, for translation and other sequence-to-sequence tasks."""

    needed_stacks = ("encoder", "decoder")

    def __init__(self, config: ResidualConfig):
        if config.is_encoder_decoder and config.reads_speech != (self.main_input_name == "input_features"):
            is_or_not = "one" if config.reads_speech else "none"
            raise ValueError(f"{type(self).__name__}: the config is {is_or_not} of a speech model (conv_channels)")
        super().__init__(config)

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
    @accepts_cache
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
        **kwargs: Unpack[TransformersKwargs],
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
        loss, logits = self.loss_and_logits(outputs.last_hidden_state, labels, num_items, logits_to_keep)
        return with_logits(Seq2SeqLMOutput, loss, logits, outputs)
