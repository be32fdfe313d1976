"""Writes the table of `docs/modes.md`, between two comments: `python docs/modes.py`."""

import re
from pathlib import Path

from residual_hf.analysis.mode_list import modes_table

PAGE = Path(__file__).with_name("modes.md")
TABLE = re.compile(r"(<!-- modes -->\n).*?(\n<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with the modes that are registered."""
    return TABLE.sub(lambda match: match[1] + modes_table() + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
