"""The graphs of an exported model, traced by `torch.export`: encoder, first decoder step, later decoder steps.

A decoder alone has the last two. Names and order of inputs and outputs are those of Optimum's exports. Keys and values
of attention are tensors (batch, heads, length, head_dim), for each layer those of the target (`decoder`) and of the
source (`encoder`); of a decoder alone those of the text.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import Cache

from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.modeling_single_stack import ResidualForCausalLM

ENCODER, DECODER, DECODER_WITH_PAST = "encoder_model", "decoder_model", "decoder_with_past_model"
KEPT = ("decoder.key", "decoder.value", "encoder.key", "encoder.value")  # for each layer


@dataclass
class Graph:
    """A traced graph and the names of its tensors."""

    program: ExportedProgram
    inputs: list[str]
    outputs: list[str]


def states_of(cache: DynamicCache) -> list[Tensor]:
    """Keys and values of each layer."""
    return [states for layer in cache.layers for states in (layer.keys, layer.values)]


class EncoderGraph(nn.Module):
    def __init__(self, model: ResidualForConditionalGeneration):
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.encoder(input_ids, attention_mask).last_hidden_state


class GraphOfDecoder(nn.Module):
    def __init__(self, model: ResidualForConditionalGeneration | ResidualForCausalLM):
        super().__init__()
        self.model, self.decoder = model, model.get_decoder()

    def logits(self, input_ids: Tensor, cache: Cache, **inputs: Any) -> Tensor:
        return self.model.lm_head(self.decoder(input_ids, past_key_values=cache, **inputs).last_hidden_state)


class DecoderGraph(GraphOfDecoder):
    """Logits of a target from its start, with all keys and values."""

    def forward(
        self, encoder_attention_mask: Tensor, input_ids: Tensor, encoder_hidden_states: Tensor
    ) -> list[Tensor]:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        memory = {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        logits = self.logits(input_ids, cache, **memory)
        layers = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
        kept = [states for own, source in layers for states in (own.keys, own.values, source.keys, source.values)]
        return [logits, *kept]


class DecoderWithPastGraph(GraphOfDecoder):
    """Logits of the next token, with the keys and values of the target."""

    def forward(self, encoder_attention_mask: Tensor, input_ids: Tensor, past: list[Tensor]) -> list[Tensor]:
        cache = EncoderDecoderCache([tuple(past[place : place + 4]) for place in range(0, len(past), 4)])
        of_length = past[2].transpose(1, 2).flatten(2)  # for the output of the encoder, which is not read any more
        memory = {"encoder_hidden_states": of_length, "encoder_attention_mask": encoder_attention_mask}
        return [self.logits(input_ids, cache, **memory), *states_of(cache.self_attention_cache)]


class TextGraph(GraphOfDecoder):
    """Logits of texts from a decoder alone, with the keys and values of all tokens so far.

    The mask (batch, tokens so far) is 0 at padding before a text.
    """

    def forward(self, input_ids: Tensor, attention_mask: Tensor, past: Sequence[Tensor] = ()) -> list[Tensor]:
        cache = DynamicCache([*zip(past[0::2], past[1::2], strict=True)])
        places = (attention_mask.cumsum(1) - 1).clamp(min=0)[:, attention_mask.shape[1] - input_ids.shape[1] :]
        logits = self.logits(input_ids, cache, attention_mask=attention_mask, position_ids=places)
        return [logits, *states_of(cache)]


def trace(model: ResidualForConditionalGeneration | ResidualForCausalLM) -> dict[str, Graph]:
    """The graphs of a model by name, in float32 with any batch size and any lengths that its positions allow."""
    model = copy.deepcopy(model).float().cpu().eval()
    model.set_attn_implementation("eager")  # which every mode supports
    plan = text_plan(model) if isinstance(model, ResidualForCausalLM) else translation_plan(model)
    return {
        name: Graph(torch.export.export(module, inputs, dynamic_shapes=dims), input_names, output_names)
        for name, (module, inputs, dims, input_names, output_names) in plan.items()
    }


Plan = dict[str, tuple[nn.Module, tuple, tuple, list[str], list[str]]]
"""Module, inputs with their dynamic dimensions, and names of inputs and outputs, for each graph."""


def text_plan(model: ResidualForCausalLM) -> Plan:
    """The graphs of a decoder alone."""
    config = model.config
    heads, limit = config.decoder_attention_heads, config.max_position_embeddings
    batch, text, past = Dim("batch", min=1), Dim("text", min=1, max=limit), Dim("past", min=1, max=max(limit - 1, 2))
    ids, mask = torch.tensor([[4, 5, 6], [4, 5, 7]]) % config.vocab_size, torch.tensor([[0, 1, 1], [1, 1, 1]])
    kept = [f"{layer}.{name}" for layer in range(config.decoder_layers) for name in ("key", "value")]
    pasts = [torch.randn(2, heads, 2, config.d_model // heads) for _ in kept]
    present, names = ["logits", *(f"present.{name}" for name in kept)], ["input_ids", "attention_mask"]
    dims = {0: batch, 1: text}, {0: batch, 1: text}
    later_dims = {0: batch}, {0: batch, 1: past + 1}, [{0: batch, 2: past} for _ in kept]
    later_names = [*names, *(f"past_key_values.{name}" for name in kept)]
    return {
        DECODER: (TextGraph(model), (ids, mask), dims, names, present),
        DECODER_WITH_PAST: (TextGraph(model), (ids[:, :1], mask, pasts), later_dims, later_names, present),
    }


def translation_plan(model: ResidualForConditionalGeneration) -> Plan:
    """The graphs of an encoder-decoder."""
    config = model.config
    batch = Dim("batch", min=1)
    source, target = (Dim(name, min=1, max=config.max_position_embeddings) for name in ("source", "target"))
    past = Dim("past", min=1, max=max(config.max_position_embeddings - 1, 2))
    ids = torch.tensor([[4, 5, 6], [4, 5, config.pad_token_id]]) % config.vocab_size
    mask = ids.ne(config.pad_token_id).long()
    states, start = torch.randn(2, 3, config.d_model), torch.full((2, 2), config.decoder_start_token_id)
    heads, layers = config.decoder_attention_heads, range(config.decoder_layers)
    pasts = [torch.randn(2, heads, length, config.d_model // heads) for _ in layers for length in (2, 2, 3, 3)]
    past_dims = [{0: batch, 2: dim} for _ in layers for dim in (past, past, source, source)]
    kept = [f"{layer}.{name}" for layer in layers for name in KEPT]
    of_source, of_target, names = {0: batch, 1: source}, {0: batch, 1: target}, ["encoder_attention_mask", "input_ids"]
    first_names, present = [*names, "encoder_hidden_states"], ["logits", *(f"present.{name}" for name in kept)]
    later_names = [*names, *(f"past_key_values.{name}" for name in kept)]
    later_present = [name for name in present if "encoder" not in name]
    source_names, dims = ["input_ids", "attention_mask"], (of_source, of_target, of_source)
    later_inputs, later_dims = (mask, start[:, :1], pasts), (of_source, {0: batch}, past_dims)
    return {
        ENCODER: (EncoderGraph(model), (ids, mask), (of_source, of_source), source_names, ["last_hidden_state"]),
        DECODER: (DecoderGraph(model), (mask, start, states), dims, first_names, present),
        DECODER_WITH_PAST: (DecoderWithPastGraph(model), later_inputs, later_dims, later_names, later_present),
    }
