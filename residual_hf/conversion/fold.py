"""Fold the scales of residual connections into the adjacent weights, which leaves a plain mode.

For the input b_i = omega_i * x + f_i(x) of a norm: multiply the output of the norm (or embedding) that computes x by
omega_i, and divide the columns of every matrix of sub-layer i that reads x by omega_i. Then b_i does not change, and
neither do its mean and variance. Factors on a branch are multiplied into the rows of its last matrix. Both are exact
in real arithmetic, in training mode too; only intermediate hidden states are scaled.

Source: Liu et al. 2020 (Admin), appendix C. Its text divides only the query of cross-attention; its formula also
divides the values, which is wrong.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from residual_hf.base.errors import InputError
from residual_hf.model.branch_warmup import branch_warmups
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES, ResidualConnection, SublayerPlace
from residual_hf.model.embeddings import SinusoidalPositions
from residual_hf.model.layers import BRANCHES
from residual_hf.model.modeling_speech import SpeechFrontEnd
from residual_hf.model.stacks import ResidualPreTrainedModel, ResidualStack

Model = TypeVar("Model", bound=ResidualPreTrainedModel)  # with an output: of an encoder-decoder, or of a stack alone
Scale = Tensor | float
READERS = {
    "self_attention": ("q_proj", "k_proj", "v_proj"),
    "cross_attention": ("q_proj",),
    "feed_forward": ("fc1", "gate"),
}
WRITERS = {"self_attention": "out_proj", "cross_attention": "out_proj", "feed_forward": "fc2"}


@torch.no_grad()
def fold(model: Model, stacks: Sequence[str] | None = None) -> Model:
    """Return a plain model (Post-LN, Pre-LN or norm-free) with the same logits; `model` is not modified.

    Stacks are folded independently; one that is plain already or not in `stacks` (None: all) does not change. A scale
    on the shortcut of the first sub-layer is multiplied into the norm of the embeddings or, without one, into the
    token table and the positions of the stack; the result then has separate tables and learned positions. Folded
    models are meant for inference: an optimizer would train the folded weights differently. A branch warm-up that is
    not finished is folded in all stacks, see `fold_branch_warmup`.

    Raises:
        ValueError: a mode cannot be folded, a norm has no gain to multiply a scale into, a scale is 0, or the model is
            one of images.
    """
    if model.main_input_name == "pixel_values":
        raise ValueError(f"{type(model).__name__} cannot be folded: only models of text")
    stacks = model.config.stacks if stacks is None else stacks
    model = fold_branch_warmup(model)
    plain = {name: plain_mode(model.config, name) for name in stacks}
    scales = {name: [c.foldable_scales() for c in connections(model.model.get_submodule(name))] for name in stacks}
    changed = [name for name, mode in plain.items() if model.config.of(name).ln_mode != mode]
    config = config_with_modes(model.config, {name: (plain[name], {}) for name in changed})
    folded = copy_into(model, config, separate=scales_tables(model.config, scales))
    for name in stacks:
        move_scales(folded.model.get_submodule(name), scales[name])
    return folded.to(model.dtype).train(model.training)


@torch.no_grad()
def fold_branch_warmup(model: Model) -> Model:
    """A model without branch warm-up and with the same logits; `model` itself if the factors of its branches are 1.

    The factors are multiplied into the last matrix of each branch, or into the norm after it.

    Raises `ValueError` for a norm after a branch that has no gain to multiply a factor into.
    """
    if all(warmup.is_finished for warmup in branch_warmups(model)):
        return model
    modes = {own.stack: own.mode for own in model.config.stack_configs}
    warming = {name: mode for name, mode in modes.items() if mode.default_branch_warmup is not None}
    config = config_with_modes(model.config, {name: (str(mode.folds_into), {}) for name, mode in warming.items()})
    config.branch_warmup, config.admin_profile = None, model.config.admin_profile
    folded = copy_into(model, config, separate=False)
    for name in modes:
        layers, scaled_layers = (m.model.get_submodule(name).layers for m in (model, folded))
        for layer, scaled in zip(layers, scaled_layers, strict=True):
            factor = as_double(1.0 if layer.branch_warmup is None else layer.branch_warmup()).to(model.device)
            for connection in connections(scaled):
                scale_branch(connection, getattr(scaled, BRANCHES[connection.place.kind]), factor)
    return folded.to(model.dtype).train(model.training)


def plain_mode(config: ResidualConfig, stack: str) -> str:
    """The mode that a stack folds into, or its own mode if that is plain."""
    mode = config.of(stack).mode
    if mode.name in {other.folds_into for other in LN_MODES.values()}:
        return mode.name
    if mode.folds_into is None:
        raise ValueError(
            f"ln_mode {mode.name!r} ({mode.equation}) cannot be folded: it differs from every plain mode by more than "
            f"scales of weights. Modes that fold: {', '.join(foldable_modes())}."
        )
    return mode.folds_into


def foldable_modes() -> list[str]:
    """The modes that `fold` accepts."""
    return sorted(name for name, mode in LN_MODES.items() if mode.folds_into is not None)


def config_with_modes(config: ResidualConfig, changed: Mapping[str, tuple[str, Mapping[str, Any]]]) -> ResidualConfig:
    """A copy of a config in which some stacks have another mode and options."""
    present = {own.stack: (own.ln_mode, vars(own.options)) for own in config.stack_configs}
    of_stacks = [*copy.deepcopy({**present, **changed}).values()]
    (encoder, encoder_options), (decoder, decoder_options) = of_stacks[0], of_stacks[-1]
    config = copy.deepcopy(config)
    config.ln_mode, config.encoder_ln_mode = encoder, None
    config.decoder_ln_mode = decoder if decoder != encoder else None
    config.ln_mode_options = encoder_options if encoder == decoder and encoder_options == decoder_options else {}
    config.admin_profile = None
    if not config.is_encoder_decoder:
        setattr(config, f"{config.stacks[0]}_ln_mode_options", None)
        return config
    shared = config.ln_mode_options
    config.encoder_ln_mode_options = {} if encoder_options == shared else encoder_options
    config.decoder_ln_mode_options = {} if decoder_options == shared else decoder_options
    return config


def scales_tables(config: ResidualConfig, scales: dict[str, list[dict[str, Scale]]]) -> bool:
    """Whether the scale of a first shortcut is multiplied into the embeddings; a norm on them takes it otherwise."""
    needed = not config.embedding_norm and not all(is_one(stack[0].get("shortcut", 1.0)) for stack in scales.values())
    for field, kind in (("fix_norm", "normalized"), ("adaptive_cutoffs", "adaptive")):
        if needed and getattr(config, field):
            raise ValueError(f"{field}: a scale on the first shortcut cannot be moved into {kind} token embeddings")
    return needed


def copy_into(model: Model, config: ResidualConfig, *, separate: bool) -> Model:
    """A model in fp64 of another config with the weights that both have; parameters that only it has are initialized.

    `separate` gives each stack and the output their own tables, and learned in place of sinusoidal positions. A branch
    warm-up that only it has is finished.
    """
    if separate:
        config.tie_word_embeddings = False
        config.share_encoder_decoder_embeddings = not config.is_encoder_decoder
        if config.position_embedding_type.startswith("sinusoidal"):
            config.position_embedding_type = "learned"
    made = type(model)._from_config(config, attn_implementation=model.config._attn_implementation)
    if made.can_generate():
        made.generation_config = copy.deepcopy(model.generation_config)
    made.to(model.device).double()  # before copying, so that weights in fp64 keep their precision
    for warmup in branch_warmups(made):
        warmup.updates.fill_(warmup.duration)
    own = made.state_dict()
    refuse_untied(model, made)
    made.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if name in own}, strict=False)
    for name in config.stacks:
        positions = model.model.get_submodule(name).embed_positions
        if separate and isinstance(positions, SinusoidalPositions):
            made.model.get_submodule(name).embed_positions.weight.copy_(positions.table)
    return made


def refuse_untied(model: nn.Module, made: Any) -> None:
    """Raise `InputError` if a model has different weights where another one, for the same weights, has one table."""
    weights = model.state_dict()
    for name, other in made.all_tied_weights_keys.items():
        if name in weights and other in weights and not torch.equal(weights[name], weights[other]):
            field = "tie_word_embeddings" if name.startswith("lm_head") else "share_encoder_decoder_embeddings"
            raise InputError(
                f"{name} differs from {other}, though by the config of the model they are one table, as after an "
                f"adapter with modules_to_save was merged: set {field} to false in its config.json, and delete "
                "checksums.json"
            )


def connections(stack: nn.Module) -> list[ResidualConnection]:
    """The connections of a stack in the order of execution."""
    return [module for module in stack.modules() if isinstance(module, ResidualConnection)]


def move_scales(stack: ResidualStack, scales: list[dict[str, Scale]]) -> None:
    """Multiply the `scales` of every connection of a stack into the adjacent weights."""
    # the norm that computes the input of the current sub-layer; None for embeddings without a norm
    norm = None if isinstance(stack.embed_norm, nn.Identity) else stack.embed_norm
    device = next(stack.parameters()).device
    for connection, factors in zip(connections(stack), scales, strict=True):
        place, tensors = connection.place, {name: as_double(scale).to(device) for name, scale in factors.items()}
        sublayer = getattr(stack.layers[place.layer], BRANCHES[place.kind])
        if "shortcut" in tensors:
            scale_shortcut(tensors["shortcut"], norm, sublayer, stack, place)
        if "branch" in tensors:
            scale_branch(connection, sublayer, tensors["branch"])
        if "norm" in tensors:
            scale_norm(connection.get_submodule("norm"), tensors["norm"])
        norm = getattr(connection, "norm", None)


def scale_shortcut(
    scale: Tensor, norm: nn.Module | None, sublayer: nn.Module, stack: ResidualStack, place: SublayerPlace
) -> None:
    """Multiply the shortcut x by `scale` where x is computed, and divide the matrices that read x by it."""
    if is_one(scale):
        return
    if not scale.all():
        raise ValueError(f"{place.stack} layer {place.layer}, {place.kind}: a shortcut scale of 0 cannot be folded")
    if norm is not None:
        scale_norm(norm, scale)
    else:
        if isinstance(stack.embed_tokens, SpeechFrontEnd):
            last: Any = stack.embed_tokens.convs[-1]  # whose first half is linear in its GLU
            last.weight[: last.out_channels // 2].mul_(scale.view(-1, 1, 1))
            last.bias[: last.out_channels // 2].mul_(scale)
        else:
            stack.embed_tokens.weight.mul_(scale)
        if stack.embed_positions is not None:
            stack.embed_positions.get_parameter("weight").mul_(scale)
    for name in READERS[place.kind]:
        if (reader := getattr(sublayer, name)) is not None:
            reader.weight.div_(scale)


def scale_branch(connection: ResidualConnection, sublayer: Any, scale: Tensor) -> None:
    """Multiply the output of a branch by `scale`: in the norm on it, if there is one, or in its last matrix."""
    if connection.norm_on_branch is not None:
        scale_norm(connection.get_submodule(connection.norm_on_branch), scale)
    elif "output" in sublayer.inner:
        scale_norm(list(sublayer.inner["output"].modules())[-1], scale)
    else:
        writer = getattr(sublayer, WRITERS[connection.place.kind])
        writer.weight.mul_(scale.unsqueeze(-1))
        if writer.bias is not None:
            writer.bias.mul_(scale)


def scale_norm(norm: nn.Module, scale: Tensor) -> None:
    gain, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if gain is None or (gain.numel() == 1 and scale.numel() > 1):
        raise ValueError(f"{type(norm).__name__} has no gain per dimension to multiply a scale into")
    gain.mul_(scale)
    if bias is not None:
        bias.mul_(scale)


def as_double(scale: Scale) -> Tensor:
    return torch.atleast_1d(torch.as_tensor(scale, dtype=torch.float64).detach())


def is_one(scale: Scale) -> bool:
    return bool(as_double(scale).eq(1.0).all())
