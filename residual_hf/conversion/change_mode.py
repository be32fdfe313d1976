# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Another `ln_mode` for a trained model, where its logits stay what they are: to train on from there.

A mode says itself which plainer mode it contains: `starts_from` or `folds_into`, `starting_values`, `foldable_scales`
(the protocol is in `connections.py`). A model goes back to the plain mode by folding, or because it is still at the
starting values, and from there to the new mode: its own parameters get their starting values, and what is a constant
of it (DeepNet's alpha) is divided out of the weights beside it, which is folding backwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from residual_hf.conversion.fold import (
    STACKS,
    as_double,
    config_with_modes,
    connections,
    copy_into,
    fold,
    move_scales,
    scales_tables,
)
from residual_hf.errors import InputError
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES, ResidualConnection, get_ln_mode
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.options import from_mapping

Mode = type[ResidualConnection]


@torch.no_grad()
def change_ln_mode(
    model: ResidualForConditionalGeneration,
    ln_mode: str,
    options: Mapping[str, Any] | None = None,
    *,
    stack: str | None = None,
) -> ResidualForConditionalGeneration:
    """A model with another `ln_mode` and, to rounding, the same logits; `model` stays as it is.

    What the new mode adds starts where it changes nothing (a dual norm of gain 0, scales of 1) and is trained from
    there. A constant scale on the first shortcut of a stack goes into its embeddings: the result then has separate
    tables and learned positions, as after `fold`. Norm type and initialisation style stay those of the model.

    Args:
        options: of the new mode; what is not given has its default.
        stack: "encoder" or "decoder", to change one and keep the other.

    Raises:
        InputError: an unknown mode or option, or a mode that does not contain the function of the model; the message
            says which modes do.
    """
    if stack not in (None, *STACKS):
        raise InputError(f"stack: {stack!r} given, allowed are 'encoder', 'decoder', or None for both")
    try:
        mode = get_ln_mode(ln_mode)
        wanted = vars(from_mapping(mode.Options, options or {}, f"options of ln_mode {ln_mode!r}: "))
    except ValueError as error:
        raise InputError(str(error)) from error
    config = model.config
    changed = [
        name
        for name in (STACKS if stack is None else (stack,))
        if (config.stack_ln_mode(name), vars(config.ln_options(name))) != (ln_mode, wanted)
    ]
    plain = model
    try:
        ways = {name: way_to(model, name, mode) for name in changed}
        if changed:
            check_options(mode, wanted)
        if folded := [name for name, way in ways.items() if way == "fold"]:
            plain = fold(plain, folded)
        if dropped := [name for name, way in ways.items() if way == "drop"]:
            plain = start(plain, base_of(mode), {}, dropped)
        return start(plain, ln_mode, wanted, changed).to(model.dtype).train(model.training)
    except ValueError as error:  # also from folding: a scale that has no place, or is 0
        raise InputError(str(error)) from error


def base_of(mode: Mode) -> str:
    """The plainer mode that a mode contains; its own name where it contains none."""
    return mode.starts_from or mode.folds_into or mode.name


def modes_from(name: str) -> list[str]:
    """The modes that a model of this mode can be changed to, some only with certain options."""
    reached = {name, get_ln_mode(name).folds_into}
    return sorted(other for other, mode in LN_MODES.items() if other != name and base_of(mode) in reached)


def way_to(model: ResidualForConditionalGeneration, stack: str, mode: Mode) -> str:
    """How a stack gets to the plain mode that `mode` contains: "keep", "fold", or "drop" what is at its start."""
    base, present = base_of(mode), get_ln_mode(model.config.stack_ln_mode(stack))
    options = vars(model.config.ln_options(stack))
    if present.name == base and options == vars(present.Options()):
        return "keep"
    if present.folds_into == base:
        return "fold"
    if present.starts_from == base and is_at_start(model, stack):
        return "drop"
    given = f" with {options}" if options else ""
    raise InputError(
        f"ln_mode: the {stack} is {present.name!r}{given} ({present.equation}), which {mode.name!r} ({mode.equation}) "
        "does not become whatever the values of its parameters: there is no start with equal logits. Modes that "
        f"contain {present.name!r}: {', '.join(modes_from(present.name)) or 'none'}"
    )


def check_options(mode: Mode, wanted: dict[str, Any]) -> None:
    needed = vars(mode.Options()) if base_of(mode) == mode.name else mode.starting_options
    wrong = {name: value for name, value in needed.items() if wanted[name] != value}
    if wrong:
        given = ", ".join(f"{name}={wanted[name]!r}" for name in wrong)
        allowed = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
        raise InputError(
            f"options: {given} given, but ln_mode {mode.name!r} ({mode.equation}) has a start with equal logits only "
            f"with {allowed}"
        )


def is_at_start(model: ResidualForConditionalGeneration, stack: str) -> bool:
    """Is what the mode of a stack adds to its plainer mode still without effect?"""
    mode, options = get_ln_mode(model.config.stack_ln_mode(stack)), vars(model.config.ln_options(stack))
    return all(options[name] == value for name, value in mode.starting_options.items()) and all(
        torch.equal(parameter, torch.as_tensor(value).to(parameter).expand_as(parameter))
        for parameter, value in starting_parameters(model, stack)
    )


def starting_parameters(model: ResidualForConditionalGeneration, stack: str) -> list[tuple[Tensor, Tensor | float]]:
    """The parameters of a stack that have a starting value, with it."""
    inner = model.model.get_submodule(stack)
    values = [(module, module.starting_values()) for module in (*connections(inner), inner.boundary)]
    return [(module.get_parameter(name), value) for module, own in values for name, value in own.items()]


def start(
    model: ResidualForConditionalGeneration, ln_mode: str, options: dict[str, Any], stacks: Sequence[str]
) -> ResidualForConditionalGeneration:
    """A copy in fp64 whose `stacks` go from a plain mode to one that contains it, or back by leaving out the rest."""
    config: ResidualConfig = config_with_modes(model.config, dict.fromkeys(stacks, (ln_mode, options)))
    started = copy_into(model, config, separate=False)
    set_starting_values(started, stacks)
    scales = {
        name: [inverse(c.foldable_scales()) for c in connections(started.model.get_submodule(name))] for name in stacks
    }
    if scales_tables(config, scales):
        started = copy_into(model, config, separate=True)
        set_starting_values(started, stacks)
    for name in stacks:
        move_scales(started.model.get_submodule(name), scales[name])
    return started


def set_starting_values(model: ResidualForConditionalGeneration, stacks: Sequence[str]) -> None:
    for name in stacks:
        for parameter, value in starting_parameters(model, name):
            parameter.copy_(torch.as_tensor(value))


def inverse(scales: dict[str, Tensor | float]) -> dict[str, Tensor | float]:
    return {name: 1 / as_double(scale) for name, scale in scales.items()}
