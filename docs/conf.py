"""Sphinx: guides (Markdown), the gallery of residual connections, the API reference (docstrings).

Build with `sphinx-build -W docs build/docs`. The pages need no network.
"""

import inspect
import re
import sys
from dataclasses import fields, is_dataclass
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from docutils import nodes

from residual_hf import __version__
from residual_hf.model.options import Settings

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "examples/diagrams")]

URLS = dict(entry.split(", ") for entry in metadata("residual_hf").get_all("Project-URL") or ())
REPOSITORY = URLS["Repository"]

project = "residual_hf"
copyright = "2026, the residual_hf authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "gallery"]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_use_rtype = False
myst_heading_anchors = 3
html_theme = "furo"
html_title = "residual_hf"
html_static_path = ["_static"]
html_css_files = ["wiring.css", "site.css"]
html_show_sourcelink = False
exclude_patterns = ["_static"]
html_theme_options = {
    "navigation_with_keys": True,
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [{"name": "Repository", "url": REPOSITORY, "html": "Repository", "class": ""}],
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True


def read_markdown(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings write code as Markdown does: between single backticks, or indented after a colon."""
    text = "\n".join(lines)
    text = re.sub(r"(?<![`:])`([^`\n]+)`(?!`)(\w?)", lambda m: f"``{m[1]}``" + (m[2] and f"\\{m[2]}"), text)
    lines[:] = re.sub(r"(?m)^(?![:.])(.*[^:]):(?=\n\n    )", r"\1::", text).split("\n")


def shorten_signature(app: Any, what: str, name: str, obj: Any, options: Any, signature: str, returns: str) -> Any:
    """The fields of settings are listed below; long signatures are left out."""
    return ("(...)", returns) if is_dataclass(obj) and len(signature or "") > 400 else None


def list_fields(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Settings are documented by the declarations of their fields."""
    if inspect.isclass(obj) and issubclass(obj, Settings) and is_dataclass(obj):
        lines += ["", *(f":param {f.name}: {f.metadata['help']}" for f in fields(obj) if "help" in f.metadata)]


def link_examples(app: Any, doctree: nodes.document) -> None:
    """A path of the repository that is written as code links to the file there."""
    for literal in list(doctree.findall(nodes.literal)):
        path = literal.astext()
        if path.startswith("examples/") and (ROOT / path).exists() and not isinstance(literal.parent, nodes.reference):
            kind = "blob" if (ROOT / path).is_file() else "tree"
            link = nodes.reference("", "", refuri=f"{REPOSITORY}/{kind}/main/{path.rstrip('/')}")
            literal.replace_self(link)
            link += literal


def link_readmes(app: Any, page: str, source: list[str]) -> None:
    """A relative link to a file of the examples leads to the repository: these pages do not hold the file."""
    source[0] = source[0].replace("](../examples/", f"]({REPOSITORY}/blob/main/examples/")


def setup(app: Any) -> None:
    app.connect("source-read", link_readmes)
    app.connect("doctree-read", link_examples)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", list_fields, priority=800)
    app.connect("autodoc-process-docstring", read_markdown, priority=900)
