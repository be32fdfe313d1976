# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Models of one stack: a decoder alone for language modeling, an encoder alone for masked tokens and for classes.

Stacks, layers and connections are those of the encoder-decoder.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput, SequenceClassifierOutput
from transformers.models.auto import modeling_auto
from transformers.utils import TransformersKwargs, can_return_tuple
from typing_extensions import Unpack

from .caches import accepts_cache
from .configuration_residual import ResidualConfig
from .decoding import FastGenerationMixin
from .kernels import Dropout
from .modeling_residual import ResidualLanguageModel, ResidualModel, with_logits
from .stacks import ResidualPreTrainedModel


class ResidualForCausalLM(ResidualLanguageModel, FastGenerationMixin):
    """A decoder without cross-attention and its output projection, for language modeling (`is_decoder_only`)."""

    needed_stacks = ("decoder",)

    def __init__(self, config: ResidualConfig):
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # `Trainer` does not count the first labels, which are not predicted

    @can_return_tuple
    @accepts_cache
    def forward(  # type: ignore[misc]  # Transformers' type of kwargs has position_ids too
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithPast:
        """Compute logits (batch, length, vocabulary) of the next tokens, and the loss if `labels` are given.

        Labels (batch, length) are the input tokens, and -100 is ignored: the model shifts them, unless `shift_labels`
        gives the shifted ones, as context and sequence parallel training do. The loss is the mean over labels, or
        their sum divided by `num_items_in_batch`. `position_ids` (batch, length) count from 0 in each text; without
        `attention_mask`, a new text begins where they restart at 0, and does not attend to the previous one.
        """
        num_items, shifted = kwargs.pop("num_items_in_batch", None), kwargs.pop("shift_labels", None)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=False if labels is not None else use_cache,
            **kwargs,
        )
        if labels is None:
            shifted = None
        elif shifted is None:
            shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        loss, logits = self.loss_and_logits(outputs.last_hidden_state, shifted, num_items, logits_to_keep)
        return with_logits(CausalLMOutputWithPast, loss, logits, outputs)


class ResidualForMaskedLM(ResidualLanguageModel):
    """An encoder and its output projection, which predicts masked tokens (`is_encoder_only`)."""

    needed_stacks = ("encoder",)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """Compute logits (batch, length, vocabulary), and the loss of `labels` (batch, length) that are not -100."""
        num_items = kwargs.pop("num_items_in_batch", None)
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        loss, logits = self.loss_and_logits(outputs.last_hidden_state, labels, num_items)
        return with_logits(MaskedLMOutput, loss, logits, outputs)


class ResidualForSequenceClassification(ResidualPreTrainedModel):
    """An encoder and a linear map of its pooled states to classes (`is_encoder_only`)."""

    needed_stacks = ("encoder",)
    Model: Any = ResidualModel
    accepts_loss_kwargs = False  # the loss is a mean over texts, which `Trainer` divides by the accumulation steps

    def __init__(self, config: ResidualConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.Model(config)
        self.dropout = Dropout(config.dropout)
        self.score = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    def pool(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """The mean of the states of real tokens, or the state of the first one, (batch, d_model)."""
        if mask is None:
            mask = hidden_states.new_ones(hidden_states.shape[:2])
        if mask.shape != hidden_states.shape[:2]:
            raise ValueError(f"attention_mask must be of shape {tuple(hidden_states.shape[:2])} to classify texts")
        mask = mask.to(hidden_states.device)  # of the last layer, which may be on another one
        if self.config.classifier_pooling == "first":
            first = mask.long().argmax(dim=1)
            return hidden_states[torch.arange(len(first), device=first.device), first]
        weights = mask.unsqueeze(-1).to(hidden_states.dtype)
        return (hidden_states * weights).sum(1) / weights.sum(1).clamp(min=1)

    def classify(
        self, hidden_states: Tensor, mask: Tensor | None, labels: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        """The loss of labels, if given, and the logits (batch, num_labels) of states (batch, length, d_model)."""
        logits = self.score(self.dropout(self.pool(hidden_states, mask)))
        if labels is None:
            return None, logits
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config), logits

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """Compute logits (batch, num_labels), and the loss of `labels`: classes, or values of a regression.

        `config.problem_type` selects the loss; by default it follows from the labels, as in Transformers.
        """
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids.ne(self.config.pad_token_id)
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        loss, logits = self.classify(outputs.last_hidden_state, attention_mask, labels)
        return with_logits(SequenceClassifierOutput, loss, logits, outputs)


# the tables in which `Trainer` (does label smoothing shift the labels?) and pipelines look up the name of a class
for task, model in {
    "CAUSAL_LM": ResidualForCausalLM,
    "MASKED_LM": ResidualForMaskedLM,
    "SEQUENCE_CLASSIFICATION": ResidualForSequenceClassification,
}.items():
    getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").setdefault("residual", model.__name__)
