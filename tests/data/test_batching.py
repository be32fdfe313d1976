"""Token-budget batches equal fairseq's and are reproducible; the collator pads and shifts."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from residual_hf.base.errors import InputError
from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler
from residual_hf.data.encoding import EncodedCorpus

MULTI30K = Path(__file__).parents[3] / "shared" / "reference" / "multi30k_bpe"


def random_lengths(count, longest=40, seed=0):
    generator = np.random.RandomState(seed)
    return generator.randint(1, longest, count), generator.randint(1, longest, count)


def greedy_batches(order, costs, max_tokens, multiple):
    """fairseq's rule, one sentence at a time: grow a batch until it overflows, split it after the last size that is a
    multiple or below one, and continue with the rest."""
    batches, batch = [], []
    for index in order:
        batch.append(index)
        while True:
            rows = len(batch)
            if rows * max(costs[i] for i in batch) <= max_tokens:
                break
            cut = rows - 1 if rows - 1 < multiple else (rows - 1) // multiple * multiple
            batches.append(batch[:cut])
            batch = batch[cut:]
    while batch:
        cut = len(batch) if len(batch) < multiple else len(batch) // multiple * multiple
        batches.append(batch[:cut])
        batch = batch[cut:]
    return batches


@pytest.mark.parametrize("multiple", [1, 4, 8])
@pytest.mark.parametrize("max_tokens", [40, 150, 400])
def test_batches_are_those_of_the_sentence_by_sentence_rule(max_tokens, multiple):
    sources, targets = random_lengths(300)
    sampler = TokenBudgetSampler(sources, targets, max_tokens, shuffle=False, multiple=multiple)
    order = sorted(range(300), key=lambda index: (sources[index], targets[index]))
    costs = np.maximum(sources, targets)
    assert list(sampler) == greedy_batches(order, costs, max_tokens, multiple)


def test_epochs_have_every_sentence_once_within_the_budget_in_another_order_that_can_be_repeated():
    sources, targets = lengths = random_lengths(400)
    sampler = TokenBudgetSampler(*lengths, 200)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        assert len(epochs[-1]) == len(sampler)
        assert Counter(index for batch in sampler for index in batch) == Counter(range(400))
        assert max(len(batch) * max(sources[batch].max(), targets[batch].max()) for batch in sampler) <= 200
    assert epochs[0] != epochs[1] != epochs[2]
    assert sorted(epochs[0]) == sorted(epochs[1])
    again = TokenBudgetSampler(*lengths, 200)
    again.set_epoch(2)
    assert list(TokenBudgetSampler([2], [2], 2, seed=2**32 - 1)) == [[0]], "the largest seed"
    assert list(again) == epochs[2]
    assert list(TokenBudgetSampler(*lengths, 200, seed=2)) != epochs[0]


def test_ties_are_broken_at_random_and_sorted_otherwise():
    same = [5] * 64
    assert list(TokenBudgetSampler(same, same, 40, shuffle=False)) == [list(range(i, i + 8)) for i in range(0, 64, 8)]
    shuffled = TokenBudgetSampler(same, same, 40)
    assert any(batch != sorted(batch) for batch in shuffled)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs ../shared/reference/multi30k_bpe next to the repository")
def test_multi30k_gives_the_batches_of_the_official_run():
    lengths = []
    for language in ("en", "de"):
        with gzip.open(MULTI30K / f"train.bpe.{language}.gz", "rt", encoding="utf-8") as lines:
            lengths.append([len(line.split()) + 1 for line in lines])
    statistics = TokenBudgetSampler(*lengths, 4096).statistics()
    assert statistics["batches"] == 128
    assert statistics["target_tokens_per_batch"] == pytest.approx(3470, rel=2e-3)
    assert statistics["source_padding"] < 0.01 and statistics["target_padding"] < 0.12


@pytest.mark.parametrize(("multiple", "cells"), [(None, (8, 12)), (4, (8, 16))])
def test_statistics_count_padding(multiple, cells):
    statistics = TokenBudgetSampler([2, 4], [3, 6], 12, multiple=1).statistics(multiple)
    assert statistics == {
        "batches": 1,
        "sentences_per_batch": 2.0,
        "target_tokens_per_batch": 9.0,
        "source_padding": pytest.approx(1 - 6 / cells[0]),
        "target_padding": pytest.approx(1 - 9 / cells[1]),
    }


def test_accelerate_shards_batches_and_passes_the_epoch_on():
    from accelerate.data_loader import prepare_data_loader

    sources, targets = random_lengths(203)
    features = [{"input_ids": [7] * sources[i], "labels": [i + 100] * targets[i]} for i in range(203)]
    seen = {}
    for rank in range(2):
        sampler = TokenBudgetSampler(sources, targets, 200)
        loader = DataLoader(features, batch_sampler=sampler, collate_fn=Seq2SeqCollator(1, 2))
        loader = prepare_data_loader(loader, num_processes=2, process_index=rank, put_on_device=False)
        for epoch in range(2):
            loader.set_epoch(epoch)
            seen[rank, epoch] = [tuple(batch["labels"][:, 0].tolist()) for batch in loader]
    single = TokenBudgetSampler(sources, targets, 200)
    for epoch in range(2):
        single.set_epoch(epoch)
        whole = [tuple(index + 100 for index in batch) for batch in single]
        assert seen[0, epoch] == whole[0::2]
        assert seen[1, epoch][: len(whole[1::2])] == whole[1::2]
        assert len(seen[0, epoch]) == len(seen[1, epoch])


FEATURES = [{"input_ids": [5, 6, 2], "labels": [7, 2]}, {"input_ids": [8, 2], "labels": [9, 10, 11, 2]}]


def test_collator_pads_and_shifts():
    batch = Seq2SeqCollator(pad_token_id=1, decoder_start_token_id=2)(FEATURES)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 2], [8, 2, 1]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "labels": [[7, 2, -100, -100], [9, 10, 11, 2]],
        "decoder_input_ids": [[2, 7, 2, 1], [2, 9, 10, 11]],
    }
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    converted = [
        {"input_ids": torch.tensor(feature["input_ids"]), "labels": np.array(feature["labels"], dtype=np.int32)}
        for feature in FEATURES
    ]
    assert all(torch.equal(tensor, batch[name]) for name, tensor in Seq2SeqCollator(1, 2)(converted).items())
    alone = Seq2SeqCollator(1, 2)([{"input_ids": feature["input_ids"]} for feature in FEATURES])
    assert set(alone) == {"input_ids", "attention_mask"}


def test_collator_rounds_lengths_up():
    batch = Seq2SeqCollator(1, 2, pad_to_multiple_of=8)(FEATURES)
    assert {tuple(tensor.shape) for tensor in batch.values()} == {(2, 8)}
    assert batch["attention_mask"].sum().item() == 5
    shapes = [
        tuple(Seq2SeqCollator(1, 2, pad_to_multiple_of=8, max_length=longest)(FEATURES)["labels"].shape)
        for longest in (2, 6, 9)
    ]
    assert shapes == [(2, 4), (2, 6), (2, 8)]
    frames = [{"input_features": np.zeros((length, 3)), "labels": [5, 2]} for length in (9, 11)]
    limits = {"pad_to_multiple_of": 8, "max_length": 6}
    rounded = [Seq2SeqCollator(1, 2, **limits, max_frames=most)(frames)["input_features"] for most in (None, 12)]
    assert [tuple(each.shape) for each in rounded] == [(2, 16, 3), (2, 12, 3)]
    assert (batch["labels"] != -100).sum().item() == 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: TokenBudgetSampler([3, 9], [4, 5], 8),
            "max_tokens: 8 given, but the source of sentence 1 .* has 9 tokens; raise max_tokens to 9 or more",
        ),
        (lambda: TokenBudgetSampler([3, 2, 4], [4, 5, 10], 8), "the target of sentence 2 .* has 10 tokens"),
        (lambda: Seq2SeqCollator(None, 2), "pad_token_id: missing, must be an integer >= 0"),
        (lambda: Seq2SeqCollator(1, -1), "decoder_start_token_id: -1 given"),
        (lambda: Seq2SeqCollator(1, 2, pad_to_multiple_of=0), "pad_to_multiple_of: 0 given"),
        (lambda: Seq2SeqCollator(1, 2)([FEATURES[0], {"input_ids": [2]}]), "labels: in 1 of 2 features"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_length_bucketed_batches_hold_every_pair_once_and_waste_less():
    generator = np.random.RandomState(3)
    sources = generator.randint(4, 40, 20000)
    targets = (sources * generator.uniform(0.7, 1.4, 20000)).astype(int) + 1
    orders = ("fairseq", "length_bucketed")
    fairseq, bucketed = (TokenBudgetSampler(sources, targets, 4096, order=order) for order in orders)
    assert sorted(index for batch in bucketed for index in batch) == list(range(20000))
    assert all(len(batch) * max(sources[batch].max(), targets[batch].max()) <= 4096 for batch in bucketed)
    ours, theirs = bucketed.statistics(), fairseq.statistics()
    assert ours["batches"] < 0.95 * theirs["batches"]
    assert max(ours["source_padding"], ours["target_padding"]) < 0.05 < theirs["target_padding"]


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_get_equally_many_batches_and_no_sentence_twice(processes):
    lengths = random_lengths(101)
    alone = TokenBudgetSampler(*lengths, 100)
    together = TokenBudgetSampler(*lengths, 100, processes=processes)
    batches = list(together)
    assert len(batches) == len(together) and len(batches) % processes == 0
    assert [batch for batch in batches if batch != [None]] == list(alone)
    assert together.statistics() == alone.statistics()
    corpus = EncodedCorpus.from_ids([[5, 2]], [[6, 2]])
    assert Seq2SeqCollator(1, 2)([corpus[None]])["labels"].eq(-100).all()
