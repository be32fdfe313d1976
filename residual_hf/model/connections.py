# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The protocol of residual connections: what an `ln_mode` defines.

A stack (encoder or decoder) carries a **stream**, a tuple of tensors of shape (batch, length, d_model). Its first
member is the hidden state that the next sub-layer reads. A mode is a `ResidualConnection`, instantiated once per
sub-layer, that maps the stream before a sub-layer to the stream after it, and a `StreamBoundary`, instantiated once
per stack, that starts and ends the stream:

    stream = boundary.begin(x_0)
    for each layer, for each of its sub-layers:   stream = connection(stream, sublayer)
    output = boundary.end(stream)

`a = sublayer(z)` applies the branch f (attention or feed-forward) to z, followed by residual dropout. Layers and
stacks contain no code for individual modes. Each feature of a mode has one place:

- norms before, after or around the addition, learned scalars or vectors (rSkip, ReZero, Fixup): submodules and
  parameters of the connection;
- a norm on the output of the branch (Sandwich-LN): `sublayer(z, norm)` with `norm_on_branch`, so that a factor on the
  branch (branch warm-up) follows the norm;
- a second stream or n streams (ResiDual, hyper-connections): more members of the tuple, `(x, r)`, `(h_1, ..., h_n)`;
- the layer input (B2T): the first sub-layer of a layer appends it to the stream and the last one removes it, see
  `place.is_first_in_layer` and `place.is_last_in_layer`;
- the outputs of all layers or sub-layers (DLCL, attention residuals): each layer appends a member to the stream, and
  the first sub-layer of a layer and `boundary.end` combine them;
- a parameter shared by the sub-layers of a layer (ReZero's gate): the first sub-layer appends it to the stream, since
  a module reads only its own parameters; conversions find it in `first_in_layer`;
- the attention scores of the previous layer (RealFormer): `a, scores = sublayer.with_scores(z, previous)`, with the
  scores in the stream;
- norms, scales or shifts inside a branch (NormFormer, sub-LN, HybridNorm, Fixup): `inner_modules` fills named slots;
  `linear_bias = False` removes the biases;
- initialization (DeepNet, T-Fixup, B2T, sub-LN): `default_init_style`, `init_gain` for factors that depend on depth
  and place, and `embedding_gain`; parameters of the connection start as its constructor sets or draws them;
- options: a frozen dataclass `Options`, whose fields are declared by `option()` and set by `ln_mode_options`; they are
  in `self.options`;
- weight decay: `no_weight_decay` names the parameters that the paper exempts, on any module of the mode;
- constants or weights on the shortcut or the branch (Keel's alpha): `factors`, or `joining_scales`, for probes;
- a simpler mode that it contains (Admin and ResiDual: Post-LN; LayerScale: Pre-LN): `folds_into` with `factors` or
  `foldable_scales` to convert to it, `starts_from` with `starting_values` to convert from it, with equal outputs;
- a shortcut that is not the first member of the stream (HybridNorm, SiameseNorm, DLCL): `shortcut_at`, for probes.

Layers take and return only tensors, so gradient checkpointing, `torch.compile`, caches and beam reordering work for
any mode. What a connection computes is traced (`residual_hf.tracing`) for diagrams, for the C kernels of training, and
for those that decode on a CPU, if it consists of sums, factors, norms, and gates with one value per token.
"""

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from operator import attrgetter
from typing import Any, ClassVar

from torch import Tensor, nn

from .branch_warmup import BranchWarmupSettings
from .initialization import BareParameters
from .kernels import Kernel
from .options import NoOptions, suggestion
from .stack_config import StackConfig

Stream = tuple[Tensor, ...]

STACKS = ("encoder", "decoder")
SUBLAYERS = {
    "encoder": ("self_attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}


@dataclass(frozen=True)
class SublayerPlace:
    """Position of a sub-layer: `layer` counts from 0 in its stack, `position` from 0 in its layer."""

    stack: str  # "encoder" or "decoder"
    layer: int
    kind: str  # "self_attention", "cross_attention" or "feed_forward"
    position: int
    sublayers_per_layer: int
    num_layers: int  # depth of the stack

    @property
    def index(self) -> int:
        """Number of sub-layers before this one in its stack."""
        return self.layer * self.sublayers_per_layer + self.position

    @property
    def is_first_in_layer(self) -> bool:
        return self.position == 0

    @property
    def is_last_in_layer(self) -> bool:
        return self.position == self.sublayers_per_layer - 1

    @property
    def is_last_in_stack(self) -> bool:
        return self.is_last_in_layer and self.layer == self.num_layers - 1


def layer_places(config: StackConfig, layer: int) -> list[SublayerPlace]:
    """The places of the sub-layers of one layer, in the order in which they run."""
    kinds = config.kinds
    return [SublayerPlace(config.stack, layer, kind, i, len(kinds), config.layers) for i, kind in enumerate(kinds)]


class StreamBoundary(BareParameters):
    """Start and end of the stream of a stack. In this base class the stream is the hidden state alone."""

    no_weight_decay: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: StackConfig):
        super().__init__()
        self.options = config.options

    def begin(self, hidden_states: Tensor) -> Stream:
        """The stream before the first layer, from the embeddings (batch, length, d_model)."""
        return (hidden_states,)

    def end(self, stream: Stream) -> Tensor:
        """The output of the stack (batch, length, d_model), from the stream after the last layer."""
        return stream[0]

    def starting_values(self) -> dict[str, Tensor | float]:
        """Same as `ResidualConnection.starting_values`."""
        return {}


class Sublayer:
    """A branch as its connection calls it: f(z), then residual dropout.

    `factor` is that of branch warm-up. It is applied to f(z), or after the norm if the mode normalizes the output.
    """

    def __init__(self, branch: Callable[..., tuple[Tensor, ...]], dropout: nn.Dropout, factor: Tensor | None = None):
        self.branch = branch
        self.dropout = dropout
        self.factor = factor

    def __call__(self, hidden_states: Tensor, norm: nn.Module | None = None) -> Tensor:
        """The output of the branch, normalized by `norm` if the mode has a `norm_on_branch`."""
        if norm is None:
            return self.dropout(self.scaled(hidden_states))
        return self.warmed(norm(self.dropout(self.branch(hidden_states)[0])))

    def scaled(self, hidden_states: Tensor) -> Tensor:
        """The output of the branch before dropout."""
        return self.warmed(self.branch(hidden_states)[0])

    def warmed(self, output: Tensor) -> Tensor:
        return output if self.factor is None else output * self.factor

    def with_scores(
        self, hidden_states: Tensor, previous: Tensor | None, divisor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Apply an attention branch whose scores are added to `previous`, (batch, heads, queries, keys).

        Returns the branch output and the sum of the scores before mask and division. The softmax uses sum / divisor.
        Requires `attn_implementation="eager"`.
        """
        output, _, scores = self.branch(hidden_states, score_residual=(previous, divisor))
        return self.dropout(self.warmed(output)), scores


class ResidualConnection(BareParameters):
    """How one sub-layer reads and updates the residual stream.

    To add a mode, subclass, implement `forward` and register the class with `register_ln_mode`. `forward` gets the
    stream, a tuple of tensors (batch, length, d_model), and the branch, and returns the stream after it.
    """

    name: ClassVar[str]
    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    bibtex: ClassVar[str | tuple[str, ...]] = ()  # BibTeX entries, or keys of residual_hf/hub/papers.bib
    warmup: ClassVar[str] = "used"  # in the papers: "needed", "not needed", or "used" without further comment

    Options: ClassVar[type] = NoOptions
    Boundary: ClassVar[type[StreamBoundary]] = StreamBoundary
    default_norm_type: ClassVar[str] = "layer_norm"
    default_init_style: ClassVar[str] = "fairseq_main"
    linear_bias: ClassVar[bool] = True
    attention_implementations: ClassVar[tuple[str, ...] | None] = None  # None: any
    supports_layerdrop: ClassVar[bool] = True
    default_branch_warmup: ClassVar[BranchWarmupSettings | None] = None
    norm_on_branch: ClassVar[str | None] = None  # attribute of the norm in `sublayer(z, norm)`
    # location (see `probes.sites`) of what the branch is added to; None: at none, as with n streams
    shortcut_at: str | None = "input"
    # parameters of this module that the paper or its code exempts from weight decay; any module may declare them
    no_weight_decay: ClassVar[tuple[str, ...]] = ()

    # attributes that multiply the "shortcut" or the "branch" where they are added, or the "norm" before the branch
    factors: ClassVar[dict[str, str]] = {}
    folds_into: ClassVar[str | None] = None  # the simpler mode that `conversion.fold` turns this one into
    # the mode that this one equals at `starting_values()` with `starting_options`, for `conversion.change_ln_mode`; a
    # mode that folds needs only `starting_values`, since its scales can be moved into the adjacent weights
    starts_from: ClassVar[str | None] = None
    starting_options: ClassVar[dict[str, Any]] = {}

    kernel: Kernel | None = None  # of a run, see `kernels`
    # the first connection of the layer, in the others; a tuple, so that its parameters are registered only there
    first_in_layer: tuple[Any, ...] = ()

    def __init__(self, config: StackConfig, place: SublayerPlace):
        super().__init__()
        self.place = place
        self.options = config.options

    def forward(self, stream: Stream, sublayer: Sublayer) -> Stream:
        raise NotImplementedError(f"{type(self).__name__} must implement forward")

    def foldable_scales(self) -> dict[str, Tensor | float]:
        """Factors that `folds_into` lacks: on the `shortcut`, on the `branch`, or on the `norm` before it."""
        return self._factors() if self.folds_into else {}

    def joining_scales(self) -> dict[str, Tensor | float]:
        """Factors on the `shortcut` and on the `branch` where they are added, for probes."""
        return self.foldable_scales() or self._factors()

    def starting_values(self) -> dict[str, Tensor | float]:
        """Values of parameters, by name, at which this mode equals `starts_from` (or `folds_into`)."""
        return {name: 1.0 for name in self.factors.values() if self.folds_into and name in self._parameters}

    def _factors(self) -> dict[str, Tensor | float]:
        values = {of: attrgetter(name)(self) for of, name in self.factors.items()}
        return {of: value for of, value in values.items() if value is not None}

    @classmethod
    def init_gain(cls, config: StackConfig, place: SublayerPlace, role: str) -> float:
        """Factor on the initial scale of a weight: query, key, value, attention_output, ffn_in or ffn_out."""
        return 1.0

    @classmethod
    def embedding_gain(cls, config: StackConfig, table: str) -> float:
        """Factor on the initial scale of a token table: encoder, decoder, or output (an untied output projection)."""
        return 1.0

    @classmethod
    def inner_modules(cls, config: StackConfig, place: SublayerPlace) -> dict[str, nn.Module]:
        """Modules for the slots inside the branch.

        Attention: `query`, `key`, `value` (on (batch, heads, length, head_dim)), `heads` (before the output
        projection, (batch, length, d_model)), `output` (after it). Feed-forward: `pre_activation` and `inner` (before
        the activation and before the second linear map, (batch, length, ffn_dim)), `output`.
        """
        return {}


LN_MODES: dict[str, type[ResidualConnection]] = {}


def register_ln_mode(name: str) -> Callable[[type[ResidualConnection]], type[ResidualConnection]]:
    """Class decorator that makes a `ResidualConnection` available as `ln_mode=name`.

    The same class (module and name) may register again.

    Raises `ValueError` if another class has the name, or if `Options` is no dataclass.
    """

    def register(cls: type[ResidualConnection]) -> type[ResidualConnection]:
        held = LN_MODES.get(name)
        if held is not None and (held.__module__, held.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"ln_mode {name!r} is already registered by {held.__module__}.{held.__qualname__}")
        if not is_dataclass(cls.Options):
            raise ValueError(f"Options of ln_mode {name!r}: is no dataclass, must be one (@dataclass(frozen=True))")
        cls.name = name
        LN_MODES[name] = cls
        return cls

    return register


def is_registered(name: Any) -> bool:
    """Whether a mode has this name."""
    return name in LN_MODES


def get_ln_mode(name: Any) -> type[ResidualConnection]:
    """The class of a mode. Raises `ValueError` for an unknown name."""
    if name not in LN_MODES:
        close = suggestion(name, list(LN_MODES))
        raise ValueError(
            f"unknown ln_mode {name!r}{f'; {close}' if close else '.'} `residual-hf modes` lists all. A mode of your "
            "own needs the file that registers it (import it, or --import FILE) or, where a checkpoint has that file, "
            "trust_remote_code=True (--trust-remote-code)"
        )
    return LN_MODES[name]


def build_connections(config: StackConfig, layer: int) -> list[ResidualConnection]:
    """The connections of one layer, in the order of its sub-layers."""
    first, *others = (config.mode(config, place) for place in layer_places(config, layer))
    for connection in others:
        connection.first_in_layer = (first,)
    return [first, *others]


def slot(modules: nn.ModuleDict, name: str, tensor: Tensor) -> Tensor:
    """Apply the inner module of that name, or return the tensor unchanged if the slot is empty."""
    return modules[name](tensor) if name in modules else tensor
