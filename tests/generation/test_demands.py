"""Translations that must have the terms of a glossary or the spans of their source."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.own_search import make_model
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer

from residual_hf.base.errors import InputError
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.glossary import Glossary
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.generation import decode, demands
from residual_hf.generation import translator as translator_module
from residual_hf.generation.decode import Candidate
from residual_hf.generation.demands import check_glossary_use
from residual_hf.generation.generation_settings import DecodingSettings
from residual_hf.generation.scoring import score_translations
from residual_hf.generation.translator import Translator
from residual_hf.model.alignment import AlignedTokens, Alignment, align, word_spans
from residual_hf.model.constraints import beams_for
from residual_hf.model.placeholders import PLACEHOLDER_TOKENS


@pytest.mark.parametrize("beams", [1, 5])
def test_a_translator_has_the_translations_of_the_glossary(tokenizer, model, beams):
    terms = [("Katzen", "cats in the park"), ("hund", "dog"), ("hund", "small dog"), ("schlafen", "☃")]
    settings = DecodingSettings(num_beams=beams, max_length_a=1, max_length_b=12)
    translator = Translator(model, tokenizer, settings, glossary=Glossary(terms))
    sentences = [SENTENCES[2], SENTENCES[0], "im Park"]
    found = translator.translate(sentences)
    assert "cats in the park" in found[0] and "dog" in found[1]
    assert found[2] == Translator(model, tokenizer, settings).translate("im Park")
    best = translator.translate(SENTENCES[0], num_return_sequences=2)
    assert len(set(best)) == 2 and all("dog" in text for text in best)


@pytest.mark.parametrize(
    ("forced", "links", "expected"),
    [
        ("a cat in park dog", 1, "a dog in park"),
        ("a cat in park dog", 0, "dog cat in park"),
        ("a dog in park", 1, "a dog in park"),
        ("a cat in park dog", None, "a cat in park dog"),
    ],
)
def test_a_term_behind_a_sentence_is_put_in_the_place_of_its_words(
    tokenizer, model, monkeypatch, forced, links, expected
):
    source, free = "zwei Katzen schlafen", "a cat in park"
    search_finds(monkeypatch, tokenizer, source, free, forced, links)
    terms = Glossary([("Katzen", "dog"), ("zwei", "a")])
    assert Translator(model, tokenizer, glossary=terms).translate(source) == expected


def search_finds(monkeypatch, tokenizer, source, free, forced, links, tag=(), score=None):
    """Candidates of the two searches, and the target word that the second word of the source comes from."""
    weights = np.zeros((4, 3))
    if links is not None:
        weights[links, 1] = 1
    read, written = (word_spans(text, bare=True) for text in (source, free))
    alignment = Alignment(source, free, (AlignedTokens(read, written, weights, np.zeros(4)),))
    rows = tokenizer(text_target=[free, forced], add_special_tokens=False)["input_ids"]
    found_in_turn(monkeypatch, *([Candidate([*tag, *row], score)] for row in rows))
    alignments = iter([[alignment]])
    monkeypatch.setattr(demands, "align", lambda *args: next(alignments, None) or align(*args))


def found_in_turn(monkeypatch, *candidates):
    """Searches of one sentence find these, one list each; those that no search has found yet."""
    found = iter(candidates)
    monkeypatch.setattr(translator_module, "search", lambda *args, **options: [next(found)])
    return found


@pytest.mark.parametrize("tags", [(), ("<2de>",)])
def test_the_score_is_of_the_translation_with_the_term_in_its_place(monkeypatch, tags):
    tokenizer = tiny_tokenizer(*tags)
    model = tiny_model(tokenizer, **({"language_tags": "target"} if tags else {}))
    settings = DecodingSettings(length_penalty=0.7)
    plain, terms = (Translator(model, tokenizer, settings, glossary=g) for g in (None, Glossary([("Katzen", "dog")])))
    source, pair = "zwei Katzen schlafen", {"target_lang": "de"} if tags else {}
    tag = tokenizer.convert_tokens_to_ids(list(tags))
    search_finds(monkeypatch, tokenizer, source, "a cat in park", "a cat in park dog", 1, tag, -0.1)
    ((best,),) = terms.hypotheses([source], **pair)
    (own,) = score_translations(plain, [source], [best.text], **pair)
    assert best.text == "a dog in park"
    assert best.score == pytest.approx(own.log_prob / (own.tokens + len(tags)) ** 0.7, rel=1e-4)


@pytest.mark.parametrize(
    ("free", "forced", "expected"),
    [
        (
            ["a cat in park", "a small cat", "a dog"],
            ["a cat in park dog", "a cat in park park dog", "a small cat dog"],
            ["a dog in park", "a small dog", "a dog"],
        ),
        (["a cat in park", "a small dog"], ["a small dog", "a cat in park dog"], ["a small dog", "a cat in park dog"]),
        (["a cat in park", "a park in park"], ["a cat in park dog"] * 2, ["a dog in park", "a cat in park dog"]),
        (
            ["a cat in park", "a small cat"],
            ["a cat in park dog", "a dog in park"],
            ["a dog in park", "a cat in park dog"],
        ),
    ],
)
def test_alternatives_have_the_term_in_its_place_too(tokenizer, model, monkeypatch, free, forced, expected):
    """The best first; one that has the term by itself stays, and none is there twice."""
    rows = tokenizer(text_target=[*free, *forced], add_special_tokens=False)["input_ids"]
    candidates = [Candidate(row) for row in rows]
    found_in_turn(monkeypatch, candidates[: len(free)], candidates[len(free) :])

    def links(model, tokenizer, sources, targets, *ids):
        (source,), (target,) = sources, targets
        read, written = (word_spans(text, bare=True) for text in (source, target))
        weights = np.zeros((len(written), len(read)))
        weights[1 + ("small" in target), 1] = 1
        return [Alignment(source, target, (AlignedTokens(read, written, weights, np.zeros(len(written))),))]

    monkeypatch.setattr(demands, "align", links)
    translator = Translator(model, tokenizer, glossary=Glossary([("Katzen", "dog")]))
    (best,) = translator.hypotheses(["zwei Katzen schlafen"], len(free))
    assert sorted(each.text for each in best) == sorted(expected)
    assert [each.score for each in best] == sorted((each.score for each in best), reverse=True)


def test_what_is_truncated_demands_no_terms(tokenizer, model):
    source = " ".join(SENTENCES * 4) + " zebra"
    plain, terms = (Translator(model, tokenizer, glossary=g) for g in (None, Glossary([("zebra", "dog")])))
    assert "dog" in terms.translate("zebra")
    assert terms.translate(source, long="truncate") == plain.translate(source, long="truncate")


def test_terms_are_read_in_lower_case_in_a_line_in_capitals(tokenizer, model, monkeypatch):
    monkeypatch.setattr(model.config, "source_lang", "de")
    monkeypatch.setattr(model.config, "target_lang", "en")
    translator = Translator(model, tokenizer, glossary=Glossary([("hund", "dog")]))
    assert translator.inputs.edited("DER HUND SCHLÄFT HEUTE.").text == "Der hund schläft heute."


def test_a_search_that_finds_no_term_leaves_the_translation_as_it_was(tokenizer, model, monkeypatch):
    rows = tokenizer(text_target=["a cat in park", "park park"], add_special_tokens=False)["input_ids"]
    found = found_in_turn(monkeypatch, *([Candidate(row, 0.0), Candidate(row[::-1], 0.0)] for row in rows))
    translator = Translator(model, tokenizer, glossary=Glossary([("Katzen", "dog")]))
    assert translator.hypotheses(["zwei Katzen schlafen"], 2)[0][0].text == "a cat in park"
    assert next(found, None) is None


def test_many_terms_in_a_sentence_do_not_make_a_search_without_end(tokenizer, model):
    words = [f"w{letter}" for letter in "abcdefghijklmnopqrst"]
    glossary = Glossary([(word, f"{SENTENCES[1]} {word}") for word in words])
    demanded = Translator(model, tokenizer, glossary=glossary).demanded
    phrases = demanded.phrases(demanded.demands(" ".join(words), [], placeholders=False), [Candidate([])])
    assert 0 < len(phrases) < len(words) and beams_for(phrases) <= 64


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "unigram"])
def test_a_term_is_spelled_as_within_a_text(model, kind):
    text = ["a small dog", "the dog sees a small house 。狗 小狗"] * 9
    tokenizer = train_tokenizer(text, TokenizerSettings(kind=kind, vocab_size=340))
    spellings = Translator(model, tokenizer).demanded.spellings(["dog", "狗"])
    for text, term in (("the dog sees", "dog"), ("dog", "dog"), ("a small 。狗", "狗")):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        used = [row for row in spellings for start in range(len(ids)) if ids[start : start + len(row)] == row]
        assert term in {tokenizer.decode(row).strip() for row in used}, text


def test_a_model_that_reads_terms_gets_them_in_its_source(tokenizer, model, monkeypatch):
    glossary = Glossary([("Hund", "dog")])
    monkeypatch.setattr(model.config, "term_tags", True)
    translator = Translator(model, tokenizer, glossary=glossary)
    assert translator.inputs.edited("ein Hund").text == "ein <term> Hund <trans> dog </term>"
    assert not translator.constrained and check_glossary_use(model) is None


def test_models_that_cannot_use_a_glossary_refuse_it():
    slow = make_model("post_ln", position_embedding_type="relative")
    for model in (SimpleNamespace(config=None, device=torch.device("cpu")), slow):
        with pytest.raises(InputError, match="glossary: only a model that was trained with data.glossary"):
            check_glossary_use(model)


def test_a_missing_placeholder_needs_no_search_that_cannot_run(monkeypatch):
    tokenizer = tiny_tokenizer(*PLACEHOLDER_TOKENS)
    model = tiny_model(tokenizer, placeholders=True)
    found = Translator(model, tokenizer).translate(["zwei https://a.b Katzen"], fast_decoding=False)
    assert len(found) == 1
    slow = tiny_model(tokenizer, placeholders=True, position_embedding_type="relative")
    searches = []
    monkeypatch.setattr(translator_module, "search", lambda *given: searches.append(given) or decode.search(*given))
    Translator(slow, tokenizer).translate(["zwei https://a.b Katzen"])
    assert len(searches) == 1  # of several processes, some would wait for the others
