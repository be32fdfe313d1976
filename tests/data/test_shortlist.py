from types import SimpleNamespace

import numpy as np
import pytest

from residual_hf.base.errors import InputError
from residual_hf.data import shortlist as module
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.shortlist import Shortlist, build_shortlist, load_shortlist

END, WORDS = 2, 40
CONFIG = SimpleNamespace(vocab_size=3, decoder_vocab_size=9)


def dictionary(words):
    """The translation of each word of a constructed language."""
    return 3 + (words - 3) * 7 % WORDS


@pytest.fixture(scope="module")
def corpus():
    """Sentences in reversed order, each word translated by the dictionary."""
    numbers = np.random.default_rng(1)
    sources = [numbers.integers(3, 3 + WORDS, numbers.integers(3, 9)) for _ in range(400)]
    targets = [dictionary(words)[::-1] for words in sources]
    return EncodedCorpus.from_ids(*([[*row.tolist(), END] for row in side] for side in (sources, targets)))


def test_the_first_candidate_is_the_translation(corpus, monkeypatch):
    words = np.arange(3, 3 + WORDS)
    whole = build_shortlist(corpus, 50, always=[END], joint=False, best=4, frequent=0)
    assert (whole.candidates[words, 0] == dictionary(words)).all()
    assert whole.frequent.tolist() == [END] and (whole.candidates[3 + WORDS :] == -1).all()
    monkeypatch.setattr(module, "LINKS_TOGETHER", 1000)
    in_parts = build_shortlist(corpus, 50, always=[END], joint=False, best=4, frequent=0)
    np.testing.assert_array_equal(whole.candidates, in_parts.candidates)
    monkeypatch.setattr(module, "MOST_LINKS", 6000)
    assert sum(len(part.pair) for part in module.links_of(corpus)) <= 6000
    sampled = build_shortlist(corpus, 50, always=[END], joint=False, best=4, frequent=0)
    assert (sampled.candidates[words, 0] == dictionary(words)).mean() > 0.9


def test_tokens_of_a_sentence(corpus):
    found = build_shortlist(corpus, 50, always=[END, 49], joint=True, best=2, frequent=3)
    assert len(found.frequent) == 4  # `</s>` is the most frequent
    assert {END, 49} <= {*found.frequent} and not np.isin(found.candidates, found.frequent).any()
    tokens = found.tokens_for([5, 6, 47, END])
    assert {5, 6, 47, *found.candidates[5], *found.frequent} <= {*tokens, *found.frequent, -1}
    assert (np.diff(tokens) > 0).all() and tokens[0] >= 0


def test_a_saved_shortlist_is_the_same_and_is_checked(tmp_path):
    saved = Shortlist(np.array([[1, -1], [5, 2], [8, -1]], np.int32), np.array([2, 7], np.int32))
    assert load_shortlist(tmp_path, CONFIG) is None
    saved.save(tmp_path)
    loaded = load_shortlist(tmp_path, CONFIG)
    np.testing.assert_array_equal(loaded.candidates, saved.candidates)
    np.testing.assert_array_equal(loaded.frequent, saved.frequent)
    for sizes in ({"vocab_size": 4}, {"decoder_vocab_size": 8}):
        with pytest.raises(InputError, match=r"shortlist.safetensors: is not of the vocabularies of the model"):
            load_shortlist(tmp_path, SimpleNamespace(**{**vars(CONFIG), **sizes}))
    (tmp_path / "shortlist.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="shortlist.safetensors cannot be read"):
        load_shortlist(tmp_path, CONFIG)
