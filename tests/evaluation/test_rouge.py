import pytest
from rouge_score.rouge_scorer import RougeScorer

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


@pytest.mark.parametrize("name", ["rouge", "rouge:stem"])
@pytest.mark.parametrize(
    ("reference", "good", "bad"),
    [
        ("В 2024 году мэр открыл метро.", "Мэр открыл «метро» в прошлом году", "2024"),
        ("2024年，北京开通了 CCTV 地铁。", "北京 开通 CCTV 地铁", "2024 CCTV"),
        ("नई दिल्ली में 5 बजे बारिश", "दिल्ली में बारिश", "5 दिन"),
    ],
)
def test_other_scripts_have_words(reference, good, bad, name):
    rouge = load_metric(name)
    assert rouge.compute([reference], [reference]) == pytest.approx({"rouge1": 100, "rouge2": 100, "rougeL": 100})
    found = [rouge.compute([text], [reference])["rouge1"] for text in (good, bad)]
    assert found[0] > 60 and found[1] < 40


def test_latin_text_has_the_words_of_rouge_score():
    """In which other letters than a to z separate words."""
    scores = RougeScorer(["rouge1"]).score("Über 20 Bären; Привет", "ber 20 b")
    assert load_metric("rouge").compute(["ber 20 b"], ["Über 20 Bären; Привет"])["rouge1"] == pytest.approx(
        100 * scores["rouge1"].fmeasure
    )
    assert load_metric("rouge").compute(["3 4"], ["3 5"])["rouge1"] == pytest.approx(50)


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
