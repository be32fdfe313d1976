"""`generate` of a decoder alone by our own search and kernels against that of Transformers, request by request."""

import random

import pytest
import torch
from support.native_library import needs_kernels
from support.own_search import transformers_loop
from support.single_stacks import MODERN, causal
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from residual_hf import ResidualForCausalLM
from residual_hf.model import decoding
from residual_hf.model.caches import CACHE

pytestmark = needs_kernels
MODELS = {"post_ln": {}, "resi_dual": {}, "realformer": {}, "mhc": {}, "sub_ln": MODERN}


def make_model(mode="resi_dual", **fields):
    """A model whose texts end after different numbers of tokens."""
    model = causal(ln_mode=mode, output_bias=True, d_model=32, max_position_embeddings=64, **fields)
    with torch.no_grad():
        model.lm_head.bias.normal_(generator=torch.Generator().manual_seed(3))
        model.lm_head.bias[model.config.eos_token_id] += 2.0
    return model


def prompts(generator, texts=5, length=7):
    ids = torch.full((texts, length), 1)
    for row in ids:
        words = generator.randrange(1, length + 1)
        row[-words:] = torch.tensor([generator.randrange(4, 50) for _ in range(words)])
    return {"input_ids": ids, "attention_mask": ids.ne(1).long()}


REQUESTS = [
    {},
    {"max_new_tokens": 3, "no_repeat_ngram_size": 2},
    {"min_new_tokens": 4, "repetition_penalty": 1.3},
    {"num_beams": 3},
    {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5, "early_stopping": True},
    {"num_beams": 2, "early_stopping": "never", "min_new_tokens": 3},
    {"do_sample": True},
    {"do_sample": True, "top_k": 5, "temperature": 1.7, "num_return_sequences": 3},
    {"do_sample": True, "top_p": 0.8, "min_new_tokens": 3, "min_p": 0.01},
]


@pytest.mark.parametrize("mode", MODELS)
def test_requests_give_the_tokens_of_transformers(mode, served):
    model, generator = make_model(mode, **MODELS[mode]), random.Random(mode)
    of_all = REQUESTS[0], REQUESTS[4], REQUESTS[8]  # the others, with one mode: the search does not see the mode
    for number, request in enumerate(REQUESTS if mode == "resi_dual" else of_all):
        request = {"max_new_tokens": 20, **prompts(generator), **request}
        found = []
        for loop in ({}, {"custom_generate": transformers_loop}):
            torch.manual_seed(number)
            found.append(model.generate(**request, **loop))
        assert torch.equal(*found), request
        outputs = {"return_dict_in_generate": True, "output_scores": True, **request}
        torch.manual_seed(number)
        output = model.generate(**outputs)
        assert torch.equal(output.sequences, found[0]) and type(output).__name__.endswith("DecoderOnlyOutput")
        theirs = model.generate(custom_generate=transformers_loop, **outputs)
        assert set(output.keys()) == set(theirs.keys()) - {CACHE}
    assert len(served) == 2 * (number + 1)


def test_samples_do_not_depend_on_the_default_type(served, monkeypatch):
    model, found = make_model(), []
    request = {"max_new_tokens": 12, "do_sample": True, **prompts(random.Random(1))}
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(3)
        torch.set_default_dtype(dtype)
        try:
            found.append(model.generate(**request))
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(*found)


def test_prompts_without_a_mask_and_one_that_is_alone(served):
    model, given = make_model(), prompts(random.Random(1))
    batch = model.generate(given["input_ids"], max_new_tokens=12)
    assert torch.equal(batch, model.generate(**given, max_new_tokens=12))
    for row, ids in zip(batch, given["input_ids"], strict=True):
        alone = model.generate(ids[None, ids.ne(1)], max_new_tokens=12)[0]
        rest = row[ids.eq(1).sum() :]
        assert torch.equal(rest[: len(alone)], alone) and rest[len(alone) :].eq(1).all()
    limited = model.generate(**given, max_new_tokens=12, length_limits=torch.tensor([1, 2, 3, 4, 12]))
    assert limited[0, 8:].eq(1).all() and torch.equal(limited[0, :8], batch[0, :8])
    assert len(served) == 8
    sampled = {"do_sample": True, "num_return_sequences": 2, "length_limits": torch.tensor([1, 2, 3, 4, 12])}
    drawn = model.generate(**given, max_new_tokens=12, **sampled)
    assert drawn[:2, 8:].eq(1).all() and len(drawn) == 10 and len(served) == 9


class Collect(BaseStreamer):
    def put(self, value):
        pass

    def end(self):
        pass


@pytest.mark.parametrize(
    "request_",
    [
        {"do_sample": True, "num_beams": 2},
        {"use_cache": False},
        {"streamer": Collect()},
        {"position_ids": torch.arange(7).expand(5, -1)},
        {"input_ids": torch.tensor([[5, 6, 7, 1]] * 5), "attention_mask": torch.tensor([[1, 1, 1, 0]] * 5)},
        {"input_ids": torch.tensor([[5, 1, 7, 8]] * 5), "attention_mask": None},
        {"temperature": 0.5},
        {"generation_config": GenerationConfig(fast_decoding=False)},
    ],
    ids=lambda request: "-".join(request),
)
def test_everything_else_is_left_to_transformers(request_, served):
    model = make_model()
    model.generate(**{**prompts(random.Random(1)), "max_new_tokens": 3, "pad_token_id": 1, **request_})
    assert served == []


def test_without_kernels_transformers_generates(served, monkeypatch):
    model, given = make_model(), prompts(random.Random(1))
    expected = model.generate(**given, max_new_tokens=8, num_beams=2)
    monkeypatch.setattr(decoding, "pack_for_kernels", decoding.without_kernels)
    assert torch.equal(model.generate(**given, max_new_tokens=8, num_beams=2), expected) and len(served) == 1


def test_reduced_precision_of_a_saved_model(served, tmp_path):
    model, given = make_model(), prompts(random.Random(1))
    settings = {"max_new_tokens": 8, "num_beams": 2, "return_dict_in_generate": True, "output_scores": True}
    exact = model.generate(**given, **settings).sequences_scores
    model.generation_config.decoding_dtype = "bfloat16"
    model.save_pretrained(tmp_path)
    reduced = ResidualForCausalLM.from_pretrained(tmp_path).generate(**given, **settings).sequences_scores
    assert not torch.equal(reduced, exact) and len(served) == 2
    assert (reduced - exact).abs().median() < 0.05 * exact.abs().median()
