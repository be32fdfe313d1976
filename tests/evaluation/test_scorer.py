import sys
from types import SimpleNamespace

import pytest
from sacrebleu.metrics import BLEU
from support.files import write_metric

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.evaluation.metrics import EvaluationSettings, detokenize
from residual_hf.evaluation.scorer import Scorer, by_corpus, full_report, make_scorers, mean_figures, mean_of_reports

RAW = ["I don't know, do you?", '"Tom & Anna" left at 5 o\'clock.', "A well-known song (of hers)."]
MOSES = [
    "I don &apos;t know , do you ?",
    "&quot; Tom &amp; Anna &quot; left at 5 o &apos;clock .",
    "A well @-@ known song ( of hers ) .",
]


def corpus(targets, raw_targets=None, name="test", language="en"):
    return ParallelCorpus(["source"] * len(targets), targets, name, "de", language, raw_targets=raw_targets)


def test_moses_text_becomes_plain_text():
    assert detokenize(MOSES, "en") == RAW


def test_raw_text_has_no_tokenised_score():
    assert set(Scorer(corpus(RAW)).figures(RAW)) == {"bleu", "chrf"}
    assert "tokenized_bleu" not in Scorer(corpus(RAW)).report(RAW)


def test_tokenised_and_sacrebleu_are_two_figures():
    hypotheses = [MOSES[0], MOSES[1].replace("Anna", "Maria"), MOSES[2].replace("song", "tune")]
    report = Scorer(corpus(MOSES, RAW), pretokenized="moses").report(hypotheses)
    plain = [RAW[0], RAW[1].replace("Anna", "Maria"), RAW[2].replace("song", "tune")]
    assert report["bleu"]["value"] == pytest.approx(BLEU().corpus_score(plain, [RAW]).score)
    tokens = BLEU(tokenize="none", force=True, smooth_method="none").corpus_score(hypotheses, [MOSES]).score
    assert report["tokenized_bleu"]["value"] == pytest.approx(tokens) != pytest.approx(report["bleu"]["value"])
    assert report["tokenized_bleu"]["line"].startswith(f"BLEU4 = {tokens:.2f}, ")
    assert "tok:none" in report["tokenized_bleu"]["signature"] and "tok:13a" in report["bleu"]["signature"]
    assert report["references"] == "raw"
    assert Scorer(corpus(MOSES), pretokenized="moses").report(hypotheses)["references"] == "detokenized"


def test_lowercase_is_for_all_scores():
    scorer = Scorer(corpus(MOSES), pretokenized="moses", lowercase=True)
    report = scorer.report([line.lower() for line in MOSES])
    assert report["tokenized_bleu"]["value"] == pytest.approx(100) == report["bleu"]["value"]
    assert "case:lc" in report["tokenized_bleu"]["signature"]


def test_several_corpora_have_the_mean_of_their_scores():
    scorers = make_scorers([corpus(RAW[:1], name="one"), corpus(RAW[1:], name="two")], None, EvaluationSettings())
    hypotheses = [RAW[0], "nothing alike", "at all here"]
    assert [(s.name, list(lines)) for s, lines in by_corpus(scorers, hypotheses)] == [
        ("one de-en", hypotheses[:1]),
        ("two de-en", hypotheses[1:]),
    ]
    second = scorers[1].figures(hypotheses[1:])["bleu"]
    assert mean_figures(scorers, hypotheses)["bleu"] == pytest.approx((100 + second) / 2)
    report = full_report(scorers, hypotheses)
    assert report["bleu"]["value"] == pytest.approx((100 + second) / 2)
    assert report["corpora"]["two de-en"] == scorers[1].report(hypotheses[1:])
    assert report["bleu"]["signature"] == scorers[0].report(hypotheses[:1])["bleu"]["signature"]
    other = Scorer(corpus(RAW[:1]), tokenize="char").report(RAW[:1])
    mixed = mean_of_reports({"one": scorers[0].report(hypotheses[:1]), "other": other})["bleu"]["signature"]
    assert "tok:13a" in mixed and " / " in mixed and "tok:char" in mixed


def test_further_metrics_and_the_tokenizer_of_bleu_are_in_the_report(tmp_path):
    metric = write_metric(
        tmp_path / "length.py", '"predictions": text', '"letters": sum(map(len, inputs["predictions"]))'
    )
    settings = EvaluationSettings(tokenize="char", metrics=(metric,))
    (scorer,) = make_scorers([corpus(MOSES)], "moses", settings)
    report = scorer.report(MOSES)
    assert report["metrics"] == {metric: {"letters": float(sum(map(len, RAW)))}}
    assert "tok:char" in report["bleu"]["signature"]


def test_lower_case_holds_for_all_metrics():
    metric = SimpleNamespace(is_fast=False, compute=lambda ours, theirs, sources: {"equal": ours == theirs})
    scorer = Scorer(corpus(RAW), metrics={"exact": metric}, lowercase=True)
    report = scorer.report([line.upper() for line in RAW])
    assert report["bleu"]["value"] == pytest.approx(100) and report["metrics"] == {"exact": {"equal": True}}


def test_text_without_spaces_is_scored_by_the_tokenizer_of_its_language():
    references = ["我们明天早上去北京。"]
    report = Scorer(corpus(references, language="zh")).report(["我们明天晚上去北京。"])
    assert "tok:zh" in report["bleu"]["signature"] and 40 < report["bleu"]["value"] < 80
    assert 0 < report["ter"]["value"] < 30 and "norm:yes" in report["ter"]["signature"]
    assert "tok:13a" in Scorer(corpus(references, language="xx")).report(references)["bleu"]["signature"]


def test_a_tokenizer_that_finds_no_words_is_warned_about(caplog):
    references = ["我们明天早上去北京。", "OK, 你好"]
    make_scorers([corpus(references, language="zh"), corpus(RAW, language="xx")], None, EvaluationSettings())
    assert not caplog.messages
    make_scorers([corpus(references, language="xx")], None, EvaluationSettings())
    assert "BLEU with the tokenizer 13a has no meaning for references without spaces" in caplog.text


def test_references_in_a_form_that_no_tokenizer_writes_are_warned_about(caplog):
    make_scorers([corpus(["café लड\u093cकी"])], None, EvaluationSettings())
    assert not caplog.messages
    make_scorers([corpus(["cafe", "ल\u095cकी"])], None, EvaluationSettings())
    assert "the references have letters with accents or dots in a form other than NFC" in caplog.text


def test_segmented_references_are_warned_about(caplog):
    make_scorers([corpus(["a@@ b c"])], None, EvaluationSettings())
    assert "the references are segmented (@@)" in caplog.text


def test_a_metric_that_fails_leaves_the_other_scores(caplog):
    def fail(*arguments):
        raise InputError("no memory")

    metrics = {"heavy": SimpleNamespace(is_fast=False, compute=fail)}
    report = Scorer(corpus(RAW), metrics=metrics).report(RAW)
    assert report["bleu"]["value"] == pytest.approx(100) and report["metrics"] == {}
    assert "heavy is left out: no memory" in caplog.text


def test_the_library_that_joins_tokens_is_asked_for_before_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(InputError, match=r"sacremoses is not installed: pip install 'residual_hf\[moses\]'"):
        Scorer(corpus(MOSES), pretokenized="moses")


def test_bad_options_are_named():
    with pytest.raises(InputError, match="target_lang: missing"):
        Scorer(corpus(MOSES, language=None), pretokenized="moses")
    with pytest.raises(InputError, match="tokenize: '14b' given, must be one of .*'13a'"):
        EvaluationSettings(tokenize="14b")


def test_corpora_of_the_same_name_have_scores_of_their_own():
    scorers = make_scorers([corpus(RAW[:1]), corpus(RAW[1:])], None, EvaluationSettings())
    report = full_report(scorers, [RAW[0], "nothing alike", "at all here"])
    assert list(report["corpora"]) == ["test de-en", "test de-en (2)"]
    assert report["corpora"]["test de-en"]["bleu"]["value"] == pytest.approx(100)
    assert 0 < report["bleu"]["value"] < 60
