import sys

import pytest

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.task import SPEECH_RECOGNITION
from residual_hf.evaluation.metrics import EvaluationSettings, warn_once
from residual_hf.evaluation.scorer import full_report, make_scorers, mean_figures
from residual_hf.evaluation.sentence_metrics import ErrorRate, normalized
from residual_hf.evaluation.translation_metric import load_metric

REFERENCES = ["The cat's mat.", "ONE two", "a b c d"]
HYPOTHESES = ["the cat's hat", "one", "a x b c d"]


def test_rates_by_hand():
    """1 substitution, 1 deletion and 1 insertion for 9 words; 1 + 4 + 2 characters for 27."""
    assert load_metric("wer").compute(HYPOTHESES, REFERENCES) == {"wer": pytest.approx(100 * 3 / 9)}
    assert load_metric("cer").compute(HYPOTHESES, REFERENCES) == {"cer": pytest.approx(100 * 7 / 27)}
    assert ErrorRate("wer").compute(["a", "x"], ["a", ""]) == {"wer": 100.0}
    assert ErrorRate("wer").compute(["वह क्यो cafe\u0301"], ["वह क्या ❤️ café!"]) == {"wer": pytest.approx(100 / 3)}
    assert ErrorRate("wer").compute(["x"], [""]) == {"wer": 100.0}


def test_normalization():
    assert normalized("  Don't STOP -- Ärger_mit, 3,5 Ölen!\n") == "don't stop ärger mit 3 5 ölen"
    assert normalized("Don’t") == "don't"
    assert normalized("می‌خواهم، ශ්‍රී") == "می‌خواهم ශ්‍රී"  # a joiner is part of a word
    assert normalized("Silben\u00adtrennung") == "silbentrennung"
    for text in ("‘Yes,’ he said, ‘it’s here.’", "'Yes', he said: it`s 'here'", "`Yes´ he said itʼs here’"):
        assert normalized(text) == "yes he said it's here"
    assert normalized("Oʻzbekiston o‘zbek go'zal, '90s") == "o'zbekiston o'zbek go'zal 90s"
    assert load_metric("wer:raw").compute(["the cat's mat"], ["The cat's mat."]) == {"wer": pytest.approx(200 / 3)}
    with pytest.raises(InputError, match="'wer:fast' given, must be wer or wer:raw"):
        load_metric("wer:fast")


@pytest.mark.parametrize(
    ("reference", "hypothesis", "rate"),
    [
        ("你好，世界。", "你好世界", 0),
        ("他在 2024年，来到 Beijing。", "他在2024年来到北京", 100 * 7 / 16),
        ("今日は、いい天気です。", "今日は いい 天気です", 0),
        ("สวัสดี ครับ", "สวัสดีครับ", 0),  # the space is after a mark
        ("한국 사람", "한국사람", 20),
        ("one two", "onetwo", 100 / 7),
    ],
)
def test_spaces_count_in_scripts_that_have_them(reference, hypothesis, rate):
    assert ErrorRate("cer").compute([hypothesis], [reference]) == {"cer": pytest.approx(rate)}
    assert ErrorRate("cer", "raw").compute([hypothesis], [reference])["cer"] > 0
    signatures = {ErrorRate("wer").signature, ErrorRate("cer").signature, ErrorRate("cer", "raw").signature}
    assert len(signatures) == 3


def test_scorers_of_transcripts():
    corpus = ParallelCorpus(["1.wav", "2.wav", "3.wav"], REFERENCES, "test")
    settings = EvaluationSettings(metrics=("wer", "cer", "wer:raw"))
    scorers = make_scorers([corpus], None, settings, task=SPEECH_RECOGNITION)
    report = full_report(scorers, HYPOTHESES)
    assert report["wer"]["value"] == pytest.approx(100 / 3) and "lower" in report["wer"]["signature"]
    assert report["cer"]["value"] == pytest.approx(700 / 27)
    assert set(report) == {"wer", "cer", "metrics"} and set(report["metrics"]) == {"wer:raw"}
    assert mean_figures(scorers, HYPOTHESES)["wer"] == pytest.approx(100 / 3)
    scorers = make_scorers([corpus, corpus], None, EvaluationSettings(), task=SPEECH_RECOGNITION)
    both = full_report(scorers, HYPOTHESES * 2)
    assert both["wer"]["value"] == pytest.approx(100 / 3) and len(both["corpora"]) == 2


def test_words_of_a_language_without_spaces_are_warned_about_once(caplog):
    warn_once.cache_clear()
    for language in ("de", "ko", "ja", "ja"):
        transcripts = ParallelCorpus(["1.wav"], ["今日は"], "test", target_lang=language)
        make_scorers([transcripts], None, EvaluationSettings(), task=SPEECH_RECOGNITION)
    assert len(caplog.messages) == 1 and "WER has no meaning" in caplog.text and "(ja)" in caplog.text


def test_without_jiwer(monkeypatch):
    monkeypatch.setitem(sys.modules, "jiwer", None)
    with pytest.raises(InputError, match=r"jiwer is not installed: pip install 'residual_hf\[speech\]'"):
        ErrorRate("cer")
