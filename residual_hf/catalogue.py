# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What modes there are, from the declarations of their classes."""

from __future__ import annotations

import inspect
from dataclasses import fields

from .model import catalogue as _  # noqa: F401  registers the modes
from .model.connections import LN_MODES, get_ln_mode
from .model.options import describe_option


def modes_table() -> str:
    """All registered modes as a Markdown table: name, equation, source, options."""
    rows = ["| `ln_mode` | equation | options | source |", "|---|---|---|---|"]
    for name in sorted(LN_MODES):
        mode = LN_MODES[name]
        options = ", ".join(f"`{f.name}`" for f in fields(mode.Options))
        rows.append(f"| `{name}` | {mode.equation} | {options} | {mode.source} |")
    return "\n".join(rows)


def describe_mode(name: str) -> str:
    """One mode in full. Raises `ValueError` with the list of modes for an unknown name."""
    mode = get_ln_mode(name)
    lines = [name, "", f"  {mode.equation}", f"  {mode.source}", "", inspect.cleandoc(mode.__doc__ or ""), ""]
    lines.append(f"norm_type {mode.default_norm_type}, init_style {mode.default_init_style} unless the config says")
    if mode.attention_implementations:
        lines.append(f"attn_implementation: {', '.join(mode.attention_implementations)} only")
    declared = fields(mode.Options)
    lines.append("ln_mode_options:" if declared else "no options")
    lines += [f"  {describe_option(f)}\n      {f.metadata['help']}" for f in declared]
    return "\n".join(lines)
