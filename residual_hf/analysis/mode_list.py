"""The list of modes, from the declarations of their classes."""

import inspect
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields

from torch import nn

from residual_hf.base.tables import as_markdown
from residual_hf.model import catalogue as _  # noqa: F401  registers the modes
from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.connections import LN_MODES, ResidualConnection, build_connections, get_ln_mode
from residual_hf.model.options import describe_option

COLUMNS = ("`ln_mode`", "equation", "parameters", "folds into", "warm-up", "options", "source")


def modes_table() -> str:
    """All registered modes as a Markdown table.

    Parameters are those of connections and norms of 6+6 layers of width 512; the branches have the same in each mode.
    """
    rows = [COLUMNS]
    for name in sorted(LN_MODES):
        mode = LN_MODES[name]
        folded = f"`{mode.folds_into}`" if mode.folds_into else ""
        options = ", ".join(f"`{f.name}`" for f in fields(mode.Options))
        count = f"{connection_parameters(name):,}"
        rows.append((f"`{name}`", f"`{mode.equation}`", count, folded, warmup(mode), options, mode.source))
    return as_markdown(rows)


def warmup(mode: type[ResidualConnection]) -> str:
    """Learning-rate warm-up in the paper of a mode, empty for a mode of a user that does not say.

    A class derived from another has its own paper.
    """
    is_own = mode.__module__.startswith(ResidualConnection.__module__.rpartition(".")[0])
    return vars(mode).get("warmup", ResidualConnection.warmup if is_own else "")


def connection_parameters(name: str) -> int:
    """Parameters that a mode adds to the sub-layers, in 6+6 layers of width 512."""
    config = ResidualConfig(ln_mode=name, encoder_layers=6, decoder_layers=6, d_model=512)
    modules: list[nn.Module] = []
    for own in config.stack_configs:
        modules.append(own.mode.Boundary(own))
        for layer in range(6):
            for connection in build_connections(own, layer):
                inner = connection.inner_modules(own, connection.place)
                modules += [connection, *inner.values()]
    return sum(p.numel() for module in modules for p in module.parameters())


def describe_mode(name: str, exports: Mapping[str, str]) -> str:
    """One mode in full. Raises `ValueError` with the list of modes for an unknown name.

    `exports` maps the formats that the mode can be exported to, to the mode that is written.
    """
    mode = get_ln_mode(name)
    lines = [name, "", f"  {mode.equation}", f"  {mode.source}", "", inspect.cleandoc(mode.__doc__ or ""), ""]
    with suppress(OSError, TypeError):  # of a class without a file
        lines += [f"in {inspect.getsourcefile(mode)}, line {inspect.getsourcelines(mode)[1]}", ""]
    norm, style = mode.default_norm_type, mode.default_init_style
    lines.append(f"norm_type {norm}, init_style {style} unless the config says otherwise")
    lines.append(f"{connection_parameters(name):,} parameters beyond the sub-layers, in 6+6 layers of width 512")
    if warmup(mode):
        lines.append(f"learning-rate warm-up: {warmup(mode)} in the paper")
    if mode.folds_into:
        lines.append(f"folds into {mode.folds_into} (residual_hf.conversion.fold)")
    exported = (f"{to}{'' if plain == name else f' (as {plain})'}" for to, plain in exports.items())
    lines.append(f"exports to: {', '.join(exported) or 'none'} (residual-hf export)")
    if mode.attention_implementations:
        lines.append(f"attn_implementation: {', '.join(mode.attention_implementations)} only")
    declared = fields(mode.Options)
    lines.append("ln_mode_options:" if declared else "no options")
    lines += [f"  {describe_option(f)}\n      {f.metadata.get('help', '')}" for f in declared]
    return "\n".join(lines)
