"""Writes the tables and lists of `docs/recipe.md`, each between two comments: `python docs/recipe_fields.py`."""

import json
import re
import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from residual_hf.base.tables import as_markdown
from residual_hf.model.options import allowed_values
from residual_hf.model.presets import PRESETS
from residual_hf.runs.recipe import Recipe

PAGE = Path(__file__).with_name("recipe.md")
FIELDS = re.compile(r"(<!-- fields of ([\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMES = re.compile(r"(<!-- presets -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with the fields as they are declared, and the presets that exist."""
    presets = textwrap.fill(", ".join(f"`{name}`" for name in PRESETS), 119)
    page = NAMES.sub(lambda match: f"{match[1]}{presets}\n{match[2]}", page)
    return FIELDS.sub(lambda match: match[1] + table(section(match[2])) + match[3], page)


def section(name: str) -> type:
    """The dataclass of a section, such as `recipe.data.train`."""
    cls: Any = Recipe
    for part in name.split(".")[1:]:
        cls = dataclass_in(get_type_hints(cls)[part])
    return cls


def dataclass_in(hint: Any) -> Any:
    """The dataclass in a type such as `tuple[CorpusSpec, ...] | None`."""
    if is_dataclass(hint):
        return hint
    return next((found for part in get_args(hint) if (found := dataclass_in(part))), None)


def table(cls: type) -> str:
    hints = get_type_hints(cls)
    rows = [("field", "values", "default", "meaning")]
    for f in fields(cls):
        name = f"`{f.name}`" + " ↻" * f.metadata["may_change"]
        rows.append((name, values(hints[f.name], f), default(f), f.metadata["help"].replace("|", "\\|")))
    return f'<div class="fields">\n\n{as_markdown(rows)}\n\n</div>\n'  # for a phone, see site.css


def values(hint: Any, f: Field) -> str:
    """What a field accepts, without articles and with code in backticks."""
    text = re.sub(r"\b(a|an|one of) ", "", allowed_values(hint, f.metadata))
    return re.sub(r"'([^']*)'", r"`\1`", text).replace(" or null", "")


def default(f: Field) -> str:
    if f.default is MISSING and f.default_factory is MISSING:
        return "required"
    value = f.default if f.default_factory is MISSING else f.default_factory()
    if is_dataclass(value):
        return "see below"
    text = json.dumps(value).strip('"')
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
