"""The corpus of short trainings."""

import math
from types import SimpleNamespace

import pytest
from support.tiny_translator import tiny_tokenizer

from residual_hf.analysis.short_training import ShortCorpus
from residual_hf.data.encoding import EncodedCorpus


def test_word_frequencies_are_those_of_the_training_targets():
    """A small validation set has fewer words, and an entropy that is too low."""
    train = EncodedCorpus.from_ids([[5, 2], [5, 2]], [[6, 7, 2], [8, 6, 2]])
    valid = EncodedCorpus.from_ids([[5, 2]], [[6, 2]])
    corpus = ShortCorpus({"train": train, "valid": valid}, tiny_tokenizer(), {})
    shares = [2 / 6, 2 / 6, 1 / 6, 1 / 6]
    assert corpus.unigram_entropy == pytest.approx(-sum(share * math.log(share) for share in shares))


def test_each_epoch_has_its_own_segmentation():
    class Segmented(EncodedCorpus):
        def __getitem__(self, index):
            return super().__getitem__(index) | {"labels": [4 + self.epoch]}

    corpus = Segmented.from_ids([[5, 2]], [[4, 2]])
    corpora = {"train": corpus, "valid": EncodedCorpus.from_ids([[5, 2]], [[4, 2]])}
    tokenizer = SimpleNamespace(pad_token_id=1, eos_token_id=2)
    batches = ShortCorpus(corpora, tokenizer, {}).train(seed=1)
    assert [next(batches)["labels"].tolist() for _ in range(3)] == [[[4]], [[5]], [[6]]]
