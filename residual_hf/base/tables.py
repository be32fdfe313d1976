"""Numbers and tables as text."""

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


def figure(value: float) -> str:
    """A number with four digits, or as many as it has before the point: "0.03125", "12,314"."""
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """A time in the largest unit that gives at least 2: "90 s", "5 min", "30 h", "4 days"."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
