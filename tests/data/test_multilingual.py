from dataclasses import replace

import pytest

from residual_hf.base.errors import InputError
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.multilingual import directions, tag_corpus, training_pairs

CORPUS = ParallelCorpus(["a dog", "a cat"], ["ein Hund", "eine Katze"], "pairs", "en", "de")
SYNTHETIC = replace(CORPUS, tag="<BT>")


def test_the_reverse_of_a_corpus_has_no_raw_targets():
    first, back = directions(replace(CORPUS, raw_targets=["Ein Hund.", "Eine Katze."]), True)
    assert first.raw_targets is not None and back.raw_targets is None
    assert list(back) == [("ein Hund", "a dog"), ("eine Katze", "a cat")]
    assert (back.source_lang, back.target_lang) == ("de", "en")
    assert directions(CORPUS, False) == [CORPUS]


@pytest.mark.parametrize(
    ("corpus", "side", "pair"),
    [
        (CORPUS, None, ("a dog", "ein Hund")),
        (CORPUS, "source", ("<2de> a dog", "ein Hund")),
        (CORPUS, "target", ("a dog", "<2de> ein Hund")),
        (SYNTHETIC, None, ("<BT> a dog", "ein Hund")),
        (SYNTHETIC, "source", ("<2de><BT> a dog", "ein Hund")),
        (SYNTHETIC, "target", ("<BT> a dog", "<2de> ein Hund")),
    ],
    ids=lambda value: getattr(value, "tag", None) or str(value),
)
def test_tags_precede_a_sentence(corpus, side, pair):
    assert tag_corpus(corpus, side)[0] == pair


def test_each_pair_is_followed_by_its_reverse_unless_its_source_is_synthetic():
    first, second, *more = training_pairs(CORPUS, True, "source")
    assert (first, second) == (("<2de> a dog", "ein Hund"), ("<2en> ein Hund", "a dog")) and len(more) == 2
    assert list(training_pairs(SYNTHETIC, True, "source")) == list(tag_corpus(SYNTHETIC, "source"))


def test_language_tags_need_a_target_language():
    with pytest.raises(InputError, match="pairs: target_lang missing, which language tags need"):
        tag_corpus(replace(CORPUS, target_lang=None), "source")
    assert tag_corpus(replace(SYNTHETIC, target_lang=None), None).sources[0] == "<BT> a dog"
