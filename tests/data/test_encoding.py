from functools import partial

import pytest
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from residual_hf.base.errors import InputError
from residual_hf.data import encoding
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.encoding import EncodedCorpus, encode_corpus
from residual_hf.data.text_files import in_batches
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.model.checksums import CHECKSUMS

SOURCES = ["one two three", "four", "five six"] * 5
TARGETS = ["eins zwei drei", "vier", "fünf sechs"] * 5


@pytest.fixture(scope="module")
def corpus():
    return ParallelCorpus(SOURCES, TARGETS, "numbers")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*SOURCES, *TARGETS], TokenizerSettings(vocab_size=400))


def test_rows_are_what_the_tokenizer_gives(corpus, tokenizer):
    encoded = encode_corpus(corpus, tokenizer)
    assert len(encoded) == len(corpus)
    for i in (0, 1, 14):
        expected = tokenizer(SOURCES[i], text_target=TARGETS[i])
        assert encoded[i]["input_ids"].tolist() == expected["input_ids"]
        assert encoded[i]["labels"].tolist() == expected["labels"]
        assert encoded.source_lengths[i] == len(expected["input_ids"])
        assert encoded.target_lengths[i] == len(expected["labels"])


def test_long_texts_are_tokenized_in_parts_of_a_chunk(corpus, tokenizer, monkeypatch):
    whole, sizes = encode_corpus(corpus, tokenizer), []
    monkeypatch.setattr(encoding, "in_batches", partial(in_batches, characters=30))
    call = encoding._call
    monkeypatch.setattr(encoding, "_call", lambda *a: sizes.append(sum(map(len, a[2]))) or call(*a))
    parts = encode_corpus(corpus, tokenizer)
    assert len(sizes) > 6 and max(sizes) <= 30
    assert all((parts.arrays[name] == array).all() for name, array in whole.arrays.items())


def test_cache_is_used_for_the_same_text_only(corpus, tokenizer, tmp_path, monkeypatch):
    first = encode_corpus(corpus, tokenizer, name="train", cache_dir=tmp_path)
    calls = []
    monkeypatch.setattr(type(tokenizer), "__call__", lambda *a, **k: calls.append(a))
    again = encode_corpus(corpus, tokenizer, name="train", cache_dir=tmp_path)
    assert not calls
    assert [again[i]["labels"].tolist() for i in range(3)] == [first[i]["labels"].tolist() for i in range(3)]
    monkeypatch.undo()
    other = ParallelCorpus(["six", *SOURCES[1:]], TARGETS, "numbers")
    changed = encode_corpus(other, tokenizer, name="train", cache_dir=tmp_path)
    assert changed[0]["input_ids"].tolist() != first[0]["input_ids"].tolist()
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_cache_is_used_with_the_tokenizer_that_was_saved(corpus, tokenizer, tmp_path):
    """As a resumed run loads it, and one that was resumed twice."""
    encode_corpus(corpus, tokenizer, cache_dir=tmp_path / "cache")
    for name in "ab":
        tokenizer.save_pretrained(tmp_path / name)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
        encode_corpus(corpus, tokenizer, cache_dir=tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 1
    tokenizer.add_tokens(["one"])
    encode_corpus(corpus, tokenizer, cache_dir=tmp_path / "cache")
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 2


@pytest.mark.parametrize("damage", ["another id", "cut off", "no record"])
def test_a_damaged_cache_is_not_used(corpus, tokenizer, tmp_path, caplog, damage):
    expected = encode_corpus(corpus, tokenizer, cache_dir=tmp_path).arrays
    (path,) = tmp_path.glob("*.safetensors")
    if damage == "another id":
        save_file(expected | {"source_ids": expected["source_ids"][::-1].copy()}, path)
    elif damage == "cut off":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        (tmp_path / CHECKSUMS).write_text("{")
    for _ in range(2):
        arrays = encode_corpus(corpus, tokenizer, cache_dir=tmp_path).arrays
        assert all((arrays[name] == expected[name]).all() for name in expected)
    assert caplog.text.count(f"{path} is damaged") == 1


@pytest.mark.parametrize("together", [1, 2, 10])
def test_select_keeps_the_pairs_and_drop_long_looks_at_both_sides(together, monkeypatch):
    monkeypatch.setattr(encoding, "SELECTED", together)
    encoded = EncodedCorpus.from_ids([[5, 2], [6, 7, 2], [2]], [[8, 2], [9, 2], [10, 11, 2]])
    chosen = encoded.select([2, 0])
    assert [row["labels"].tolist() for row in (chosen[0], chosen[1])] == [[10, 11, 2], [8, 2]]
    assert chosen.source_lengths.tolist() == [1, 2]
    assert encoded.drop_long(3) is encoded
    assert [row["labels"].tolist() for row in map(encoded.drop_long(2).__getitem__, range(1))] == [[8, 2]]
    assert len(encoded.drop_long(1)) == 0


def test_a_text_on_which_the_tokenizer_fails_is_named():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"(a|aa)+$"), "isolated")  # takes exponential time
    corpus = ParallelCorpus(["a"] * 3, ["a", "a" * 60 + "b", "a"], "test")
    with pytest.raises(InputError, match=r"tokenizer: fails on the target 'a{59}.*: Onig: .*retry-limit"):
        encode_corpus(corpus, PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"))
