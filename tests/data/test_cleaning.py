import pytest

from residual_hf.data.cleaning import clean_corpus, pair_filter
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import CleaningSettings

PAIRS = [
    ("a small dog", "ein kleiner Hund"),
    ("", "leer"),
    ("one", "ein einziges Wort und viele mehr"),
    ("same text", "same  text"),
    ("a small dog", "ein kleiner Hund"),
    ("a small dog", "ein kleines Tier"),
    ("good morning", "доброе утро"),
    ("see example.org/" + 40 * "x", "siehe dort"),
    ("number 7 , 8", "Nummer 7 , 8"),
    ("unseen", "\u00ad \u2800"),
]


CORPUS = ParallelCorpus(*map(list, zip(*PAIRS, strict=True)), "pairs", "en", "de", {"file": "0"})


def run(**settings):
    cleaned, report = clean_corpus(CORPUS, pair_filter(CleaningSettings(**settings)))
    return [PAIRS.index(pair) + 1 for pair in cleaned], report


@pytest.mark.parametrize(
    ("settings", "reason", "lines"),
    [
        ({}, None, []),
        ({"min_words": 2}, "too short", [3]),
        ({"max_words": 5}, "too long", [3]),
        ({"max_ratio": 3.0}, "length ratio", [3]),
        ({"max_characters_per_word": 30}, "long word", [8]),
        ({"identical": True}, "identical", [4]),
        ({"duplicates": "pair"}, "duplicate", [5]),
        ({"duplicates": "source"}, "duplicate", [5, 6]),
        ({"target_script": "Latin"}, "wrong script", [7]),
        ({"target_script": "Latin+Cyrillic"}, None, []),
        ({"source_script": "Cyrillic"}, "wrong script", [1, 3, 4, 5, 6]),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_reasons(settings, reason, lines):
    _, report = run(**settings)
    assert report.examples.pop("empty") == [2, 10]
    assert report.examples == ({reason: lines} if reason else {})
    assert report.pairs == len(PAIRS) == report.kept + sum(report.dropped.values())


def test_order_is_kept_and_the_report_says_all():
    kept, report = run(min_words=2, duplicates="source", identical=True)
    assert kept == [1, 7, 8, 9]
    assert str(report) == "kept 4 of 10 pairs; dropped: 2 empty, 2 duplicate, 1 too short, 1 identical"


@pytest.mark.parametrize(
    ("settings", "kept"), [({"max_words": 8}, [0, 2]), ({"max_ratio": 2}, [0, 1]), ({"min_words": 3}, [0, 1])], ids=str
)
def test_lengths_of_text_without_spaces_are_in_letters(settings, kept):
    pairs = [
        ("我们明天去北京。", "we go to Beijing tomorrow"),
        ("我们明天早上坐火车去北京。", "we go to Beijing by train tomorrow morning"),
        ("我们去", "I"),
    ]
    corpus = ParallelCorpus(*map(list, zip(*pairs, strict=True)), "pairs", "zh", "en")
    cleaned, _ = clean_corpus(corpus, pair_filter(CleaningSettings(**settings)))
    assert list(cleaned) == [pairs[number] for number in kept]


def test_a_corpus_that_is_mostly_dropped_is_warned_about(caplog):
    _, report = run(max_words=2)
    report.warn_if_most_is_gone("pairs")
    (message,) = caplog.messages
    assert message.startswith("pairs: more than half of the pairs were dropped by data.cleaning (kept 3 of 10 pairs")
    assert "too long: pair 1" in message
    run(min_words=2)[1].warn_if_most_is_gone("pairs")
    assert len(caplog.messages) == 1
