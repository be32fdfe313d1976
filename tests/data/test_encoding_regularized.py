"""Corpora that are segmented anew in every epoch: what changes, what never does, and what can be repeated."""

import numpy as np
import pytest
from torch.utils.data import DataLoader

from residual_hf.base.errors import InputError
from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler
from residual_hf.data.corpus import ParallelCorpus
from residual_hf.data.data_settings import SubwordRegularizationSettings, TokenizerSettings
from residual_hf.data.encoding import encode_corpus
from residual_hf.data.subword_regularization import resegmenters
from residual_hf.data.tokenizer import pretokenized_tokenizer
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.model.tokenization_residual import ResidualTokenizer

TAG = "<2de>"
SOURCES = ["the little houses near the garden", "a house, housed in 12 gardens!"]
SOURCES = [*SOURCES, "literal </s> and <s> and <0x41> and ▁ marks", "unseen é and 漢字", "one"] * 4
TARGETS = ["die kleinen Häuser neben dem Garten", "ein Haus, 12 Gärten!"]
TARGETS = [*TARGETS, "wörtlich </s> und ▁", "ungesehen 漢字 🙂", "eins"] * 4
TRAINING = [line for line in (*SOURCES, *TARGETS) if "漢" not in line] * 5
BPE, UNIGRAM = SubwordRegularizationSettings(bpe_dropout=0.3), SubwordRegularizationSettings(unigram_alpha=0.2)
KINDS = {"bpe": BPE, "byte_bpe": BPE, "unigram": UNIGRAM}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def corpus():
    return ParallelCorpus([f"{TAG} {source}" for source in SOURCES], TARGETS, "test")


@pytest.fixture(scope="module")
def tokenizers():
    return {
        kind: train_tokenizer(TRAINING, TokenizerSettings(vocab_size=420, kind=kind), language_tags=[TAG])
        for kind in KINDS
    }


def sample(corpus, tokenizer, settings, **options):
    return encode_corpus(corpus, tokenizer, resegmenters(tokenizer, settings), **options)


def rows(data, side):
    return [data[i][side].tolist() for i in range(len(data))]


@kinds
def test_the_ids_of_every_epoch_decode_to_the_text(kind, corpus, tokenizers):
    tokenizer = tokenizers[kind]
    data = sample(corpus, tokenizer, KINDS[kind])
    plain = encode_corpus(corpus, tokenizer)
    for epoch in range(20):
        data.set_epoch(epoch)
        for side, texts in (("input_ids", corpus.sources), ("labels", corpus.targets)):
            for index, row in enumerate(rows(data, side)):
                assert tokenizer.decode(row, skip_special_tokens=True) == texts[index]
                assert row[-1] == 2 and not {0, 1, 2, 3} & set(row[:-1])
                assert row[0] == plain[index][side][0] or side == "labels"  # the language tag
    assert rows(data, "input_ids") != rows(plain, "input_ids")
    assert np.array_equal(data.source_lengths, plain.source_lengths)  # which batches are made of
    assert np.array_equal(data.target_lengths, plain.target_lengths)


@kinds
def test_a_row_depends_on_seed_epoch_and_index_alone(kind, corpus, tokenizers):
    first, second, other = (sample(corpus, tokenizers[kind], KINDS[kind], seed=seed) for seed in (1, 1, 2))
    second.set_epoch(1)
    rows(second, "labels")
    second.set_epoch(0)
    backwards = [second[i]["labels"].tolist() for i in reversed(range(len(second)))]
    assert backwards[::-1] == rows(first, "labels") == rows(first, "labels")
    assert rows(other, "labels") != rows(first, "labels")
    first.set_epoch(1)
    assert rows(first, "labels") != backwards[::-1]
    assert len({tuple(first[i]["input_ids"].tolist()) for i in range(0, 20, 5)}) > 1  # the same text at four places


@pytest.mark.parametrize(("sides", "sampled"), [("source", ["input_ids"]), ("target", ["labels"])])
def test_only_the_side_asked_for_is_sampled(sides, sampled, corpus, tokenizers):
    data = sample(corpus, tokenizers["bpe"], SubwordRegularizationSettings(bpe_dropout=0.5, sides=sides))
    plain = encode_corpus(corpus, tokenizers["bpe"])
    for column in ("input_ids", "labels"):
        assert (rows(data, column) != rows(plain, column)) == (column in sampled)


def test_no_dropout_is_the_plain_segmentation(tokenizers):
    assert not resegmenters(tokenizers["bpe"], SubwordRegularizationSettings(bpe_dropout=0.0))


def test_separate_vocabularies_are_sampled_each_by_its_own(corpus):
    pair = [
        train_tokenizer(side, TokenizerSettings(vocab_size=360), language_tags=[TAG])
        for side in (SOURCES * 5, [*TARGETS, "é"] * 5)
    ]
    tokenizer = ResidualTokenizer.from_pair(*pair)
    data = sample(corpus, tokenizer, BPE)
    plain = encode_corpus(corpus, tokenizer)
    for side, texts, own in (("input_ids", corpus.sources, pair[0]), ("labels", corpus.targets, pair[1])):
        assert [own.decode(row, skip_special_tokens=True) for row in rows(data, side)] == texts
        assert rows(data, side) != rows(plain, side)


def test_rows_that_grow_too_long_stay_plain(corpus, tokenizers):
    plain = encode_corpus(corpus, tokenizers["bpe"])
    limit = int(plain.source_lengths[0])
    data = sample(corpus, tokenizers["bpe"], SubwordRegularizationSettings(bpe_dropout=1.0), max_length=limit)
    assert data[0]["input_ids"].tolist() == plain[0]["input_ids"].tolist()
    assert len(data[4]["input_ids"]) <= limit and data[4]["input_ids"].tolist() != plain[4]["input_ids"].tolist()


def test_selected_pairs_are_sampled_too(corpus, tokenizers):
    tokenizer = tokenizers["bpe"]
    data = sample(corpus, tokenizer, BPE, seed=3, max_length=200).select([7, 2])
    assert (len(data), data.seed, data.max_length) == (2, 3, 200)
    decoded = [tokenizer.decode(row, skip_special_tokens=True) for row in rows(data, "labels")]
    assert decoded == [TARGETS[7], TARGETS[2]]
    seen = set()
    for epoch in range(5):
        data.set_epoch(epoch)
        seen.add(tuple(data[0]["labels"].tolist()))
    assert len(seen) > 1


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_of_the_sampler_reaches_the_data_set_in_every_process(workers, corpus, tokenizers):
    data = sample(corpus, tokenizers["bpe"], BPE)
    batches = TokenBudgetSampler(data.source_lengths, data.target_lengths, 200, seed=1, corpus=data)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=Seq2SeqCollator(1, 2), num_workers=workers)
    for epoch in (3, 0):
        batches.set_epoch(epoch)
        loaded = [batch["labels"] for batch in loader]
        alone = sample(corpus, tokenizers["bpe"], BPE)
        alone.set_epoch(epoch)
        expected = [[alone[i]["labels"].tolist() for i in indices] for indices in batches]
        assert [[[t for t in row if t != -100] for row in batch.tolist()] for batch in loaded] == expected


def test_word_boundaries_are_kept_on_disk(corpus, tokenizers, tmp_path, monkeypatch):
    tokenizer = tokenizers["bpe"]
    encode_corpus(corpus, tokenizer, name="train", cache_dir=tmp_path)
    first = sample(corpus, tokenizer, BPE, name="train", cache_dir=tmp_path)
    calls = []
    monkeypatch.setattr(type(tokenizer), "__call__", lambda *a, **k: calls.append(a))
    again = sample(corpus, tokenizer, BPE, name="train", cache_dir=tmp_path)
    assert not calls and rows(again, "labels") == rows(first, "labels")


def test_tokenizers_that_cannot_be_sampled_from_are_refused(corpus, tokenizers, tmp_path):
    (tmp_path / "dict.txt").write_text("one 1\ntwo 1\n")
    for tokenizer, settings, message in (
        (pretokenized_tokenizer(tmp_path / "dict.txt"), BPE, "kind: 'pretokenized' given, must be bpe or byte_bpe"),
        (tokenizers["unigram"], BPE, "kind: 'unigram' given, must be bpe or byte_bpe"),
        (tokenizers["byte_bpe"], UNIGRAM, "kind: 'bpe' given, must be unigram"),
    ):
        with pytest.raises(InputError, match=message):
            sample(corpus, tokenizer, settings)
