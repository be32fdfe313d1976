import logging

import pytest

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.evaluation.metrics import EvaluationSettings
from residual_hf.evaluation.scorer import make_scorers, mean_figures
from residual_hf.evaluation.translation_metric import load_metric


def test_scores_follow_their_definitions():
    """1 of 4 and of 3 words; "police killed the gunman" is the first example of Lin (2004) for ROUGE-L: F1 is 3/4."""
    rouge = load_metric("rouge")
    one = rouge.compute(["shares fall sharply"], ["Oil shares rise again"])
    assert one == pytest.approx({"rouge1": 100 * 2 / 7, "rouge2": 0, "rougeL": 100 * 2 / 7})
    reference, good, bad = "police killed the gunman", "police kill the gunman", "the gunman kill police"
    assert rouge.compute([good], [reference])["rougeL"] == pytest.approx(75)
    assert rouge.compute([bad], [reference])["rougeL"] == pytest.approx(50)
    assert rouge.compute([good, bad], [reference] * 2)["rouge2"] == pytest.approx(100 / 3)


def test_stems_are_compared_on_request():
    words, references = ["police kill the gunmen"], ["Police killed the gunmen"]
    assert load_metric("rouge").compute(words, references)["rouge1"] == pytest.approx(75)
    assert load_metric("rouge:stem").compute(words, references)["rouge1"] == pytest.approx(100)


def test_other_scripts_are_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        assert load_metric("rouge").compute(["дождь"], ["дождь"])["rouge1"] == 0
    assert "no reference has a word with the letters a to z" in caplog.text


def test_a_run_computes_it_at_evaluations_and_at_the_end():
    corpus = ParallelCorpus(["shares rose again on monday"], ["shares rise again"], "valid", "en", "en")
    scorers = make_scorers([corpus], None, EvaluationSettings(metrics=("rouge",)))
    expected = load_metric("rouge").compute(["shares rise"], ["shares rise again"])
    figures = mean_figures(scorers, ["shares rise"])
    assert {name: figures[name] for name in expected} == expected
    assert scorers[0].report(["shares rise"])["metrics"] == {"rouge": expected}


def test_bad_input_is_named():
    with pytest.raises(InputError, match="evaluation.metrics: 'rouge:porter' given, must be rouge or rouge:stem"):
        load_metric("rouge:porter")
