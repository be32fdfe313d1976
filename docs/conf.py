# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Sphinx: the guides (Markdown) and the API reference (docstrings). Build with `sphinx-build -W docs OUTPUT`."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

from residual_hf import ResidualConnection, __version__
from residual_hf.model.options import describe_option

project = "residual_hf"
copyright = "2026, the residual_hf authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
napoleon_use_rtype = False
myst_heading_anchors = 3
myst_enable_extensions = ["fieldlist"]
html_title = f"residual_hf {version}"
html_theme_options = {"page_width": "1100px", "sidebar_width": "260px"}
html_show_sourcelink = False


def read_markdown(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings write code as Markdown does: between single backticks, or indented after a colon."""
    text = "\n".join(lines)
    text = re.sub(r"(?<![`:])`([^`\n]+)`(?!`)(\w?)", lambda m: f"``{m[1]}``" + (m[2] and f"\\{m[2]}"), text)
    lines[:] = re.sub(r"(?m)^(?![:.])(.*[^:]):(?=\n\n    )", r"\1::", text).split("\n")


def show_mode(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Under every residual connection its name in configs, its equation, its options and its source."""
    if not (inspect.isclass(obj) and issubclass(obj, ResidualConnection) and obj.equation):
        return
    lines += ["", f":ln_mode: ``{obj.name}``", f":Equation: ``{obj.equation}``", f":Source: {obj.source}"]
    described = [f"``{describe_option(f)}``: {f.metadata['help']}" for f in fields(obj.Options)]
    lines += [":Options:", *(f"   | {line}" for line in described)] if described else []


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", read_markdown, priority=900)
    app.connect("autodoc-process-docstring", show_mode, priority=901)
