"""Greedy and beam search over exported graphs, with the results of `generate`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import ForcedBOSTokenLogitsProcessor, GenerationConfig

from residual_hf.base.files import read_json
from residual_hf.data.shortlist import Shortlist
from residual_hf.model.alignment import padded
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.length_limits import end_tokens
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.modeling_single_stack import ResidualForCausalLM
from residual_hf.model.search import Array, Decoder, SearchSettings, beam_search, greedy_search

from .graphs import DECODER, DECODER_WITH_PAST, ENCODER, Graph, trace

BATCH = 32
Sentences = list[list[int]]  # token ids
Model = ResidualForConditionalGeneration | ResidualForCausalLM
GraphCall = Callable[..., Sequence[Tensor]]  # tensors in the order of the inputs of a graph


@dataclass
class GraphDecoder(Decoder):
    """Decodes with exported graphs, for `residual_hf.model.search`.

    Args:
        first, later: the graphs `decoder_model` and `decoder_with_past_model`.
        mask: which positions are tokens, (rows, length): of the source or, for a decoder alone, of the text so far.
        memory: output of the encoder, (rows, length, d_model); None for a decoder alone.
        past: keys and values of each layer after the first step: of the target and, with an encoder, of the source.
    """

    first: GraphCall
    later: GraphCall
    mask: Tensor
    memory: Tensor | None = None
    past: list[Tensor] = field(default_factory=list)

    def step(self, tokens: Array) -> Tensor:
        newest = torch.from_numpy(tokens)[:, None]
        if self.memory is None:
            self.mask = torch.cat((self.mask, torch.ones_like(newest)), dim=1)
            call = self.later if self.past else self.first
            logits, *self.past = call(newest, self.mask, *self.past)
        elif not self.past:
            logits, *self.past = self.first(self.mask, newest, self.memory)
        else:
            logits, *target = self.later(self.mask, newest, *self.past)
            self.past[0::4], self.past[1::4] = target[0::2], target[1::2]
        return logits[:, -1]

    def select(self, rows: Array) -> None:
        self.mask, self.memory = self.mask[rows], None if self.memory is None else self.memory[rows]
        self.past = [states[rows] for states in self.past]


@dataclass
class ExportedModel:
    """The graphs of an exported model: `encoder_model`, `decoder_model`, `decoder_with_past_model`.

    The encoder is None for a decoder alone.
    """

    config: ResidualConfig
    generation_config: GenerationConfig
    encoder: GraphCall | None
    first: GraphCall
    later: GraphCall

    def decoder(self, input_ids: Tensor, attention_mask: Tensor) -> Decoder:
        """A decoder of sentences, or of text that it has read but for the last token."""
        if self.encoder is not None:
            (memory,) = self.encoder(input_ids, attention_mask)
            return GraphDecoder(self.first, self.later, attention_mask, memory)
        decoder = GraphDecoder(self.first, self.later, attention_mask[:, :-1])
        if input_ids.shape[1] > 1:
            _, *decoder.past = self.first(input_ids[:, :-1], decoder.mask)
        return decoder

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

        Of a decoder alone, texts (texts, length) that begin with the given tokens, before which there may be padding.

        `forced_bos_token_id` is the first token, such as the tag of a language; default: that of the generation
        config, of which only this field and `min_length` are used.
        """
        forced = self.generation_config.forced_bos_token_id if forced_bos_token_id is None else forced_bos_token_id
        first = [] if forced is None else [(ForcedBOSTokenLogitsProcessor(forced), range(1, 2))]
        prompt = prompt_of(self.config, input_ids)
        settings = SearchSettings(
            limits=torch.full((len(input_ids),), prompt.shape[1] + max_new_tokens),
            eos_token_ids=end_tokens(self.config),
            fill_token_id=self.config.pad_token_id,
            num_beams=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            min_length=self.generation_config.min_length or 0,
            processors=first,
            prompt_is_read=self.encoder is None,
        )
        search = beam_search if num_beams > 1 else greedy_search
        return search(self.decoder(input_ids, attention_mask.long()), prompt, settings).sequences


class ExportTarget(ABC):
    """A runtime that models are exported to; `dtypes` are those of the weights, the first that `write` writes."""

    requires: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)

    def plain_mode(self, mode: str) -> str | None:
        """The mode as which a mode is exported, or None if the runtime cannot represent it."""
        return mode

    def check(self, config: ResidualConfig) -> None:
        """Raise `InputError` for a model that cannot be exported."""
        return None

    @abstractmethod
    def write(self, model: Model, tokenizer: Any, folder: Path) -> None: ...

    def quantize(self, model: Model, tokenizer: Any, folder: Path) -> None:
        """Replace weights in float32 by those in int8, where `dtypes` has both."""
        raise NotImplementedError(f"{type(self).__name__} writes {self.dtypes[0]} only")

    def write_shortlist(self, shortlist: Shortlist, model: Model, tokenizer: Any, folder: Path) -> None:
        """Write the likely target tokens of each source token, if the runtime computes only a part of the output."""
        return None

    @abstractmethod
    def translate(self, model: Model, tokenizer: Any, folder: Path, sources: Sentences, limit: int) -> Sentences:
        """Greedy translations of at most `limit` tokens by the exported model; a decoder alone continues texts."""


class GraphTarget(ExportTarget):
    """A runtime that every model is exported to, as the three graphs of `graphs.py`."""

    suffix: str  # of the files

    @abstractmethod
    def write_graph(self, graph: Graph, path: Path) -> None:
        """Write a graph in float32."""

    @abstractmethod
    def load_graph(self, path: Path) -> GraphCall:
        """A graph as a function of its tensors."""

    def load(self, folder: Path) -> ExportedModel:
        """Load what `write` has written, also of a mode that is not registered: the graphs have its equation."""
        saved, generation = read_json(folder / "config.json"), GenerationConfig.from_pretrained(folder)
        of_modes = ("ln_mode", "final_norm")
        config = ResidualConfig(**{n: value for n, value in saved.items() if not any(name in n for name in of_modes)})
        encoder = self.load_graph(folder / f"{ENCODER}{self.suffix}") if config.is_encoder_decoder else None
        decoders = (self.load_graph(folder / f"{name}{self.suffix}") for name in (DECODER, DECODER_WITH_PAST))
        return ExportedModel(config, generation, encoder, *decoders)

    def write(self, model: Model, tokenizer: Any, folder: Path) -> None:
        for name, graph in trace(model).items():
            self.write_graph(graph, folder / f"{name}{self.suffix}")
        model.config.to_json_file(folder / "config.json")
        model.generation_config.save_pretrained(folder)

    def translate(self, model: Model, tokenizer: Any, folder: Path, sources: Sentences, limit: int) -> Sentences:
        exported = replace(self.load(folder), generation_config=GenerationConfig())
        return translate_greedily(model.config, sources, partial(exported.generate, max_new_tokens=limit))


def translate(model: Model, sources: Sequence[list[int]], limit: int, **settings: Any) -> Sentences:
    """Greedy translations of at most `limit` tokens by the model itself, without its other rules of generation."""
    names = ("eos_token_id", "pad_token_id", "decoder_start_token_id")
    special = {name: getattr(model.config, name) for name in names}
    before, model.generation_config = model.generation_config, GenerationConfig(max_new_tokens=limit, **special)
    found = translate_greedily(model.config, sources, partial(model.generate, **settings))
    model.generation_config = before
    return found


def translate_greedily(
    config: ResidualConfig, sources: Sequence[list[int]], generate: Callable[..., Tensor]
) -> Sentences:
    """Translations by a function of batches of source tokens and their masks, as far as the token that ends them.

    Of a decoder alone, what follows the sources.
    """
    found: Sentences = []
    for start in range(0, len(sources), BATCH):
        side = "right" if config.is_encoder_decoder else "left"  # so that texts end where they are continued
        tokens, mask = padded(sources[start : start + BATCH], config.pad_token_id, side)
        rows = generate(tokens, attention_mask=mask)[:, prompt_of(config, tokens).shape[1] :]
        found += [list(takewhile(lambda token: token not in end_tokens(config), row)) for row in rows.tolist()]
    return found


def prompt_of(config: ResidualConfig, tokens: Tensor) -> Tensor:
    """The first tokens of a search, (sentences, length): the start token, or for a decoder alone the text."""
    return torch.full((len(tokens), 1), config.decoder_start_token_id) if config.is_encoder_decoder else tokens
