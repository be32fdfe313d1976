# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The protocol of residual connections: what one `ln_mode` is.

A stack (encoder or decoder) carries a **stream**, a tuple of tensors of shape (batch, length, d_model) whose first
member is the hidden state that the next sub-layer relates to. A mode is a `ResidualConnection`, one instance per
sub-layer, that turns the stream before a sub-layer into the stream after it, together with a `StreamBoundary`, one
instance per stack, that says how the stream begins and ends:

    stream = boundary.begin(x_0)
    for each layer, for each of its sub-layers:   stream = connection(stream, sublayer)
    output = boundary.end(stream)

`sublayer` is a callable, `a = sublayer(z)`: the branch f applied to z, after residual dropout. Layers and stacks know
nothing else, in particular no mode by name. Everything that a mode may want has one place:

- norms before, after or around the addition, several of them or none, learned scalars or vectors (rSkip, ReZero,
  Fixup): modules and parameters of the connection;
- a second stream, n streams (ResiDual, hyper-connections): more members of the tuple, `(x, r)`, `(h_1, ..., h_n)`;
- the input of the layer (B2T): the first sub-layer of a layer appends it to the stream and the last one takes it out
  again, `place.is_first_in_layer`, `place.is_last_in_layer`;
- the outputs of all layers or sub-layers (DLCL, attention residuals): the stream grows by one member at each layer,
  the first sub-layer of a layer combines them and `boundary.end` does so at the top;
- one gate for a whole layer (ReZero): the parameter is the first connection's, and `share` hands it to the others;
- the scores of the layer before (RealFormer): `a, scores = sublayer.with_scores(z, previous)`, and the scores travel
  in the stream;
- norms, scales or shifts inside a branch (NormFormer, sub-LN, HybridNorm, Fixup): `inner_modules`, modules for named
  slots; `linear_bias = False` takes the biases out;
- its own initialisation (DeepNet, T-Fixup, B2T, sub-LN): `default_init_style`, `init_gain` for what depends on depth
  and place, `init_parameters` for the parameters of the connection itself;
- a plainer mode that it contains (Admin and ResiDual: Post-LN; LayerScale: Pre-LN): `folds_into` with
  `foldable_scales` to go there, `starts_from` with `starting_values` to come from there, with equal outputs.

Only tensors go in and out of a layer, so gradient checkpointing, `torch.compile`, caches and beam reordering need
no knowledge of the mode either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .options import NoOptions

Stream = tuple[Tensor, ...]

ENCODER_SUBLAYERS = ("self_attention", "feed_forward")
DECODER_SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")


@dataclass(frozen=True)
class SublayerPlace:
    """Where a sub-layer stands: `layer` counts from 0 in its stack, `position` from 0 in its layer."""

    stack: str  # "encoder" or "decoder"
    layer: int
    kind: str  # "self_attention", "cross_attention" or "feed_forward"
    position: int
    sublayers_per_layer: int
    num_layers: int  # depth of this stack

    @property
    def index(self) -> int:
        """Number of sub-layers before this one in its stack."""
        return self.layer * self.sublayers_per_layer + self.position

    def mode(self, config) -> type[ResidualConnection]:
        """The mode of this stack."""
        return get_ln_mode(config.stack_ln_mode(self.stack))

    @property
    def is_first_in_layer(self) -> bool:
        return self.position == 0

    @property
    def is_last_in_layer(self) -> bool:
        return self.position == self.sublayers_per_layer - 1


def layer_places(config, stack: str, layer: int) -> list[SublayerPlace]:
    """The places of the sub-layers of one layer, in the order in which they run."""
    kinds = ENCODER_SUBLAYERS if stack == "encoder" else DECODER_SUBLAYERS
    depth = config.encoder_layers if stack == "encoder" else config.decoder_layers
    return [SublayerPlace(stack, layer, kind, i, len(kinds), depth) for i, kind in enumerate(kinds)]


class StreamBoundary(nn.Module):
    """How the stream of a stack begins and ends; here: it is the hidden state alone."""

    def __init__(self, config, stack: str):
        super().__init__()
        self.options = config.ln_options(stack)

    def begin(self, hidden_states: Tensor) -> Stream:
        """The stream before the first layer, from the embeddings (batch, length, d_model)."""
        return (hidden_states,)

    def end(self, stream: Stream) -> Tensor:
        """The output of the stack, (batch, length, d_model), from the stream after the last layer."""
        return stream[0]

    def init_parameters(self) -> None:
        """Set the initial values of bare parameters (through `transformers.initialization`); norms need nothing."""

    def starting_values(self) -> dict[str, Tensor | float]:
        """As those of the connections."""
        return {}


class Sublayer:
    """A branch as its connection calls it: f(z) after residual dropout."""

    def __init__(self, branch: Callable[..., tuple[Tensor, ...]], dropout: float, training: bool):
        self.branch = branch
        self.dropout = dropout
        self.training = training

    def __call__(self, hidden_states: Tensor) -> Tensor:
        return nn.functional.dropout(self.branch(hidden_states)[0], self.dropout, self.training)

    def with_scores(
        self, hidden_states: Tensor, previous: Tensor | None, divisor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """An attention branch whose scores are added to `previous`, (batch, heads, queries, keys), before the softmax.

        Returns the branch output and the summed scores, unmasked and undivided; the softmax sees scores / divisor.
        Needs `attn_implementation="eager"`.
        """
        output, _, scores = self.branch(hidden_states, score_residual=(previous, divisor))
        return nn.functional.dropout(output, self.dropout, self.training), scores


class ResidualConnection(nn.Module):
    """How one sub-layer reads the residual stream and joins it again: subclass, write `forward`, register a name."""

    name: ClassVar[str]
    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    bibtex: ClassVar[str | tuple[str, ...]] = ()  # BibTeX entries, or keys of residual_hf/hub/papers.bib
    Options: ClassVar[type] = NoOptions
    Boundary: ClassVar[type[StreamBoundary]] = StreamBoundary
    default_norm_type: ClassVar[str] = "layer_norm"
    default_init_style: ClassVar[str] = "fairseq_main"
    linear_bias: ClassVar[bool] = True
    attention_implementations: ClassVar[tuple[str, ...] | None] = None  # None: any
    warmup: ClassVar[str] = "used"  # in the papers: "needed", "not needed", or used without a word about it
    folds_into: ClassVar[str | None] = None  # the plainer mode that `conversion.fold` turns this one into
    # the mode that this one is at its `starting_values()` with `starting_options`, for `conversion.change_ln_mode`;
    # a mode that folds needs only `starting_values`: scales of other values go into the weights beside them
    starts_from: ClassVar[str | None] = None
    starting_options: ClassVar[dict[str, Any]] = {}

    def __init__(self, config, place: SublayerPlace):
        super().__init__()
        self.place = place
        self.options = config.ln_options(place.stack)

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        raise NotImplementedError(f"{type(self).__name__} must say how it joins a sub-layer to the stream")

    def share(self, first: ResidualConnection) -> None:
        """Called on the later connections of a layer with its first one, for parameters that a layer has once."""

    def init_parameters(self) -> None:
        """Set the initial values of bare parameters (through `transformers.initialization`); norms need nothing."""

    def foldable_scales(self) -> dict[str, Tensor | float]:
        """What `folds_into` lacks: factors on the `shortcut`, on the `branch`, or on the `norm` in front of it."""
        return {}

    def starting_values(self) -> dict[str, Tensor | float]:
        """Values of own parameters, by name, at which this mode is `starts_from` (or `folds_into`)."""
        return {}

    @classmethod
    def init_gain(cls, config, place: SublayerPlace, role: str) -> float:
        """Factor on the initial scale of a weight: query, key, value, attention_output, ffn_in or ffn_out."""
        return 1.0

    @classmethod
    def embedding_gain(cls, config, stack: str | None) -> float:
        """Factor on the initial scale of the token table of a stack; None is the untied output projection."""
        return 1.0

    @classmethod
    def inner_modules(cls, config, place: SublayerPlace) -> dict[str, nn.Module]:
        """Modules for slots inside the branch.

        Attention: `query`, `key`, `value` (on (batch, heads, length, head_dim)), `heads` (before the output
        projection, (batch, length, d_model)), `output` (after it). Feed-forward: `pre_activation` and `inner` (before
        the activation and before the second linear map, ffn_dim wide), `output`.
        """
        return {}


LN_MODES: dict[str, type[ResidualConnection]] = {}


def register_ln_mode(name: str) -> Callable[[type[ResidualConnection]], type[ResidualConnection]]:
    """Class decorator that makes a `ResidualConnection` available as `ln_mode=name`.

    Raises `ValueError` for a name that another class holds; the same class (module and name) may register again.
    """

    def register(cls: type[ResidualConnection]) -> type[ResidualConnection]:
        held = LN_MODES.get(name)
        if held is not None and (held.__module__, held.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"ln_mode {name!r} is already registered by {held.__module__}.{held.__qualname__}")
        cls.name = name
        LN_MODES[name] = cls
        return cls

    return register


def get_ln_mode(name: Any) -> type[ResidualConnection]:
    """The class of a mode. Raises `ValueError` with the list of known modes for any other name."""
    if name not in LN_MODES:
        raise ValueError(f"unknown ln_mode {name!r}. Known: {', '.join(sorted(LN_MODES))}.")
    return LN_MODES[name]


def build_connections(config, stack: str, layer: int) -> list[ResidualConnection]:
    """The connections of one layer, in the order of its sub-layers."""
    connections = [place.mode(config)(config, place) for place in layer_places(config, stack, layer)]
    for later in connections[1:]:
        later.share(connections[0])
    return connections


def slot(modules: nn.ModuleDict, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` through the inner module of that name, or as it is where a mode put none."""
    return modules[name](tensor) if name in modules else tensor
