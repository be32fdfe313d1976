"""Segmentations of single words come with the probabilities that the papers define."""

import itertools
import math
import pickle
from collections import Counter
from random import Random

import pytest
from tokenizers import AddedToken, Tokenizer, models

from residual_hf.base.errors import InputError
from residual_hf.data.subword_regularization import BpeDropout, UnigramSampling

DRAWS = 20000
MERGES = [("a", "b"), ("ab", "c"), ("b", "c"), ("c", "a"), ("abc", "abc")]
PIECES = {"a": -2.0, "b": -2.5, "c": -3.0, "ab": -1.0, "bc": -1.5, "abc": -2.2, "ca": -4.0, "<tag>": -0.5}


def bpe(**options):
    tokens = ["<unk>", "a", "b", "c", *(left + right for left, right in MERGES), "<0xC3>", "<0xA9>", *"<unk>"]
    vocab = {token: number for number, token in enumerate(tokens)}
    return Tokenizer(models.BPE(vocab, MERGES, unk_token="<unk>", byte_fallback=True, **options))


def unigram():
    pieces = [("<unk>", 0.0), *PIECES.items(), ("<0xC3>", 0.0), ("<0xA9>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.add_tokens([AddedToken("<tag>")])
    return tokenizer


def plain(tokenizer, text):
    return tuple(tokenizer.encode(text).ids)


def drawn(tokenizer, resegment, text, count=DRAWS):
    """How often each segmentation occurs."""
    random = Random(1)
    word = plain(tokenizer, text)
    return Counter(tuple(map(tokenizer.id_to_token, resegment(word, random))) for _ in range(count))


def bpe_dropout_probabilities(word, dropout):
    """Of every segmentation, by going through all subsets of merges that may be left out."""
    ranks = {pair: rank for rank, pair in enumerate(MERGES)}
    found = Counter()
    places = [i for i in range(len(word) - 1) if word[i : i + 2] in ranks]
    for kept in itertools.product((True, False), repeat=len(places)):
        chance = math.prod(1 - dropout if keep else dropout for keep in kept)
        remaining = [(ranks[word[i : i + 2]], i) for i, keep in zip(places, kept, strict=True) if keep]
        if not remaining:
            found[word] += chance
            continue
        _, i = min(remaining)
        for result, more in bpe_dropout_probabilities(
            (*word[:i], word[i] + word[i + 1], *word[i + 2 :]), dropout
        ).items():
            found[result] += chance * more
    return found


def unigram_probabilities(text, alpha):
    """Of every segmentation, by writing them all down."""
    weights = {}
    for cuts in itertools.product((True, False), repeat=len(text) - 1):
        pieces, piece = [], text[0]
        for cut, character in zip(cuts, text[1:], strict=True):
            if cut:
                pieces.append(piece)
                piece = ""
            piece += character
        pieces.append(piece)
        if all(piece in PIECES for piece in pieces):
            weights[tuple(pieces)] = math.exp(alpha * sum(PIECES[piece] for piece in pieces))
    return {pieces: weight / sum(weights.values()) for pieces, weight in weights.items()}


def assert_close(counts, probabilities):
    """Every frequency within 5 standard deviations of its probability."""
    assert set(counts) <= set(probabilities)
    assert sum(probabilities.values()) == pytest.approx(1)
    for result, probability in probabilities.items():
        deviation = math.sqrt(probability * (1 - probability) / DRAWS)
        assert counts[result] / DRAWS == pytest.approx(probability, abs=5 * deviation + 1e-9), result


@pytest.mark.parametrize("dropout", [0.1, 0.5])
@pytest.mark.parametrize("text", ["abc", "abcabc", "bca"])
def test_bpe_dropout_leaves_out_each_merge_with_its_probability(text, dropout):
    tokenizer = bpe()
    expected = bpe_dropout_probabilities(tuple(text), dropout)
    assert_close(drawn(tokenizer, BpeDropout(tokenizer, dropout), text), expected)


@pytest.mark.parametrize("best", [BpeDropout(bpe(), 0.0), UnigramSampling(unigram(), 1e4)], ids=["bpe", "unigram"])
def test_without_dropout_and_with_a_great_alpha_the_segmentation_is_the_plain_one(best):
    tokenizer = bpe() if isinstance(best, BpeDropout) else unigram()
    for text in ("abc", "abcab", "abcabc", "bcabca", "aabbcc", "cé", "éab", "abé"):
        assert best(plain(tokenizer, text), Random(0)) == plain(tokenizer, text)


def test_bpe_with_full_dropout_is_characters():
    tokenizer = bpe()
    assert set(drawn(tokenizer, BpeDropout(tokenizer, 1.0), "abcabc", 50)) == {tuple("abcabc")}


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("text", ["abc", "abcabc"])
def test_unigram_draws_by_probability_to_the_power_of_alpha(text, alpha):
    tokenizer = unigram()
    assert_close(drawn(tokenizer, UnigramSampling(tokenizer, alpha), text), unigram_probabilities(text, alpha))


@pytest.mark.parametrize(("make", "resegment"), [(bpe, BpeDropout), (unigram, UnigramSampling)])
def test_bytes_of_a_character_stay_together(make, resegment):
    tokenizer = make()
    for pieces in drawn(tokenizer, resegment(tokenizer, 0.5), "abéc", 200):
        assert "<0xC3> <0xA9>" in " ".join(pieces)
        assert "".join(pieces) == "ab<0xC3><0xA9>c"


@pytest.mark.parametrize(("make", "resegment"), [(bpe, BpeDropout), (unigram, UnigramSampling)])
def test_words_with_tokens_that_are_no_text_stay_as_they_are(make, resegment):
    tokenizer = make()
    again = resegment(tokenizer, 0.5)
    unknown = plain(tokenizer, "ab")[:1] + (0,)
    assert all(again(unknown, Random(seed)) == unknown for seed in range(50))
    if make is unigram:
        tag = (tokenizer.token_to_id("<tag>"),)
        assert plain(tokenizer, "<tag>") == tag
        assert all(again(tag, Random(seed)) == tag for seed in range(50))


@pytest.mark.parametrize(("make", "resegment"), [(bpe, BpeDropout), (unigram, UnigramSampling)])
def test_the_same_generator_gives_the_same_words_also_in_another_process(make, resegment):
    tokenizer = make()
    first = resegment(tokenizer, 0.3)
    word = plain(tokenizer, "abcabcabc")
    drawn_first = [first(word, Random(seed)) for seed in range(50)]
    second = pickle.loads(pickle.dumps(first))
    assert [second(word, Random(seed)) for seed in range(50)] == drawn_first
    assert len(set(drawn_first)) > 5
    assert len(pickle.dumps(first)) == len(pickle.dumps(resegment(tokenizer, 0.3)))


def test_marks_of_other_kinds_of_bpe_are_refused():
    with pytest.raises(InputError, match=r"bpe_dropout: the tokenizer has a end_of_word_suffix '</w>'"):
        BpeDropout(Tokenizer(models.BPE(end_of_word_suffix="</w>")), 0.1)
