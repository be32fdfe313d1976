"""All figures by name: the published ones, and those for the reviewers of ResiDual."""

from collections.abc import Sequence

import cifar_figures
import initial_figures
import reviewers_figures
import trained_figures
from figure import Figure

from residual_hf.base.errors import InputError

GROUPS = (initial_figures, trained_figures, cifar_figures, reviewers_figures)
FIGURES = {figure.name: figure for group in GROUPS for figure in group.FIGURES}


def find_figures(names: Sequence[str]) -> list[Figure]:
    """The figures of these names, or of all for "all". Raises `InputError` for an unknown name."""
    unknown = [name for name in names if name != "all" and name not in FIGURES]
    if unknown:
        raise InputError(f"unknown figure {', '.join(unknown)}. Known: {', '.join(sorted(FIGURES))}, all")
    return list(FIGURES.values()) if "all" in names else [FIGURES[name] for name in dict.fromkeys(names)]
