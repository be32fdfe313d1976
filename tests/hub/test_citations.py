import re

import pytest

from residual_hf.hub.citations import bibtex
from residual_hf.model.connections import LN_MODES
from residual_hf.model.ln_modes import PreLN


def test_papers_are_those_that_the_modes_name():
    for name, mode in LN_MODES.items():
        if mode.__module__.startswith("residual_hf.") and "source" in vars(mode):
            author, year = re.match(r"(\w+).*? (\d{4})", mode.source).groups()
            papers = [re.search(r"author = \{+(.*?)( and |\},).*year = \{(\d+)\}", e, re.DOTALL) for e in bibtex(name)]
            assert "bibtex" in vars(mode)
            assert any(author in paper[1] and year == paper[3] for paper in papers), name


def test_a_mode_of_a_user_is_cited_by_its_own_entry():
    entry = "@misc{me2026highway,\n  title = {Highway},\n}"
    assert bibtex(type("Highway", (PreLN,), {"bibtex": entry})) == [entry]
    both = bibtex(type("Variant", (PreLN,), {"bibtex": (entry, "xie2023residual")}))
    assert both[0] == entry and both[1].startswith("@misc{xie2023residual,")
    with pytest.raises(ValueError, match="bibtex: 'xie2022' is neither a BibTeX entry"):
        bibtex(type("Wrong", (PreLN,), {"bibtex": "xie2022"}))
