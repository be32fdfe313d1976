# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import pytest
from sacrebleu.metrics import BLEU

from residual_hf.errors import InputError
from residual_hf.evaluation.scorer import Scorer, by_corpus, detokenize, mean_figures

RAW = ["I don't know, do you?", '"Tom & Anna" left at 5 o\'clock.', "A well-known song (of hers)."]
MOSES = [
    "I don &apos;t know , do you ?",
    "&quot; Tom &amp; Anna &quot; left at 5 o &apos;clock .",
    "A well @-@ known song ( of hers ) .",
]


def test_moses_text_becomes_plain_text():
    assert detokenize(MOSES, "en") == RAW


def test_raw_text_has_no_tokenised_score():
    assert set(Scorer(RAW).figures(RAW)) == {"bleu", "chrf"}
    assert "tokenized_bleu" not in Scorer(RAW).report(RAW)


def test_tokenised_and_sacrebleu_are_two_figures():
    hypotheses = [MOSES[0], MOSES[1].replace("Anna", "Maria"), MOSES[2].replace("song", "tune")]
    report = Scorer(MOSES, text="moses", language="en", raw_references=RAW).report(hypotheses)
    plain = [RAW[0], RAW[1].replace("Anna", "Maria"), RAW[2].replace("song", "tune")]
    assert report["bleu"]["value"] == pytest.approx(BLEU().corpus_score(plain, [RAW]).score)
    tokens = BLEU(tokenize="none", force=True, smooth_method="none").corpus_score(hypotheses, [MOSES]).score
    assert report["tokenized_bleu"]["value"] == pytest.approx(tokens) != pytest.approx(report["bleu"]["value"])
    assert report["tokenized_bleu"]["line"].startswith(f"BLEU4 = {tokens:.2f}, ")
    assert "tok:none" in report["tokenized_bleu"]["signature"] and "tok:13a" in report["bleu"]["signature"]
    assert report["references"] == "raw"
    assert Scorer(MOSES, text="moses", language="en").report(hypotheses)["references"] == "detokenized"


def test_several_corpora_have_the_mean_of_their_scores():
    scorers = [Scorer(RAW[:1], name="one"), Scorer(RAW[1:], name="two")]
    hypotheses = [RAW[0], "nothing alike", "at all here"]
    assert [(s.name, list(lines)) for s, lines in by_corpus(scorers, hypotheses)] == [
        ("one", hypotheses[:1]),
        ("two", hypotheses[1:]),
    ]
    second = scorers[1].figures(hypotheses[1:])["bleu"]
    assert mean_figures(scorers, hypotheses)["bleu"] == pytest.approx((100 + second) / 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "spacy"}, r"text: 'spacy' given, must be one of \['raw', 'moses'\]"),
        ({"text": "moses"}, "target_lang: missing"),
        ({"raw_references": RAW[:2]}, "raw_target: 2 lines for 3 sentences"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Scorer(RAW, **options)
