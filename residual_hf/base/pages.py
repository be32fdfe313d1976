"""The web pages of the package."""

from pathlib import Path


def read_page(path: Path) -> str:
    """A page with the style that all pages share in the place of a comment."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return path.read_text(encoding="utf-8").replace("/* page.css */\n", style)
