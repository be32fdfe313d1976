import sys

import pytest

from residual_hf.base.errors import InputError
from residual_hf.evaluation.metrics import tokenized_bleu
from residual_hf.evaluation.translation_metric import load_metric

pytest.importorskip("sacremoses", reason="the extra [moses] is not installed")
SENTENCE = "Der Ost-West-Konflikt - sagt z. B. das AT-Team - ist vorbei."


def test_compounds_are_split_at_hyphens_between_letters():
    """Matches do not overlap, as in Perl: of x-y-z only the first hyphen is split. A dash between spaces stays."""
    first, second = load_metric("compound_bleu:de").split([SENTENCE, "x-y-z"])
    assert first == "Der Ost @ West @ Konflikt - sagt z. B. das AT @ Team - ist vorbei .".replace("@", "##AT##-##AT##")
    assert second == "x ##AT##-##AT## y-z"


def test_a_part_of_a_compound_counts():
    metric = load_metric("compound_bleu")
    wrong, references = [SENTENCE.replace("Konflikt", "Krieg")], [SENTENCE]
    score = metric.compute(wrong, references)["compound_bleu"]
    whole = [[line.replace(" ##AT##-##AT## ", "-") for line in metric.split(lines)] for lines in (wrong, references)]
    assert tokenized_bleu(*whole).value < score < 99.9
    assert metric.compute(references, references)["compound_bleu"] == pytest.approx(100)
    assert metric.compute([SENTENCE.lower()], references)["compound_bleu"] < 100


def test_the_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(InputError, match=r"sacremoses is not installed: pip install 'residual_hf\[moses\]'"):
        load_metric("compound_bleu:fr")
