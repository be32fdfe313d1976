# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equally many cells as text, the first of them the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))
