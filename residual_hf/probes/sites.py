"""The places of measurements: the sub-layers of a model and the tensors at their joins.

A `Site` names a tensor by stack, layer (from 1), sub-layer and location. Locations of a `residual_hf` model:

- `input`, `output`: the hidden state before and after the sub-layer (first member of the stream);
- `branch.input`, `branch.output`: of the attention or feed-forward module, without dropout and addition;
- `NORM.input`, `NORM.output` for each norm of the connection, for example `norm.input`, and in the last sub-layer of a
  stack for those at its end: `boundary.norm.input` is ResiDual's dual stream.

Other encoder-decoders have the same locations as far as modules show them: `input` of the first and `output` of the
last sub-layer of a layer, and those of `branch` and `norm`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedModel

from residual_hf.base.errors import InputError
from residual_hf.model.branch_warmup import BranchWarmup
from residual_hf.model.connections import ResidualConnection
from residual_hf.model.layers import BRANCHES
from residual_hf.model.norms import NORM_TYPES
from residual_hf.model.stacks import ResidualStack

NORMS = set(NORM_TYPES.values())
FOREIGN_NAMES = (
    ("self_attention", ("self_attn",), "self_attn_layer_norm"),
    ("cross_attention", ("encoder_attn",), "encoder_attn_layer_norm"),
    ("feed_forward", ("fc1", "fc2"), "final_layer_norm"),
    ("self_attention", ("SelfAttention",), "layer_norm"),
    ("cross_attention", ("EncDecAttention",), "layer_norm"),
    ("feed_forward", ("DenseReluDense",), "layer_norm"),
)
"""Sub-layer, modules of its branch and norm: in a layer of BART, and in one of the parts of a layer of T5."""


@dataclass(frozen=True)
class Place:
    """A sub-layer of a stack. `layer` counts from 1."""

    stack: str
    layer: int
    sublayer: str

    @property
    def place(self) -> tuple[str, int, str]:
        return self.stack, self.layer, self.sublayer


@dataclass(frozen=True)
class Site(Place):
    """A tensor of shape (batch, length, d_model)."""

    location: str


@dataclass(frozen=True)
class SublayerModules(Place):
    """The modules of one sub-layer: those of its branch, its norms by name, and those around it."""

    branch: list[nn.Module]
    norms: dict[str, nn.Module]
    before: nn.Module | None  # its first input is the stream or hidden state before the sub-layer
    after: nn.Module | None  # its output is the one after the sub-layer
    warmup: BranchWarmup | None = None

    def site(self, location: str) -> Site:
        return Site(*self.place, location)

    def modules(self) -> dict[str, nn.Module]:
        """By location, the module whose input or output it is."""
        ends = {"input": self.before, "output": self.after}
        branch = {"branch.input": self.branch[0], "branch.output": self.branch[-1]}
        norms = {f"{name}.{side}": norm for name, norm in self.norms.items() for side in ("input", "output")}
        return {location: module for location, module in (ends | branch | norms).items() if module is not None}

    @property
    def joins(self) -> str:
        """The location of what is added to the shortcut: the output of the branch, or of the norm on it."""
        norm = getattr(self.before, "norm_on_branch", None)
        return f"{norm}.output" if norm in self.norms else "branch.output"

    @property
    def shortcut(self) -> str | None:
        """The location of what that is added to; None if the mode has no such tensor."""
        return getattr(self.before, "shortcut_at", "input")

    @torch.no_grad()
    def factor(self, of: str) -> Tensor | float:
        """The factor on the "shortcut" or the "branch" where they are added: Admin's omega, DeepNorm's alpha,
        LayerScale, branch warm-up."""
        scales = self.before.joining_scales() if isinstance(self.before, ResidualConnection) else {}
        warmup = self.warmup() if self.warmup is not None and of == "branch" else 1.0
        return scales.get(of, 1.0) * warmup

    def branch_parameters(self) -> Iterator[nn.Parameter]:
        """Weights and biases of the branch, without norms and gates."""
        for module in self.branch:
            yield from (p for name, p in module.named_parameters() if not name.startswith(("inner.", "norm")))


def stacks(model: Any) -> dict[str, Any]:
    """The stacks of a model by name.

    Raises `InputError` for a model that is neither of residual_hf nor an encoder-decoder of Transformers.
    """
    model = getattr(model, "module", model)  # DistributedDataParallel
    ours = {module.stack: module for module in model.modules() if isinstance(module, ResidualStack)}
    if not ours and not (isinstance(model, PreTrainedModel) and model.config.is_encoder_decoder):
        raise InputError(f"{type(model).__name__}: probes need an encoder-decoder or a model of residual_hf")
    return ours or {"encoder": model.get_encoder(), "decoder": model.get_decoder()}


def layers_attribute(stack: nn.Module) -> str:
    """The attribute with the layers of a stack. Raises `InputError` for one that is not named as in BART or T5."""
    for name in ("layers", "block"):
        if hasattr(stack, name):
            return name
    raise InputError(f"{type(stack).__name__}: has neither `layers` nor `block`")


def sublayers(model: nn.Module) -> list[SublayerModules]:
    """The sub-layers of a model, encoder first, in the order in which they run.

    Raises `InputError` for layers that are neither ours nor named as in BART or T5.
    """
    parts: list[SublayerModules] = []
    for name, stack in stacks(model).items():
        is_ours = isinstance(stack, ResidualStack)
        for number, layer in enumerate(getattr(stack, layers_attribute(stack)), start=1):
            parts += (_ours if is_ours else _foreign)(name, number, layer)
        if is_ours:
            parts[-1].norms.update(norms_of(stack.boundary, "boundary."))
    return parts


def norms_of(module: nn.Module, prefix: str = "") -> dict[str, nn.Module]:
    return {f"{prefix}{name}": part for name, part in module.named_modules() if type(part) in NORMS}


def _ours(stack: str, number: int, layer: Any) -> Iterator[SublayerModules]:
    for kind, name in BRANCHES.items():
        branch = getattr(layer, name, None)
        if branch is None:
            continue
        connection = getattr(layer, f"{name}_residual")
        norms = norms_of(connection)
        after = layer if connection.place.is_last_in_layer else connection  # a layer of a ResNet may leave out pixels
        yield SublayerModules(stack, number, kind, [branch], norms, connection, after, layer.branch_warmup)


def _foreign(stack: str, number: int, layer: Any) -> Iterator[SublayerModules]:
    parts = [
        (kind, [getattr(owner, name) for name in names], getattr(owner, norm))
        for owner in getattr(layer, "layer", [layer])
        for kind, names, norm in FOREIGN_NAMES
        if all(hasattr(owner, name) for name in (*names, norm))
    ]
    if not parts:
        raise InputError(f"{type(layer).__name__}: its sub-layers are not named as in BART or T5")
    for i, (kind, branch, norm) in enumerate(parts):
        before, after = layer if i == 0 else None, layer if i == len(parts) - 1 else None
        yield SublayerModules(stack, number, kind, branch, {"norm": norm}, before, after)


@contextmanager
def watch(
    model: nn.Module,
    forward: Callable[[Site, Tensor], None] | None = None,
    backward: Callable[[Site, Tensor], None] | None = None,
    locations: Callable[[str], bool] = lambda location: True,
) -> Iterator[None]:
    """Call `forward` with the detached tensor of each site in a forward pass, and `backward` with its gradient.

    With gradient checkpointing, `forward` sees the tensors of the first pass and, in the backward pass, those of the
    second, which are equal.
    """

    watched = WeakIdKeyDictionary()  # checkpointing runs a layer twice on the same input tensor

    def see(site: Site, tensor: Any) -> None:
        while isinstance(tensor, tuple):  # a stream, or the outputs of an attention module or layer
            tensor = tensor[0]
        if forward is not None:
            forward(site, tensor.detach())
        if backward is not None and tensor.requires_grad and site not in watched.setdefault(tensor, set()):
            watched[tensor].add(site)
            tensor.register_hook(partial(backward, site))

    with ExitStack() as hooks:
        for sublayer in sublayers(model):
            for location, module in sublayer.modules().items():
                if not locations(location):
                    continue
                site = sublayer.site(location)
                if location.endswith("input"):
                    hook = module.register_forward_pre_hook(
                        lambda module, args, kwargs, site=site: see(site, args or kwargs["hidden_states"]),
                        with_kwargs=True,
                    )
                else:
                    hook = module.register_forward_hook(lambda module, args, output, site=site: see(site, output))
                hooks.enter_context(hook)
        yield
