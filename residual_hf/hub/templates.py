# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The templates of model cards, each compiled once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader

from residual_hf.data.language_names import language_name
from residual_hf.records.markdown import block, code, escaped, literal, text

TEMPLATES = Environment(loader=FileSystemLoader(Path(__file__).parent))
TEMPLATES.globals.update(block=block, code=code, escaped=escaped, literal=literal, text=text)
TEMPLATES.filters["language"] = lambda code: text(language_name(code))


def render_card(template: str, metadata: ModelCardData, /, **values: Any) -> str:
    """The Markdown of `TEMPLATE.md.jinja` with these values and the metadata, which `ModelCard` checks."""
    values = {**metadata.to_dict(), **values, "card_data": metadata.to_yaml()}
    return str(ModelCard(TEMPLATES.get_template(f"{template}.md.jinja").render(values)))
