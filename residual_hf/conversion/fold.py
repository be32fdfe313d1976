# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Folding: scales of the residual connections moved into the weights beside them, so that a plain mode remains.

With b_i = omega_i * x + f_i(x) in front of a norm, let the norm (or the embedding) that made x make omega_i * x, and
divide the columns of every matrix of sub-layer i that reads x by omega_i: b_i stays what it was, and with it its mean,
variance and eps. Factors on a branch go into the rows of its last matrix. Both are exact in real arithmetic, for
training mode too; only hidden states in between come out scaled.

Source: Liu et al. 2020 (Admin), appendix C, as corrected by the authors' code (cross-attention: the query only).
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES, ResidualConnection, get_ln_mode
from residual_hf.model.embeddings import SinusoidalPositions
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

Scale = Tensor | float
READERS = {"self_attention": ("q_proj", "k_proj", "v_proj"), "cross_attention": ("q_proj",), "feed_forward": ("fc1",)}
WRITERS = {"self_attention": "out_proj", "cross_attention": "out_proj", "feed_forward": "fc2"}
SUBLAYERS = {"self_attention": "self_attn", "cross_attention": "encoder_attn", "feed_forward": "ffn"}


@torch.no_grad()
def fold(model: ResidualForConditionalGeneration) -> ResidualForConditionalGeneration:
    """A plain model (Post-LN, Pre-LN or norm-free) with the same logits; `model` stays as it is.

    Each stack folds by itself; one that is plain already is kept. A scale on the shortcut of the first sub-layer goes
    into the token table and the positions of its stack: the result then has separate tables and learned positions,
    which hold the same numbers times that scale. Convert for inference: an optimiser would train the folded weights
    differently.

    Raises `ValueError` where a mode cannot be folded, a norm has no gain to take a scale, or a scale is 0.
    """
    stacks = {"encoder": model.model.encoder, "decoder": model.model.decoder}
    plain = {name: plain_mode(model.config, name) for name in stacks}
    scaled_inputs = [stack for stack in stacks.values() if not is_one(connections(stack)[0].foldable_scales())]
    if scaled_inputs and model.config.fix_norm:
        raise ValueError("fix_norm: a scale on the first shortcut has no place, the token table gives directions only")
    folded = build_plain(model, plain, separate=bool(scaled_inputs))
    folded.double()  # before anything is copied: a model in fp64 keeps all its digits
    own = folded.state_dict()
    weights = {name: tensor for name, tensor in model.state_dict().items() if name in own}
    folded.load_state_dict(weights, strict=False)
    for name, stack in stacks.items():
        target = folded.model.get_submodule(name)
        if isinstance(stack.embed_positions, SinusoidalPositions) and scaled_inputs:
            target.embed_positions.weight.copy_(stack.embed_positions.table)
        fold_stack(stack, target)
    return folded.to(model.dtype).train(model.training)


def plain_mode(config: ResidualConfig, stack: str) -> str:
    """The mode that a stack folds into; its own where that is plain."""
    mode = get_ln_mode(config.stack_ln_mode(stack))
    if mode.name in {other.folds_into for other in LN_MODES.values()}:
        return mode.name
    if mode.folds_into is None:
        raise ValueError(
            f"ln_mode {mode.name!r} ({mode.equation}) cannot be folded: it computes what no plain mode does, there is "
            f"no mere scale that the weights could take over. Modes that fold: {', '.join(foldable_modes())}."
        )
    return mode.folds_into


def foldable_modes() -> list[str]:
    return sorted(name for name, mode in LN_MODES.items() if mode.folds_into is not None)


def build_plain(
    model: ResidualForConditionalGeneration, modes: dict[str, str], *, separate: bool
) -> ResidualForConditionalGeneration:
    """An uninitialised model with the plain modes, of the same sizes and special tokens."""
    config = copy.deepcopy(model.config)
    kept = {
        name: config.ln_options(name) for name in modes if config.stack_ln_mode(name) == modes[name]
    }  # options of a stack that is plain already
    config.ln_mode, config.encoder_ln_mode = modes["encoder"], None
    config.decoder_ln_mode = modes["decoder"] if modes["decoder"] != modes["encoder"] else None
    config.ln_mode_options = {}
    config.encoder_ln_mode_options, config.decoder_ln_mode_options = (
        vars(kept[name]) if name in kept else {} for name in ("encoder", "decoder")
    )
    config.admin_profile = None
    if separate:
        config.share_encoder_decoder_embeddings = config.tie_word_embeddings = False
        if config.position_embedding_type == "sinusoidal":
            config.position_embedding_type = "learned"
    attention = model.config._attn_implementation
    folded = type(model)._from_config(config, attn_implementation=attention)
    folded.generation_config = copy.deepcopy(model.generation_config)
    return folded


def connections(stack: nn.Module) -> list[ResidualConnection]:
    """The connections of a stack in the order in which they run."""
    return [module for module in stack.modules() if isinstance(module, ResidualConnection)]


def fold_stack(stack: nn.Module, target: nn.Module) -> None:
    norm: nn.Module | None = None  # which made the input of the sub-layer at hand
    for old, new in zip(connections(stack), connections(target), strict=True):
        place, scales = old.place, {name: as_double(scale) for name, scale in old.foldable_scales().items()}
        sublayer = getattr(target.layers[place.layer], SUBLAYERS[place.kind])
        if "shortcut" in scales:
            scale_shortcut(scales["shortcut"], norm, sublayer, target, place)
        if "branch" in scales:
            writer = getattr(sublayer, WRITERS[place.kind])
            writer.weight.mul_(scales["branch"].unsqueeze(-1))
            writer.bias.mul_(scales["branch"])
        if "norm" in scales:
            scale_norm(new.norm, scales["norm"])
        norm = getattr(new, "norm", None)


def scale_shortcut(scale: Tensor, norm: nn.Module | None, sublayer: nn.Module, stack: nn.Module, place) -> None:
    """What made x makes scale * x, and what reads it divides by scale."""
    if is_one({"shortcut": scale}):
        return
    if not scale.all():
        raise ValueError(f"{place.stack} layer {place.layer}, {place.kind}: a shortcut of scale 0 cannot be folded")
    if norm is not None:
        scale_norm(norm, scale)
    else:
        stack.embed_tokens.weight.mul_(scale)
        if stack.embed_positions is not None:
            stack.embed_positions.weight.mul_(scale)
    for name in READERS[place.kind]:
        getattr(sublayer, name).weight.div_(scale)


def scale_norm(norm: nn.Module, scale: Tensor) -> None:
    gain = getattr(norm, "weight", None)
    if gain is None or (gain.numel() == 1 and scale.numel() > 1):
        raise ValueError(f"{type(norm).__name__} has no gain per dimension that could take over a scale")
    gain.mul_(scale)
    if getattr(norm, "bias", None) is not None:
        norm.bias.mul_(scale)


def as_double(scale: Scale) -> Tensor:
    return torch.atleast_1d(torch.as_tensor(scale, dtype=torch.float64).detach())


def is_one(scales: dict[str, Scale]) -> bool:
    """Is the shortcut unscaled?"""
    return bool(as_double(scales.get("shortcut", 1.0)).eq(1.0).all())
