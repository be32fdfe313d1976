"""Change the `ln_mode` of a trained model without changing its logits, in order to continue training.

Each mode declares the plainer mode that it contains: `starts_from` or `folds_into`, `starting_values`,
`foldable_scales` (the protocol is in `connections.py`). A model first returns to the plain mode, by folding or because
its parameters still have their starting values. Then the parameters that the new mode adds get their starting values,
and its constants (such as DeepNet's alpha) are divided out of the adjacent weights, the inverse of folding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from residual_hf.base.errors import InputError, input_errors
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES, STACKS, ResidualConnection, get_ln_mode
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.options import from_mapping

from .fold import as_double, config_with_modes, connections, copy_into, fold, move_scales, scales_tables

Mode = type[ResidualConnection]


@torch.no_grad()
def change_ln_mode(
    model: ResidualForConditionalGeneration,
    ln_mode: str,
    options: Mapping[str, Any] | None = None,
    *,
    stack: str | None = None,
) -> ResidualForConditionalGeneration:
    """Return a copy of a model with another `ln_mode`, with its `options`, and the same logits up to rounding.

    Parameters that the new mode adds start at values without effect (a dual norm of gain 0, scales of 1). A constant
    scale on the first shortcut of a stack is moved into its embeddings: the result then has separate tables and
    learned positions, as after `fold`. Norm type and initialization style do not change.

    Args:
        stack: `"encoder"` or `"decoder"` to change one stack only; a branch warm-up that is not finished is folded in
            both. None changes both.

    Raises `InputError` for a mode that cannot represent the function of the model, with those that can.
    """
    if not model.config.is_encoder_decoder:
        raise InputError(f"model: a {type(model).__name__} given, must be an encoder-decoder")
    config, plain = model.config, model
    with input_errors("", ValueError):  # also from folding: a scale that is 0 or cannot be moved
        mode = get_ln_mode(ln_mode)
        wanted = vars(from_mapping(mode.Options, options or {}, f"options of ln_mode {ln_mode!r}: "))
        changed = [
            name
            for name in (STACKS if stack is None else (stack,))
            if (config.of(name).ln_mode, vars(config.of(name).options)) != (ln_mode, wanted)
        ]
        ways = {name: way_to(model, name, mode) for name in changed}
        if changed:
            check_options(mode, wanted)
        if folded := [name for name, way in ways.items() if way == "fold"]:
            plain = fold(plain, folded)
        if dropped := [name for name, way in ways.items() if way == "drop"]:
            plain = start(plain, base_of(mode), {}, dropped)
        return start(plain, ln_mode, wanted, changed).to(model.dtype).train(model.training)


def base_of(mode: Mode) -> str:
    """The plainer mode that a mode contains, or its own name if it contains none."""
    return mode.starts_from or mode.folds_into or mode.name


def modes_from(name: str) -> list[str]:
    """The modes that a model of mode `name` can be changed to, some of them only with certain options."""
    reached = {name, get_ln_mode(name).folds_into}
    return sorted(other for other, mode in LN_MODES.items() if other != name and base_of(mode) in reached)


def way_to(model: ResidualForConditionalGeneration, stack: str, mode: Mode) -> str:
    """How a stack reaches the plain mode that `mode` contains: `"keep"` it, `"fold"` it, or `"drop"` parameters that
    still have their starting values.
    """
    base, present = base_of(mode), model.config.of(stack).mode
    options = vars(model.config.of(stack).options)
    if present.name == base and options == vars(present.Options()):
        return "keep"
    if present.folds_into == base:
        return "fold"
    if present.starts_from == base and is_at_start(model, stack):
        return "drop"
    given = f" with {options}" if options else ""
    raise InputError(
        f"ln_mode: the {stack} is {present.name!r}{given} ({present.equation}), which {mode.name!r} ({mode.equation}) "
        "cannot represent with any values of its parameters, so that the logits would change. Modes that "
        f"contain {present.name!r}: {', '.join(modes_from(present.name)) or 'none'}"
    )


def check_options(mode: Mode, wanted: Mapping[str, Any]) -> None:
    needed = vars(mode.Options()) if base_of(mode) == mode.name else mode.starting_options
    wrong = {name: value for name, value in needed.items() if wanted[name] != value}
    if wrong:
        present = ", ".join(f"{name}={wanted[name]!r}" for name in wrong)
        allowed = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
        raise InputError(
            f"options: ln_mode {mode.name!r} ({mode.equation}) keeps the logits with {allowed}, not with {present}"
        )


def is_at_start(model: ResidualForConditionalGeneration, stack: str) -> bool:
    """Whether the parameters that the mode of a stack adds to its plainer mode still have no effect."""
    mode, options = model.config.of(stack).mode, vars(model.config.of(stack).options)
    return all(options[name] == value for name, value in mode.starting_options.items()) and all(
        torch.equal(parameter, torch.as_tensor(value).to(parameter).expand_as(parameter))
        for parameter, value in starting_parameters(model, stack)
    )


def starting_parameters(model: ResidualForConditionalGeneration, stack: str) -> list[tuple[Tensor, Tensor | float]]:
    """The parameters of a stack that have a starting value, each with this value."""
    inner = model.model.get_submodule(stack)
    values = [(module, module.starting_values()) for module in (*connections(inner), inner.boundary)]
    return [(module.get_parameter(name), value) for module, own in values for name, value in own.items()]


def start(
    model: ResidualForConditionalGeneration, ln_mode: str, options: Mapping[str, Any], stacks: Sequence[str]
) -> ResidualForConditionalGeneration:
    """A copy in fp64 with `stacks` changed from a plain mode to one that contains it, or back to the plain mode."""
    config: ResidualConfig = config_with_modes(model.config, dict.fromkeys(stacks, (ln_mode, options)))
    started = copy_into(model, config, separate=False)
    set_starting_values(started, stacks)
    inverse: dict[str, list[dict[str, Tensor | float]]] = {}
    for name in stacks:
        factors = [connection.foldable_scales() for connection in connections(started.model.get_submodule(name))]
        inverse[name] = [{key: 1 / as_double(scale) for key, scale in own.items()} for own in factors]
    if scales_tables(config, inverse):
        started = copy_into(model, config, separate=True)
        set_starting_values(started, stacks)
    for name in stacks:
        move_scales(started.model.get_submodule(name), inverse[name])
    return started


def set_starting_values(model: ResidualForConditionalGeneration, stacks: Sequence[str]) -> None:
    for name in stacks:
        for parameter, value in starting_parameters(model, name):
            parameter.copy_(torch.as_tensor(value))
