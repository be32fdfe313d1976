# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Greedy and beam search over exported graphs, with the results of `generate`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import ForcedBOSTokenLogitsProcessor, GenerationConfig

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.search import Array, Decoder, SearchSettings, beam_search, best_tokens, greedy_search

from .graphs import GRAPHS, Graph, trace

BATCH = 32
Sentences = list[list[int]]  # token ids
GraphCall = Callable[..., Sequence[Tensor]]  # tensors in the order of the inputs of a graph


@dataclass
class GraphDecoder:
    """Decodes with exported graphs, for `residual_hf.model.search`.

    Args:
        first, later: the graphs `decoder_model` and `decoder_with_past_model`.
        memory: output of the encoder, (rows, length, d_model).
        mask: which of its positions are tokens, (rows, length).
        past: four tensors per layer: keys and values of the target, then of the source.
    """

    first: GraphCall
    later: GraphCall
    memory: Tensor
    mask: Tensor
    past: list[Tensor] = field(
        default_factory=list
    )  # four tensors per layer: keys and values of the target, then of the source

    def step(self, tokens: Array) -> Tensor:
        newest = torch.from_numpy(tokens)[:, None]
        if not self.past:
            logits, *self.past = self.first(self.mask, newest, self.memory)
        else:
            logits, *target = self.later(self.mask, newest, *self.past)
            self.past[0::4], self.past[1::4] = target[0::2], target[1::2]
        return logits[:, -1]

    def best(self, tokens: Array, count: int) -> tuple[Array, Array]:
        return best_tokens(self.step(tokens), count)

    def select(self, rows: Array) -> None:
        self.mask = self.mask[rows]
        self.past = [states[rows] for states in self.past]


@dataclass
class ExportedModel:
    """The graphs of an exported model: `encoder_model`, `decoder_model`, `decoder_with_past_model`."""

    config: ResidualConfig
    generation_config: GenerationConfig
    encoder: GraphCall
    first: GraphCall
    later: GraphCall

    def decoder(self, input_ids: Tensor, attention_mask: Tensor, num_beams: int = 1) -> GraphDecoder:
        """A decoder with `num_beams` rows for each sentence."""
        (memory,) = self.encoder(input_ids, attention_mask)
        memory, mask = (states.repeat_interleave(num_beams, dim=0) for states in (memory, attention_mask))
        return GraphDecoder(self.first, self.later, memory, mask)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        max_new_tokens: int,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        forced_bos_token_id: int | None = None,
    ) -> Tensor:
        """Target tokens (sentences, length) of source tokens (sentences, length), as from `model.generate`.

        `forced_bos_token_id` is the first token, such as the tag of a language; default: that of the generation
        config, whose other fields are not used.
        """
        forced = self.generation_config.forced_bos_token_id if forced_bos_token_id is None else forced_bos_token_id
        first = [] if forced is None else [ForcedBOSTokenLogitsProcessor(forced)]
        prompt = torch.full((len(input_ids), 1), self.config.decoder_start_token_id)
        settings = SearchSettings(
            limits=torch.full((len(input_ids),), 1 + max_new_tokens),
            eos_token_ids=end_tokens(self.config),
            fill_token_id=self.config.pad_token_id,
            num_beams=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            processors=lambda length: first if length == 1 else (),
        )
        search = beam_search if num_beams > 1 else greedy_search
        return search(self.decoder(input_ids, attention_mask.long(), num_beams), prompt, settings).sequences


class GraphTarget(Protocol):
    """A runtime that every model is exported to, as the three graphs of `graphs.py`."""

    requires: tuple[str, ...]
    dtypes: tuple[str, ...]
    suffix: str  # of the files

    @abstractmethod
    def write_graph(self, graph: Graph, path: Path) -> None:
        """Write a graph in float32."""

    @abstractmethod
    def load_graph(self, path: Path) -> GraphCall:
        """A graph as a function of its tensors."""

    def load(self, folder: Path) -> ExportedModel:
        """Load what `write` has written."""
        configs = ResidualConfig.from_pretrained(folder), GenerationConfig.from_pretrained(folder)
        return ExportedModel(*configs, *(self.load_graph(folder / f"{name}{self.suffix}") for name in GRAPHS))

    def plain_mode(self, mode: str) -> str | None:
        return mode

    def check(self, config: ResidualConfig) -> None:
        """Every model can be exported."""
        return None

    def write(self, model: ResidualForConditionalGeneration, tokenizer: Any, folder: Path) -> None:
        for name, graph in trace(model).items():
            self.write_graph(graph, folder / f"{name}{self.suffix}")
        model.config.to_json_file(folder / "config.json")
        model.generation_config.save_pretrained(folder)

    def translate(
        self, model: ResidualForConditionalGeneration, tokenizer: Any, folder: Path, sources: Sentences, limit: int
    ) -> Sentences:
        return translate_greedily(model.config, sources, limit, self.load(folder).decoder)


def translate_greedily(
    config: ResidualConfig, sources: Sequence[list[int]], limit: int, decoder: Callable[[Tensor, Tensor], Decoder]
) -> list[list[int]]:
    """Greedy translations of at most `limit` tokens, by decoders made from source tokens and their mask."""
    found = []
    for start in range(0, len(sources), BATCH):
        batch = [torch.tensor(source) for source in sources[start : start + BATCH]]
        tokens = torch.nn.utils.rnn.pad_sequence(batch, True, config.pad_token_id)
        mask = torch.arange(tokens.shape[1]) < torch.tensor([len(source) for source in batch])[:, None]
        prompt = torch.full((len(batch), 1), config.decoder_start_token_id)
        limits = torch.full((len(batch),), limit + 1)
        settings = SearchSettings(limits, end_tokens(config), fill_token_id=config.pad_token_id)
        rows = greedy_search(decoder(tokens, mask.long()), prompt, settings).sequences
        found += [list(takewhile(lambda token: token not in end_tokens(config), row[1:])) for row in rows.tolist()]
    return found


def end_tokens(config: ResidualConfig) -> list[int]:
    ends: Any = config.eos_token_id
    return ends if isinstance(ends, list) else [ends]
