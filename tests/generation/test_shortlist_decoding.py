"""Decoding with a lexical shortlist, against Transformers' search with the other tokens made impossible."""

import copy

import numpy as np
import pytest
import torch
from support.native_library import isa, needs_kernels, threads  # noqa: F401
from support.tiny_translator import SENTENCES, tiny_model, tiny_tokenizer
from torch import nn

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.base.errors import InputError
from residual_hf.checkpoint import save_checkpoint, validate_model_folder
from residual_hf.data.shortlist import Shortlist
from residual_hf.generation import decode
from residual_hf.generation.decode import search
from residual_hf.generation.generation_settings import DecodingSettings, SearchRequest
from residual_hf.generation.translator import Translator

VOCABULARY, END = 1300, 2  # more tokens than the kernels compute at a time
LENGTH = 8


def random_shortlist(vocabulary=VOCABULARY):
    """Lists of a few tokens, of which many are far from each other; some tokens have none."""
    candidates = np.random.default_rng(1).integers(-1, vocabulary, (vocabulary, 9)).astype(np.int32)
    candidates[::7] = -1
    return Shortlist(candidates, np.array([END, vocabulary - 1], np.int32))


@pytest.fixture(scope="module")
def model():
    return tiny_model(range(VOCABULARY), eos_token_id=END)


@pytest.fixture(scope="module")
def sources():
    numbers = np.random.default_rng(2)
    return [[*numbers.integers(4, VOCABULARY, n).tolist(), END] for n in (6, 1, 3, 4, 2)]


def masked(model, source, shortlist, beams):
    """What Transformers finds with a bias that excludes all tokens but those of the list."""
    bias = torch.full((VOCABULARY,), -1e9)
    bias[torch.from_numpy(shortlist.tokens_for(source)).long()] = 0.0
    model.lm_head.bias, model.generation_config.fast_decoding = nn.Parameter(bias), False
    ids = model.generate(torch.tensor([source]), **settings(beams).generate_arguments(LENGTH))[0, 1:].tolist()
    model.lm_head.bias, model.generation_config.fast_decoding = None, None
    return ids[: ids.index(END)] if END in ids else ids


def settings(beams, **fields):
    return DecodingSettings(num_beams=beams, max_length_a=0, max_length_b=LENGTH, **fields)


@pytest.fixture(scope="module")
def expected(model, sources):
    return {beams: [masked(model, source, random_shortlist(), beams) for source in sources] for beams in (1, 4)}


@needs_kernels
def test_decodes_as_with_all_other_tokens_impossible(isa, model, sources, expected):  # noqa: F811
    model = copy.deepcopy(model)  # which has not been packed for another instruction set
    for beams, ids in expected.items():
        found = search(model, sources, settings(beams, shortlist=True), shortlist=random_shortlist())
        assert [best.ids for (best,) in found] == ids
        assert all(best.ids != row for (best,), row in zip(search(model, sources, settings(beams)), ids, strict=True))


@needs_kernels
@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_a_sentence_has_the_same_result_in_any_batch(dtype, model, sources):
    options = {"shortlist": random_shortlist(), "request": SearchRequest(scores=True)}
    for beams in (1, 4):
        chosen = settings(beams, shortlist=True, dtype=dtype)
        together = search(model, sources, chosen, **options)
        for source, (found,) in zip(sources, together, strict=True):
            ((alone,),) = search(model, [source], chosen, **options)
            assert alone.ids == found.ids and set(alone.ids) <= set(random_shortlist().tokens_for(source))
            assert alone.score == pytest.approx(found.score, abs=1e-5)


@needs_kernels
def test_rows_of_a_sentence_may_be_in_two_threads(model, sources):
    inputs = nn.utils.rnn.pad_sequence([torch.tensor(source) for source in sources], True, 1)
    lists = [random_shortlist().tokens_for(source) for source in sources]
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(model.generate(inputs, num_beams=15, max_new_tokens=LENGTH, token_lists=lists))
    assert torch.equal(*found)


@needs_kernels
def test_processors_see_the_tokens_of_the_list(model, sources):
    shortlist, chosen = random_shortlist(), settings(3, shortlist=True)
    (plain,), *_ = search(model, sources, chosen, shortlist=shortlist)
    requests = SearchRequest.of(suppress_tokens=[plain.ids[0]]), SearchRequest.of(forced_bos_token_id=77)
    other, tagged = (search(model, sources, chosen, each, shortlist=shortlist)[0][0] for each in requests)
    assert plain.ids[0] not in other.ids and set(other.ids) <= set(shortlist.tokens_for(sources[0]))
    assert tagged.ids[0] == 77 and set(tagged.ids[1:]) <= set(shortlist.tokens_for(sources[0]))


@needs_kernels
def test_what_cannot_keep_to_a_list_is_refused(model, sources):
    with pytest.raises(InputError, match="shortlist: True given without"):
        search(model, sources, settings(1, shortlist=True))
    request = SearchRequest.of(do_sample=True)
    with pytest.raises(InputError, match="only greedy and beam search"):
        search(model, sources, settings(1, shortlist=True), request, shortlist=random_shortlist())


@needs_kernels
def test_a_token_that_a_list_repeats_counts_once(model):
    once, twice = (
        model.generate(torch.tensor([[5, 2]]), token_lists=[np.array(own)], num_beams=2, num_return_sequences=2)
        for own in ([2, 7, 9], [9, 7, 7, 2, 9])
    )
    assert torch.equal(once, twice)


@needs_kernels
@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[2, 7]], "token_lists: 1 given for 2 sentences"),
        ([[2, 7], []], "one id at least"),
        ([[2, 7], [2, VOCABULARY]], "from 0 to 1299"),
        ([[2, 7], [-1, 2]], "from 0 to 1299"),
    ],
)
def test_each_sentence_has_a_list_of_tokens_of_the_model(lists, message, model):
    with pytest.raises(ValueError, match=message):
        model.generate(torch.tensor([[5, 2], [6, 2]]), token_lists=[np.array(own, np.int32) for own in lists])


@needs_kernels
def test_translator_reads_the_shortlist_of_a_model_folder(tmp_path, monkeypatch):
    tokenizer = tiny_tokenizer()
    folder = save_checkpoint(tiny_model(tokenizer), tokenizer, tmp_path / "model")
    with pytest.raises(InputError, match="has no shortlist.safetensors; to make one, set decoding.shortlist"):
        Translator.from_pretrained(folder, shortlist=True)
    letters = np.array(tokenizer("a small dog").input_ids, np.int32)
    Shortlist(np.full((len(tokenizer), 1), -1, np.int32), np.unique(letters)).save(folder)
    assert "shortlist.safetensors" in validate_model_folder(folder)
    text = Translator.from_pretrained(folder, num_beams=2, shortlist=True).translate(SENTENCES[0])
    assert set(tokenizer(text).input_ids) <= {*letters} and Translator.from_pretrained(folder).shortlist is None
    monkeypatch.setattr(decode, "missing_support", lambda model: "no compiler")
    with pytest.raises(InputError, match="shortlist: only with the native kernels: no compiler"):
        Translator.from_pretrained(folder, shortlist=True)
