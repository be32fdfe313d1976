"""The search in C against that in Python, bit by bit, on requests that are drawn at random."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from support.models import OURS, make
from support.native_library import isa, needs_kernels, threads  # noqa: F401
from support.own_search import VOCABULARY, make_model, make_sources
from support.single_stacks import causal

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.native import state as state_module
from residual_hf.native.decoder import packed_model
from residual_hf.native.state import DecoderState

pytestmark = needs_kernels
SCORES = {"return_dict_in_generate": True, "hypothesis_scores": True}
PAIRS = [[token, other] for token in range(4, 60) for other in (11, 12, 13)]
DRAWN = {
    "min_new_tokens": [2, 6],
    "no_repeat_ngram_size": [1, 2, 3],
    "repetition_penalty": [0.7, 1.3],
    "bad_words_ids": [[[5], [6, 7], [8, 9, 10]], [[2, token] for token in range(4, 190)], PAIRS],
    "suppress_tokens": [[*range(20, 120)]],
    "begin_suppress_tokens": [[2, *range(60, 90)]],
    "forced_bos_token_id": [7],
    "forced_eos_token_id": [2, [2, 9]],
    "eos_token_id": [[2, 30, 31]],
}
"""Options of a request, each of which is drawn with a probability of a fifth, and their values."""


@pytest.fixture(scope="module")
def models():
    """A model of each mode, when it is asked for."""
    made = {}
    return lambda mode: made.get(mode) or made.setdefault(mode, make_model(mode, seed=len(made)))


@pytest.fixture
def in_c(monkeypatch):
    """Whether each search ran in C."""
    search, ran = DecoderState.search, []
    monkeypatch.setattr(
        DecoderState, "search", lambda *args: (found := search(*args), ran.append(found is not None))[0]
    )
    return ran


def in_python(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecoderState, "search", lambda *args: None)
        return call()


def drawn(generator):
    """The arguments of `generate`."""
    request = {"num_beams": generator.choice([1, 1, 2, 3, 5]), "max_new_tokens": generator.choice([1, 5, 12, 24])}
    if request["num_beams"] > 1:
        request["length_penalty"] = generator.choice([0.0, 0.6, 1.0, 2.0, -0.5])
        request["early_stopping"] = generator.choice([True, False, "never"])
        request["num_return_sequences"] = generator.choice([1, request["num_beams"]])
    request |= {name: generator.choice(values) for name, values in DRAWN.items() if generator.random() < 0.2}
    return request | {"decoding_dtype": generator.choice(DECODING_DTYPES)}


def drawn_sources(generator):
    sentences = generator.choice([1, 3, 7, 40])
    sources = make_sources(generator, sentences, left_padded=generator.random() < 0.5)
    request = {"input_ids": sources, "attention_mask": sources.ne(1)}
    if generator.random() < 0.3:
        request["length_limits"] = torch.tensor([generator.randrange(1, 20) for _ in range(sentences)])
    if generator.random() < 0.3:
        tokens = range(VOCABULARY)
        lists = [sorted({*generator.sample(tokens, generator.choice([5, 70])), 2, 7}) for _ in range(sentences)]
        request["token_lists"] = [np.array(own) for own in lists]
    if generator.random() < 0.2:
        request["decoder_input_ids"] = torch.tensor([[2, 9, 5]]).repeat(sentences, 1)
    return request


def assert_same(model, request, count=1):
    """The same bits, with some number of threads in C and one in Python."""
    with threads(count):
        found = model.generate(**request, **SCORES)
    expected = in_python(lambda: model.generate(**request, **SCORES))
    assert found.keys() == expected.keys() and {"sequences"} < {*found}
    for name in found:
        assert found[name].numpy().tobytes() == expected[name].numpy().tobytes(), (name, request)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))])
def test_drawn_requests_give_the_same_bits(isa, seed, models, in_c):  # noqa: F811
    generator = random.Random(f"{isa} {seed}")
    for _ in range(30):
        request = drawn_sources(generator) | drawn(generator)
        assert_same(models(generator.choice(OURS)), request, generator.choice([1, 2, 5]))
    assert in_c == [True] * 30


@pytest.mark.parametrize("mode", ["resi_dual", "realformer"])
def test_a_decoder_alone_continues_prompts_with_the_same_bits(mode, in_c):
    fields = {"output_bias": True, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    model, generator = causal(ln_mode=mode, **fields), random.Random(mode)
    with torch.no_grad():
        model.lm_head.bias.normal_(generator=torch.Generator().manual_seed(3))
    for _ in range(30):
        prompt = make_sources(generator, generator.choice([1, 6]), left_padded=True)
        request = drawn(generator) | {"input_ids": prompt, "attention_mask": prompt.ne(1).long()}
        request.pop("repetition_penalty", None)  # which has a length of each prompt
        assert_same(model, request)
    assert in_c == [True] * 30


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [-0.1, 0.0, 0.6, 2.0])
def test_sentences_end_at_the_same_length(early_stopping, length_penalty):
    """Most of 40 sentences finish more hypotheses than they keep."""
    options = {"early_stopping": early_stopping, "length_penalty": length_penalty, "num_return_sequences": 3}
    request = {"input_ids": make_sources(random.Random(1), 40, False), "num_beams": 3, "max_new_tokens": 50}
    assert_same(make_model("resi_dual"), request | options)


@pytest.mark.parametrize("beams", [1, 4])
def test_many_hypotheses_that_are_equally_good(beams, models):
    """Ties go to the first beam and to the smaller id."""
    model = make_model("post_ln")
    torch.nn.init.zeros_(model.lm_head.weight)
    model.lm_head.bias.data.zero_()
    request = {"input_ids": make_sources(random.Random(2), 3, False), "num_beams": beams, "max_new_tokens": 6}
    for options in ({}, {"suppress_tokens": [0, 1, 2, 3]}, {"no_repeat_ngram_size": 1}):
        assert_same(model, request | options)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("options", [{}, {"min_new_tokens": 3}, {"repetition_penalty": 1.2}], ids=str)
def test_scores_that_are_not_numbers(beams, options):
    model = make_model("post_ln")
    request = {"input_ids": make_sources(random.Random(2), 3, False), "num_beams": beams, "max_new_tokens": 6}
    model.model.decoder.layers[0].ffn.fc1.bias.data[0] = torch.nan
    assert_same(model, request | options)
    only_logits = make_model("post_ln", tie_word_embeddings=False)
    only_logits.lm_head.weight.data.fill_(torch.nan)
    assert_same(only_logits, request | options)
    mixing = make_model("mhc")
    mixing.model.decoder.layers[0].ffn_residual.static_mix.data[0] = torch.nan
    assert_same(mixing, request | options)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True},
        {"output_scores": True, "return_dict_in_generate": True},
        {"phrases": [[[[5, 6]]]], "num_beams": 4},
        {"sequence_bias": [[[5], 2.0]]},
        {"exponential_decay_length_penalty": (2, 1.5)},
        {"renormalize_logits": True},
        {"remove_invalid_values": True},
        {"suppress_tokens": [VOCABULARY]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_c_does_not_know_is_searched_in_python(options, models, in_c):
    models("resi_dual").generate(make_sources(random.Random(1), 1, False), max_new_tokens=4, **options)
    assert not any(in_c)


def test_scores_are_the_same_whether_those_of_all_tokens_are_recorded(models, in_c):
    request = {"input_ids": make_sources(random.Random(1), 5, False), "num_beams": 3, "max_new_tokens": 9}
    found = [models("resi_dual").generate(**request, **SCORES, output_scores=all_) for all_ in (False, True)]
    assert in_c == [True, False] and torch.equal(*(each.sequences_scores for each in found))


@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_the_cache_grows_and_calls_end_in_between(models, monkeypatch, dtype):
    model, sources = models("pre_ln"), make_sources(random.Random(3), 40, False)
    request = {"input_ids": sources, "num_beams": 4, "min_new_tokens": 30, "decoding_dtype": dtype}
    roomy = model.generate(**request, max_new_tokens=40)
    monkeypatch.setattr(state_module, "FIRST_STEPS", 1)
    assert_same(model, request | {"max_new_tokens": 40})
    assert torch.equal(model.generate(**request, max_new_tokens=40), roomy)


def test_errors_of_a_step_are_those_of_the_search(models):
    model = make_model("post_ln")
    model.model.decoder.embed_positions.table = model.model.decoder.embed_positions.table[:12]
    source = make_sources(random.Random(3), 1, False)[:, :8]
    for options in ({}, {"no_repeat_ngram_size": 9}):
        request = {"min_new_tokens": 30, "max_new_tokens": 40, "num_beams": 2, **options}
        with pytest.raises(ValueError, match="the decoder received"):
            model.generate(source, **request)
    with pytest.raises(IndexError, match="vocabulary of 200"):
        models("post_ln").generate(source, decoder_input_ids=torch.tensor([[VOCABULARY]]))


def test_a_search_is_interrupted_within_a_second():
    model = make("resi_dual", d_model=128, max_position_embeddings=4000)
    request = {"num_beams": 5, "min_new_tokens": 3900, "max_new_tokens": 3950}
    source, stopped = torch.tensor([[5, 6, 2]]), []
    packed_model(model, "float32")
    timer = threading.Timer(0.2, lambda: (stopped.append(time.monotonic()), os.kill(os.getpid(), signal.SIGINT)))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model.generate(source, **request)
    assert time.monotonic() - stopped[0] < 1
