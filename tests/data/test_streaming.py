"""Streams are reproducible, resume exactly and use constant memory."""

import contextlib
import gc
import gzip
import json
import os
import signal
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.processes import run_forked, wait_for
from torch.utils.data import DataLoader

from residual_hf.base.errors import InputError
from residual_hf.data.batching import Seq2SeqCollator, TokenBudgetSampler
from residual_hf.data.corpus import read_parallel
from residual_hf.data.data_settings import CleaningSettings, CorpusSpec, DataSettings, TokenizerSettings
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.encoding import encode as encode_with
from residual_hf.data.multilingual import concatenate, training_pairs
from residual_hf.data.streaming import StreamedBatches
from residual_hf.data.tokenizer_training import train_tokenizer


def numbered(first: int, count: int) -> list[tuple[str, str]]:
    """Pairs of varying length that begin with their number on both sides."""
    return [(f"{n}" + " 7" * (n % 5), f"{n}" + " 8" * (n % 7)) for n in range(first, first + count)]


def write(folder: Path, name: str, pairs: list[tuple[str, str]], packed: bool = False, **options) -> CorpusSpec:
    paths = []
    for side, language in enumerate(("en", "de")):
        data = "".join(pair[side] + "\n" for pair in pairs).encode()
        paths.append(folder / f"{name}.{language}{'.gz' if packed else ''}")
        paths[-1].write_bytes(gzip.compress(data) if packed else data)
    return CorpusSpec(source=paths[0], target=paths[1], name=name, **options)


def encode(corpora):
    """Words are their own ids."""
    pairs = [pair for corpus in corpora for pair in corpus]
    sides = zip(*pairs, strict=True) if pairs else ((), ())
    return EncodedCorpus.from_ids(*([[*map(int, line.split()), 2] for line in side] for side in sides))


def first(stream, count):
    """The first batches, as lists of pairs of id lists."""
    iterator = iter(stream)
    batches = [[tuple(side.tolist() for side in f.values()) for f in batch] for batch in islice(iterator, count)]
    iterator.close()
    return batches


def numbers(batches):
    return [source[0] for batch in batches for source, _ in batch]


@pytest.fixture
def two(tmp_path):
    """A plain corpus and a packed one."""
    return [
        write(tmp_path, "a", numbered(1000, 23), weight=0.6),
        write(tmp_path, "b", numbered(2000, 7), packed=True, weight=0.4),
    ]


def stream_of(corpora, encode=encode, max_tokens=24, **options):
    options = {"shuffle_buffer": 10, "multiple": 2} | options
    reading = {field.name: options.pop(field.name) for field in fields(DataSettings) if field.name in options}
    valid = [replace(spec, weight=None, tag=None) for spec in corpora]
    return StreamedBatches(DataSettings(train=corpora, valid=valid, **reading), encode, max_tokens, **options)


def test_batches_come_again_and_respect_the_budget(two):
    batches = first(stream_of(two), 50)
    assert batches == first(stream_of(two), 50)
    assert batches != first(stream_of(two, seed=2), 50)
    known = {pair[0] for pair in numbered(1000, 23) + numbered(2000, 7)}
    for batch in batches:
        assert len(batch) * max(len(side) for pair in batch for side in pair) <= 24
        for source, target in batch:
            assert source[0] == target[0]
            assert " ".join(map(str, source[:-1])) in known


def test_the_first_blocks_are_smaller(tmp_path, monkeypatch):
    monkeypatch.setattr("residual_hf.data.streaming.FIRST_BLOCK", 10)
    seen = numbers(first(stream_of([write(tmp_path, "a", numbered(0, 200))], shuffle_buffer=35), 60))
    for start, stop in ((0, 10), (10, 30), (30, 65), (65, 100)):
        assert sorted(seen[start:stop]) == list(range(start, stop))


@pytest.mark.parametrize("packed", [False, True])
def test_every_pass_has_every_pair_once_shuffled_within_its_block(tmp_path, packed):
    seen = numbers(first(stream_of([write(tmp_path, "a", numbered(0, 40), packed)]), 60))
    orders = []
    for start in range(0, 120, 10):
        orders.append([number - start % 40 for number in seen[start : start + 10]])
        assert sorted(orders[-1]) == list(range(10))
    assert all(order != sorted(order) for order in orders)
    assert orders[0] != orders[4]  # the same pairs in the next pass


@pytest.mark.parametrize("bidirectional", [False, True])
def test_corpora_that_fit_into_the_buffer_give_the_batches_of_corpora_in_memory(tmp_path, bidirectional):
    languages = {"source_lang": "en", "target_lang": "de"}
    specs = [
        write(tmp_path, "a", numbered(1000, 2500), **languages),
        write(tmp_path, "b", numbered(5000, 7), packed=True, **languages),
    ]
    pairs = [training_pairs(read_parallel(spec), bidirectional, None) for spec in specs]
    corpus = encode([concatenate(pairs, "both")]).drop_long(6)
    sampler = TokenBudgetSampler(corpus.source_lengths, corpus.target_lengths, 24, multiple=2, seed=3)
    expected = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        expected += [[tuple(side.tolist() for side in corpus[i].values()) for i in batch] for batch in sampler]
    size = 2507 * (1 + bidirectional)
    options = {"seed": 3, "max_length": 6, "order": "fairseq", "bidirectional": bidirectional}
    assert first(stream_of(specs, shuffle_buffer=size, **options), len(expected)) == expected
    assert first(stream_of(specs, shuffle_buffer=size - 1, **options), len(expected)) != expected


@pytest.mark.parametrize(("rank", "processes"), [(0, 1), (0, 3), (2, 3), (0, 8)])
def test_resuming_anywhere_is_as_not_stopping(two, rank, processes):
    whole = first(stream_of(two), 50)
    stream = stream_of(two, world_size=processes, rank=rank)
    iterator = iter(stream)
    for consumed in range(0, 41, processes):
        state = json.loads(json.dumps(stream.state(consumed)))
        again = stream_of(two)
        again.start_from(state)
        assert json.loads(json.dumps(again.state(consumed))) == state
        assert first(again, 8) == whole[consumed : consumed + 8], consumed
        next(iterator)
    assert state["block"] >= 8
    assert [place["passes"] > 1 for place in state["corpora"]] == [True, True]
    iterator.close()


def test_resuming_encodes_one_block_at_most_before_the_next_batch(two):
    stream = stream_of(two)
    iterator = iter(stream)
    list(islice(iterator, 40))
    state = stream.state(40)
    iterator.close()
    encoded = []

    def counting(corpora):
        corpus = encode(corpora)
        encoded.append(len(corpus))
        return corpus

    again = stream_of(two, encode=counting)
    again.start_from(state)
    next(iter(again))
    assert sum(encoded) <= 2 * 10  # the second one is made ahead


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_the_batches_of_one(two, processes):
    whole = first(stream_of(two), 40)
    shares = [first(stream_of(two, world_size=processes, rank=rank), 40 // processes) for rank in range(processes)]
    assert [batch for step in zip(*shares, strict=True) for batch in step] == whole


def test_another_number_of_processes_goes_on_with_the_same_batches(two):
    whole = first(stream_of(two), 40)
    stream = stream_of(two, world_size=3, rank=1)
    iterator = iter(stream)
    list(islice(iterator, 7))
    shares = []
    for rank in range(2):
        again = stream_of(two, world_size=2, rank=rank)
        again.start_from(stream.state(21))
        shares.append(first(again, 4))
    for step, batches in enumerate(zip(*shares, strict=True)):
        expected = whole[21 + 2 * step : 23 + 2 * step]
        assert sorted(batches) == sorted(expected)
    iterator.close()


def test_duplicates_are_dropped_within_a_block_and_corpus(tmp_path):
    corpora = [write(tmp_path, name, [("1", "1"), ("1", "1"), ("2", "2"), ("3", "3")]) for name in "ab"]
    stream = stream_of(corpora, cleaning=CleaningSettings(duplicates="pair"))
    assert sorted(numbers(first(stream, 2))) == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    alone = stream_of(corpora[:1], cleaning=CleaningSettings(duplicates="pair"), shuffle_buffer=1)
    assert numbers(first(alone, 4)) == [1, 1, 2, 3]


def test_cleaning_keeps_the_share_of_a_corpus_that_is_read_several_times_in_a_block(tmp_path):
    specs = [write(tmp_path, "a", numbered(1000, 400), weight=1), write(tmp_path, "b", numbered(2000, 20), weight=1)]
    seen = numbers(first(stream_of(specs, shuffle_buffer=200, cleaning=CleaningSettings(duplicates="pair")), 30))
    assert sum(n >= 2000 for n in seen) / len(seen) == pytest.approx(0.5, abs=0.1)
    long = [(f"{n}" + " 7" * 19 * (n % 4 > 0), "8") for n in range(3000, 3400)]  # of which a fourth is kept
    gone = [(f"{n}" + " 7" * 19, "8") for n in range(4000, 4100)]
    specs = [
        write(tmp_path, name, pairs, weight=1)
        for name, pairs in zip("cde", (long, numbered(0, 400), gone), strict=True)
    ]
    seen = numbers(first(stream_of(specs, shuffle_buffer=200, cleaning=CleaningSettings(max_words=9)), 30))
    assert sum(n >= 3000 for n in seen) / len(seen) == pytest.approx(0.5, abs=0.1)
    by_size = [replace(spec, weight=None) for spec in specs]
    seen = numbers(first(stream_of(by_size, shuffle_buffer=200, cleaning=CleaningSettings(max_words=9)), 30))
    assert sum(n >= 3000 for n in seen) / len(seen) == pytest.approx(0.2, abs=0.1)  # 100 of 500 that are left


def test_both_directions_are_cleaned_before_they_are_reversed_and_tagged(tmp_path):
    pairs = [("a dog", "собака"), ("собака", "a dog"), ("a cat", "кошка")]
    spec = write(tmp_path, "a", pairs, source_lang="en", target_lang="ru")
    seen = []

    def keep(corpora):
        seen.extend(pair for corpus in corpora for pair in corpus)
        return EncodedCorpus.from_ids([[1]], [[1]])

    cleaning = CleaningSettings(target_script="Cyrillic")
    stream = stream_of([spec], keep, bidirectional=True, language_tags="source", cleaning=cleaning)
    first(stream, 1)
    assert seen[:4] == [
        ("<2ru> a dog", "собака"),
        ("<2en> собака", "a dog"),
        ("<2ru> a cat", "кошка"),
        ("<2en> кошка", "a cat"),
    ]
    assert stream.dropped["wrong script"] >= 1


def test_corpora_are_drawn_in_the_shares_asked_for(two):
    two = [replace(two[0], weight=1), replace(two[1], weight=4)]
    stream = stream_of(two, shuffle_buffer=500)
    seen = numbers(first(stream, 500))[:1500]
    from_first = [n for n in seen if n < 2000]
    assert len(from_first) / len(seen) == pytest.approx(0.2, abs=0.04)  # four standard deviations
    rounds = [from_first.count(n) for n in range(1000, 1023)]
    assert max(rounds) - min(rounds) == 1


def test_a_corpus_in_both_directions_has_its_share_of_the_pairs(two):
    two = [replace(two[0], weight=1), replace(two[1], weight=1, tag="<BT>")]

    def encode_tagged(corpora):
        return encode([corpus.with_pairs((s.removeprefix("<BT> "), t) for s, t in corpus) for corpus in corpora])

    seen = numbers(first(stream_of(two, encode_tagged, shuffle_buffer=500, bidirectional=True), 500))[:1500]
    assert sum(n < 2000 for n in seen) / len(seen) == pytest.approx(0.5, abs=0.05)


def test_limit_skip_empty_cleaning_and_long_pairs(tmp_path):
    pairs = [("1 7", "1 8"), ("", "2"), ("3", " "), ("4" + " 7" * 30, "4"), ("5", "5"), ("6 7", "6 8"), ("7", "7 8")]
    spec = write(tmp_path, "a", pairs, skip_empty=True, limit=4)
    options = {"shuffle_buffer": 4, "max_length": 20, "cleaning": CleaningSettings(identical=True), "seed": 3}
    stream = stream_of([spec], max_tokens=100, **options)
    assert sorted(numbers(first(stream, 2))) == [1, 1, 6, 6]
    assert stream.dropped["too many tokens"] >= 2
    assert stream.dropped["identical"] == stream.dropped["too many tokens"]
    assert stream.dropped["empty"] == 2 * stream.dropped["identical"]
    assert "7, 8" not in str(first(stream, 5))


@pytest.mark.parametrize("saved", [True, False], ids=["arrow", "folder"])
def test_data_sets(tmp_path, monkeypatch, saved):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    pairs = numbered(10, 9)
    rows = [{"src": a, "tgt": b} for a, b in pairs]
    place = tmp_path / "set"
    if saved:
        datasets.Dataset.from_list(rows).save_to_disk(place)
    else:
        place.mkdir()
        (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = CorpusSpec(dataset=place, source_column="src", target_column="tgt")
    whole = first(stream_of([write(tmp_path, "a", pairs)], shuffle_buffer=4), 30)
    stream = stream_of([spec], shuffle_buffer=4)
    assert first(stream, 30) == whole
    iterator = iter(stream)
    list(islice(iterator, 15))
    stream.start_from(stream.state(15))
    assert first(stream, 10) == whole[15:25]
    assert not list((tmp_path / "cache").rglob("*.arrow"))  # the data set was not converted


def test_memory_does_not_grow_with_the_corpus(tmp_path, request):
    request.addfinalizer(partial(gc.set_threshold, *gc.get_threshold()))
    gc.set_threshold(700, 10, 10)  # as users have it; tests collect garbage later
    peaks = []
    for count in (2_000, 16_000):
        spec = write(tmp_path, f"of_{count}", [(f"{n % 97} " * 20, f"{n % 89} " * 20) for n in range(count)])
        stream = stream_of([spec], max_tokens=1000, shuffle_buffer=500)
        tracemalloc.start()
        iterator = iter(stream)
        pairs = 0
        while pairs < count:
            pairs += len(next(iterator))
        iterator.close()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_a_tokenizer_and_the_collator_through_a_data_loader(tmp_path, monkeypatch):
    pairs = [(f"a small dog {n}", f"ein kleiner Hund {n}") for n in range(50)]
    spec = write(tmp_path, "a", pairs)
    settings = TokenizerSettings(kind="unigram", vocab_size=290)
    tokenizer = train_tokenizer([text for pair in pairs for text in pair], settings)
    stream = stream_of([spec], partial(encode_with, tokenizer=tokenizer), 100, shuffle_buffer=20)
    collator = Seq2SeqCollator(tokenizer.pad_token_id, tokenizer.eos_token_id)
    loader = DataLoader(stream, batch_size=None, collate_fn=collator)
    texts = []
    for batch in islice(loader, 12):
        assert batch["labels"].shape[0] * max(batch["labels"].shape[1], batch["input_ids"].shape[1]) <= 100
        labels = batch["labels"].masked_fill(batch["labels"] == -100, tokenizer.pad_token_id)
        sides = (tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (batch["input_ids"], labels))
        texts += zip(*sides, strict=True)
    assert len(texts) > 50
    assert set(texts) <= set(pairs)
    monkeypatch.setattr("residual_hf.data.streaming.get_worker_info", lambda: SimpleNamespace(num_workers=1))
    with pytest.raises(InputError, match="num_workers: 1 given, must be 0"):
        next(iter(stream))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"1\n" * 30, b"1\n" * 29, r"a\.en has 30 lines, but .*a\.de has 29"),
        (b"1\n" * 30, b"1\n" * 25 + b"\xe4\n" * 5, r"a\.de: line 26, byte 1 \(0xE4\) is not UTF-8"),
        (b"1\n" * 25 + b"x\n" * 5, b"1\n" * 30, r"invalid literal for int.*'x'"),  # an error of `encode`
    ],
)
def test_errors_come_when_their_block_is_reached(tmp_path, source, target, message):
    (tmp_path / "a.en").write_bytes(source)
    (tmp_path / "a.de").write_bytes(target)
    stream = stream_of([CorpusSpec(source=tmp_path / "a.en", target=tmp_path / "a.de")], max_tokens=100)
    pairs = 0
    with pytest.raises(ValueError, match=message):
        for batch in stream:
            pairs += len(batch)
    assert pairs == 20


def test_corpora_without_any_use(tmp_path):
    pairs = numbered(10, 5)
    with pytest.raises(InputError, match=r"a: no pair is left; dropped: \{'too many tokens'"):
        next(iter(stream_of([write(tmp_path, "a", pairs)], max_tokens=1, shuffle_buffer=3)))
    with pytest.raises(InputError, match="every pair has an empty side"):
        next(iter(stream_of([write(tmp_path, "b", [("", "1")], skip_empty=True)])))


def test_a_missing_file_is_named_at_once(two, tmp_path):
    two[0].source.unlink()
    with pytest.raises(InputError, match=r"no such file: .*a\.en"):
        stream_of(two)


def test_states_of_other_streams_and_other_places_are_refused(two):
    stream = stream_of(two)
    next(iter(stream))
    state = stream.state(1)
    with pytest.raises(InputError, match="batches: 900 given, must be near those yielded last, from 0 to"):
        stream.state(900)
    with pytest.raises(InputError, match="seed: 2 given, but the stream to continue has 1"):
        stream_of(two, seed=2).start_from(state)
    with open(two[0].source, "a") as file:
        file.write("1\n")
    with pytest.raises(InputError, match="corpora: "):
        stream_of(two).start_from(state)


def test_corpora_may_have_other_names_when_a_stream_goes_on(two):
    stream = stream_of(two)
    next(iter(stream))
    state = stream.state(1)
    renamed = [replace(spec, name=f"other {number}") for number, spec in enumerate(two)]
    stream_of(renamed).start_from(state)
    for corpus in state["settings"]["corpora"]:
        corpus["name"] = "as older versions wrote it"
    stream_of(renamed).start_from(state)


def test_closing_ends_the_thread(two):
    before = threading.active_count()
    iterator = iter(stream_of(two))
    next(iterator)
    iterator.close()
    assert threading.active_count() == before


PROGRAM = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
from residual_hf.data import streaming
from residual_hf.data.encoding import EncodedCorpus
from residual_hf.data.data_settings import CorpusSpec, DataSettings

print("imported", file=sys.stderr)  # libraries may have said something before
streaming.CHUNK = 10  # the second block has 1600, and nobody may wait for all of those
first_block = 4000
encoded = 0
at_work = threading.Event()

def encode(corpora):
    global encoded
    rows = []
    for corpus in corpora:
        encoded += len(corpus)
        if encoded > first_block:
            at_work.set()
            time.sleep(0.2)
        rows += [[1, 2]] * len(corpus)
    return EncodedCorpus.from_ids(rows, rows)

corpus = CorpusSpec(tsv=sys.argv[1])
data = DataSettings(train=corpus, valid=corpus, shuffle_buffer=4000)
iterator = iter(streaming.StreamedBatches(data, encode, 10**6))
next(iterator)
at_work.wait()
print(os.getpid(), file=open("at_work", "w"), flush=True)
if sys.argv[2] == "interrupt":
    for batch in iterator:
        pass
"""


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_a_program_ends_while_the_thread_is_at_work(tmp_path, how):
    (tmp_path / "a.tsv").write_text("1\t1\n" * 5000)
    with ThreadPoolExecutor(1) as pool:
        program = pool.submit(run_forked, "-c", PROGRAM, tmp_path / "a.tsv", how, cwd=tmp_path, check=False)
        pid = int(wait_for(tmp_path / "at_work", program))
        try:
            if how == "interrupt":
                os.kill(pid, signal.SIGINT)
            done = program.result(timeout=100)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if how == "interrupt":
        assert "KeyboardInterrupt" in done.stderr
        assert done.returncode != 0
    else:
        assert (done.returncode, done.stderr.partition("imported\n")[2]) == (0, "")
