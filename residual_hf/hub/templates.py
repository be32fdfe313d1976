# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The template of model cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment

from residual_hf.data.language_names import language_name
from residual_hf.records.markdown import block, code, escaped, literal, text

ENVIRONMENT = Environment()
ENVIRONMENT.globals.update(block=block, code=code, escaped=escaped, literal=literal, text=text)
ENVIRONMENT.filters["language"] = lambda code: text(language_name(code))
TEMPLATE = ENVIRONMENT.from_string(Path(__file__).with_name("model_card.md.jinja").read_text(encoding="utf-8"))


def render_card(metadata: ModelCardData, /, **values: Any) -> str:
    """The Markdown of a card with these values and the metadata, which `ModelCard` checks.

    Without `run` there are no records, see `plain_card`.
    """
    return str(ModelCard(TEMPLATE.render({**metadata.to_dict(), **values, "card_data": metadata.to_yaml()})))
