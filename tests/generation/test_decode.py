"""The search in batches, side by side in threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from generation.test_translator import translator
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer
from transformers.utils.quantization_config import QuantizationMethod

from residual_hf.base.errors import InputError
from residual_hf.checkpoint import move_to
from residual_hf.generation import decode
from residual_hf.generation.decode import move_in_precision, search
from residual_hf.generation.generation_settings import DecodingSettings, SearchRequest


@pytest.fixture(scope="module")
def plain():
    return translator()


@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_model_that_is_not_finite_translates_into_nothing(num_beams):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    torch.nn.init.constant_(model.model.decoder.layers[0].ffn.fc1.bias, float("nan"))
    sources = tokenizer(SENTENCES)["input_ids"]
    found = search(model, sources, DecodingSettings(num_beams=num_beams))
    assert [len(candidates) for candidates in found] == [1] * len(SENTENCES)


@pytest.fixture
def three_threads():
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def test_threads_search_batches_of_their_own(plain, three_threads, monkeypatch):
    sources = [plain.tokenizer(text).input_ids for text in SENTENCES * 30]
    alone = [best for source in sources[: len(SENTENCES)] for (best,) in search(plain.model, [source])]
    monkeypatch.setattr(decode, "SMALL_BATCH", 100)
    one_batch, seen, done, others = decode.search_batch, [], [], []

    def recorded(model, sources, *arguments, **options):
        if not others:  # a thread of somebody else's that begins in the meantime
            others.append(ThreadPoolExecutor(1).submit(torch.get_num_threads).result())
        seen.append((threading.get_ident(), torch.get_num_threads(), sum(map(len, sources))))
        return one_batch(model, sources, *arguments, **options)

    monkeypatch.setattr(decode, "search_batch", recorded)
    found = search(plain.model, sources, DecodingSettings(), SearchRequest(progress=done.append))
    assert [best.ids for (best,) in found] == [best.ids for best in alone] * 30
    assert sum(done) == len(sources)
    assert threading.get_ident() not in {thread for thread, _, _ in seen} and {count for _, count, _ in seen} == {1}
    assert max(size for _, _, size in seen) <= 100
    assert torch.get_num_threads() == 3 and set(others) == {3}

    seen.clear()
    search(plain.model, sources[:6], DecodingSettings())  # few sentences: each thread has some
    assert len(seen) >= 3
    seen.clear()
    search(plain.model, sources, DecodingSettings(), SearchRequest.of(do_sample=True))
    assert {thread for thread, _, _ in seen} == {threading.get_ident()}  # in the order of the random numbers


def test_processes_with_other_numbers_of_threads_search_the_same_batches(plain, three_threads, monkeypatch):
    sources = [plain.tokenizer(text).input_ids for text in SENTENCES * 30]
    monkeypatch.setattr(decode, "SMALL_BATCH", 10)
    monkeypatch.setattr(decode, "search_batch", lambda model, batch, *_: sizes.append(len(batch)) or [[]] * len(batch))
    found = []
    for threads in (3, 2):  # of the other process
        sizes: list[int] = []
        counts = [threads]
        monkeypatch.setattr(decode, "gather_object", lambda own, counts=counts: own + (counts if own[0] == 3 else []))
        search(plain.model, sources, DecodingSettings(), SearchRequest(shared=True))
        found.append(sorted(sizes))
    sizes, _ = [], torch.set_num_threads(2)
    search(plain.model, sources, DecodingSettings(), SearchRequest())
    assert found[1] == sorted(sizes) != found[0]


def test_a_gpu_is_that_of_the_process(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    places: list[str] = []
    move_to(SimpleNamespace(to=places.append), "cuda")
    assert places == ["cuda:3"]


def test_after_an_error_the_threads_are_as_before(plain, three_threads):
    with pytest.raises(InputError, match="generate: "):
        sources, request = [plain.tokenizer(SENTENCES[0]).input_ids] * 9, SearchRequest(num_return_sequences=99)
        search(plain.model, sources, DecodingSettings(), request)
    assert torch.get_num_threads() == 3


def test_a_model_of_bitsandbytes_stays_as_it_was_loaded():
    model = tiny_model(tiny_tokenizer())
    model.quantization_method = QuantizationMethod.BITS_AND_BYTES  # whose `to` refuses types
    move_in_precision(model, None, "float32", requested=False)
    assert model.dtype == torch.float32
