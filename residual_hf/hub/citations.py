"""BibTeX entries: those of `papers.bib`, by key, and those that a mode class declares itself."""

import re
from functools import cache
from pathlib import Path

from residual_hf.model import catalogue as _  # noqa: F401  registers the modes
from residual_hf.model.connections import ResidualConnection, get_ln_mode


@cache
def papers() -> dict[str, str]:
    """The entries of `papers.bib` by their keys."""
    text = Path(__file__).with_name("papers.bib").read_text(encoding="utf-8")
    text = re.sub(r"^  eprint = .*", r"\g<0>\n  archivePrefix = {arXiv},", text, flags=re.MULTILINE)
    return {entry[1]: entry[0] for entry in re.finditer(r"^@\w+\{([^,]+),.*?^\}$", text, re.DOTALL | re.MULTILINE)}


def bibtex(mode: str | type[ResidualConnection]) -> list[str]:
    """The BibTeX entries of the papers of a mode, from its attribute `bibtex`: keys of `papers.bib`, or entries.

    Raises `ValueError` for a name that is not registered, or a key that `papers.bib` does not have.
    """
    declared = (get_ln_mode(mode) if isinstance(mode, str) else mode).bibtex
    entries = [declared] if isinstance(declared, str) else declared
    unknown = [entry for entry in entries if not entry.lstrip().startswith("@") and entry not in papers()]
    if unknown:
        raise ValueError(f"bibtex: {unknown[0]!r} is neither a BibTeX entry (@...) nor a key of hub/papers.bib")
    return [papers().get(entry, entry).strip() for entry in entries]
