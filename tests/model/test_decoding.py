"""Our own search against that of Transformers, request by request."""

import copy
import json
import random

import pytest
import torch
from support.models import OURS, every_mode, every_shape
from support.native_library import needs_kernels
from support.own_search import VOCABULARY, make_model, make_sources, transformers_loop
from support.tiny_translator import SENTENCES
from torch.utils.flop_counter import FlopCounterMode
from transformers import CompileConfig, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation import utils as transformers_generate
from transformers.modeling_outputs import BaseModelOutputWithPooling

from residual_hf import ResidualForConditionalGeneration
from residual_hf.data.data_settings import TokenizerSettings
from residual_hf.data.tokenizer_training import train_tokenizer
from residual_hf.model import decoding
from residual_hf.native.decoder import packed_model


def random_request(generator: random.Random, number: int) -> dict:
    sources = make_sources(generator, generator.choice([1, 3, 7]), left_padded=number % 2 == 0)
    request = {"input_ids": sources, "attention_mask": sources.ne(1), "num_beams": generator.choice([1, 2, 5])}
    request["max_new_tokens"] = generator.choice([3, 12, 24])
    if request["num_beams"] > 1:
        request["length_penalty"] = generator.choice([0.0, 0.6, 1.0, 2.0, -0.5])
        request["early_stopping"] = (True, False, "never")[number % 3]
        request["num_return_sequences"] = generator.choice([1, request["num_beams"]])
    options = {
        "min_new_tokens": 4,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 1.3,
        "forced_bos_token_id": 7,
        "decoder_input_ids": torch.tensor([[2, 9]]).repeat(len(sources), 1),
    }
    return request | {name: value for name, value in options.items() if generator.random() < 0.2}


@every_shape
def test_random_requests_give_the_hypotheses_of_transformers(mode, served):
    model, generator = make_model(mode).double(), random.Random(mode)  # no rounding decides between hypotheses
    number = OURS.index(mode)
    request = random_request(generator, number) | {"return_dict_in_generate": True, "output_scores": number % 3 < 2}
    ours, theirs = model.generate(**request), model.generate(custom_generate=transformers_loop, **request)
    assert torch.equal(ours.sequences, theirs.sequences), request
    if request["num_beams"] > 1:
        assert torch.equal(ours.beam_indices, theirs.beam_indices.long())
    if request["num_beams"] > 1 and request["output_scores"]:
        torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores)
        found = (ours, theirs)
        per_token = [model.compute_transition_scores(f.sequences, f.scores, f.beam_indices) for f in found]
        torch.testing.assert_close(*per_token)
    assert len(served) == 1


def test_ways_to_stop_and_least_lengths():
    """With a penalty that prefers long hypotheses, each of them gives other translations."""
    model, sources = make_model("resi_dual").double(), make_sources(random.Random(1), 12, left_padded=False)
    request = {"attention_mask": sources.ne(1), "num_beams": 3, "length_penalty": 3.0, "max_new_tokens": 24}
    found = []
    for option in [{"early_stopping": way} for way in (True, False, "never")] + [
        {"min_new_tokens": n} for n in (4, 5)
    ]:
        ours = model.generate(sources, **request, **option)
        assert torch.equal(ours, model.generate(sources, custom_generate=transformers_loop, **request, **option))
        found.append(ours.tolist())
    assert all(found[i] != other for i in range(len(found)) for other in found[:i])


@pytest.mark.parametrize("beams", [1, 4])
def test_a_sentence_alone_has_the_translation_it_has_in_a_batch(beams, served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(1), 40, left_padded=False)
    batch = model.generate(sources, attention_mask=sources.ne(1), num_beams=beams, max_new_tokens=40)
    for source, found in zip(sources, batch, strict=True):
        alone = model.generate(source[None, : int(source.ne(1).sum())], num_beams=beams, max_new_tokens=40)[0]
        assert torch.equal(found[: len(alone)], alone) and found[len(alone) :].eq(1).all()
    assert len(served) == 41


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("beams", [1, 4])
def test_every_sentence_has_a_limit_of_its_own(beams, fast):
    """A forced end, which Transformers puts at the longest limit of a batch, changes none."""
    model, sources = make_model("post_ln"), make_sources(random.Random(2), 6, left_padded=False)
    limits, options = torch.tensor([1, 3, 30, 5, 2, 8]), {"num_beams": beams, "early_stopping": beams > 1}
    model.generation_config.forced_eos_token_id = 2
    batch = model.generate(sources, max_new_tokens=30, length_limits=limits, fast_decoding=fast, **options)
    config = copy.deepcopy(model.generation_config)
    config.update(max_new_tokens=30, **options)
    again = model.generate(sources, generation_config=config, length_limits=limits, fast_decoding=fast)
    assert torch.equal(again, batch)
    model.generation_config.forced_eos_token_id = None
    for source, limit, found in zip(sources, limits.tolist(), batch, strict=True):
        alone = model.generate(source[None], max_new_tokens=limit, fast_decoding=fast, **options)[0]
        assert torch.equal(found[: len(alone)], alone) and found[len(alone) :].eq(1).all()


@needs_kernels
@every_mode
def test_kernels_give_the_hypotheses_of_pytorch(mode, monkeypatch):
    model, request = make_model(mode), random_request(random.Random(mode), OURS.index(mode))
    found = model.generate(**request)
    assert packed_model(model, "float32") is not None
    monkeypatch.setattr(decoding, "pack_for_kernels", decoding.without_kernels)
    assert torch.equal(found, model.generate(**request)), request


@needs_kernels
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("int8", 0.1)])
def test_reduced_precision_changes_scores_a_little(dtype, tolerance, tmp_path):
    model, sources = make_model("resi_dual"), make_sources(random.Random(5), 30, left_padded=True)
    settings = {"num_beams": 4, "return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 20}
    exact = model.generate(sources, **settings).sequences_scores
    model.generation_config.decoding_dtype = dtype
    model.save_pretrained(tmp_path)
    reduced = ResidualForConditionalGeneration.from_pretrained(tmp_path).generate(sources, **settings).sequences_scores
    assert not torch.equal(reduced, exact)
    assert (reduced - exact).abs().median() < tolerance * exact.abs().median()


class NoOp(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


@pytest.mark.parametrize(
    "request_",
    [
        {"do_sample": True},
        {"num_beams": 2, "do_sample": True},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"logits_processor": LogitsProcessorList([NoOp()])},
        {"prefix_allowed_tokens_fn": lambda sentence, tokens: list(range(VOCABULARY))},
        {"output_attentions": True, "return_dict_in_generate": True},
        {"output_logits": True, "return_dict_in_generate": True},
        {"encoder_repetition_penalty": 1.2},
        {"custom_generate": transformers_loop},
        {"compile_config": CompileConfig()},
        {"use_cache": True, "return_dict_in_generate": True},
        {"generation_config": GenerationConfig(use_cache=True, return_dict_in_generate=True)},
        {"generation_config": GenerationConfig(field_of_tomorrow=2)},
        {"num_beams": 2, "temperature": 0.7},  # without effect
    ],
    ids=lambda request: "-".join(request),
)
def test_everything_else_is_left_to_transformers(request_, served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(3), 2, left_padded=False)
    output = model.generate(sources, max_new_tokens=4, **request_)
    assert served == []
    if request_.get("use_cache"):
        assert output.past_key_values is not None
    with pytest.raises(ValueError, match="argument_of_tomorrow"):
        model.generate(sources, argument_of_tomorrow=True)


class Eleven(ResidualForConditionalGeneration):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits[..., 11] = 1e4
        return outputs


def test_subclasses_and_adapters_of_the_inputs_are_left_to_transformers(served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(3), 2, left_padded=False)
    calls = []
    inputs = model.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = lambda *args, **kwargs: calls.append(1) or inputs(*args, **kwargs)  # as PEFT
    model.generate(sources, max_new_tokens=4, min_new_tokens=4)
    assert served == [] and len(calls) == 4
    del model.prepare_inputs_for_generation
    model.__class__ = Eleven
    assert model.generate(sources, max_new_tokens=2)[0].tolist() == [2, 11, 11] and served == []


def test_a_given_config_keeps_the_decoding_of_the_model(served, monkeypatch, recwarn):
    model, sources = make_model("resi_dual"), make_sources(random.Random(3), 2, left_padded=False)
    dtypes = []
    monkeypatch.setattr(decoding, "pack_for_kernels", lambda model, dtype: dtypes.append(dtype))
    model.generation_config.decoding_dtype = "bfloat16"
    given = GenerationConfig(max_new_tokens=3)
    model.generate(sources, generation_config=given)
    assert dtypes == ["bfloat16"] and served == ["greedy_search"] and given.use_cache is not False
    assert not [warning for warning in recwarn if "use_cache" in str(warning.message)]
    model.generation_config.fast_decoding = False
    model.generate(sources, generation_config=given)
    assert served == ["greedy_search"]


def test_encoder_outputs_of_other_classes(served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(3), 2, left_padded=False)
    mask = sources.ne(1)
    states = model.get_encoder()(sources, attention_mask=mask).last_hidden_state
    expected = model.generate(sources, max_new_tokens=5)
    for encoded in ((states,), [states], BaseModelOutputWithPooling(last_hidden_state=states)):
        assert torch.equal(model.generate(encoder_outputs=encoded, attention_mask=mask, max_new_tokens=5), expected)
        step = {"attention_mask": mask, "decoder_input_ids": expected}
        assert torch.equal(model(encoder_outputs=encoded, **step).logits, model(sources, **step).logits)
    with pytest.raises(ValueError, match="length_limits: 0 given, must be at least 1"):
        model.generate(sources, length_limits=torch.tensor([0, 3]))


def test_hooks_and_a_switch_in_the_generation_config_leave_it_to_transformers(served, tmp_path):
    model, sources = make_model("resi_dual"), make_sources(random.Random(4), 2, left_padded=False)
    shapes = []
    handle = model.model.decoder.layers[0].register_forward_hook(lambda layer, args, out: shapes.append(out[0].shape))
    model.generate(sources, max_new_tokens=4, num_beams=2)
    assert served == [] and shapes[-1] == (4, 1, 32)
    handle.remove()
    model.generation_config.fast_decoding = False
    model.save_pretrained(tmp_path)
    model = ResidualForConditionalGeneration.from_pretrained(tmp_path)
    model.generate(sources, max_new_tokens=4)
    assert served == []
    model.generate(sources, max_new_tokens=4, fast_decoding=True)
    assert served == ["greedy_search"]
    model.generation_config.fast_decoding = None
    model.generate(sources, max_new_tokens=4, fast_decoding=False)
    assert served == ["greedy_search"]


@pytest.mark.parametrize("left", ["hidden states", "gradient checkpointing"])
def test_what_transformers_leaves_in_a_model_does_not_slow_the_search(left, served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(4), 2, left_padded=False)
    if left == "hidden states":
        model(sources, decoder_input_ids=sources, output_hidden_states=True, output_attentions=True)
    else:
        model.gradient_checkpointing_enable()
        model.gradient_checkpointing_disable()
    model.generate(sources, max_new_tokens=4)
    assert served == ["greedy_search"]


def test_hooks_on_all_modules_leave_it_to_transformers(served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(4), 2, left_padded=False)
    flops = []
    for model.generation_config.fast_decoding in (True, False):
        with FlopCounterMode(display=False) as counter:
            model.generate(sources, max_new_tokens=4)
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1] and served == []


def test_arguments_that_transformers_takes_out_before_the_loop():
    model, sources = make_model("post_ln"), make_sources(random.Random(4), 1, left_padded=False)
    expected = model.generate(sources, max_new_tokens=3)
    assert torch.equal(model.generate(sources, max_new_tokens=3, custom_generate=None), expected)
    tokenizer = train_tokenizer(SENTENCES, TokenizerSettings(kind="byte_bpe", vocab_size=270), model_max_length=64)
    stopped = {"stop_strings": ["a dog"], "tokenizer": tokenizer}
    assert torch.equal(model.generate(sources, max_new_tokens=3, **stopped), expected)


@pytest.mark.parametrize("place", ["ffn.fc1", "encoder_attn.k_proj"])
def test_weights_that_are_not_finite_are_not_hidden_by_the_kernels(place):
    model, sources = make_model("post_ln"), make_sources(random.Random(4), 1, left_padded=False)
    with torch.no_grad():
        model.model.decoder.layers[0].get_submodule(place).bias[0] = torch.nan
    found = model.generate(sources, max_new_tokens=2, output_scores=True, return_dict_in_generate=True)
    assert not found.scores[0].isfinite().all()


def test_the_package_registers_its_kernels():
    assert decoding.pack_for_kernels is packed_model


@pytest.mark.parametrize("beams", [1, 3])
def test_outputs_are_those_of_transformers(beams, served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(3), 2, left_padded=False)
    for scores in (False, True):
        request = {"num_beams": beams, "max_new_tokens": 5, "output_scores": scores, "return_dict_in_generate": True}
        ours, theirs = model.generate(sources, **request), model.generate(sources, use_cache=False, **request)
        assert ours.keys() == theirs.keys()
        more = model.generate(sources, hypothesis_scores=True, **request)
        assert torch.equal(more.sequences, ours.sequences)
        assert ("sequences_scores" if beams > 1 else "log_probs") in more
    assert len(served) == 4


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"input_ids": torch.tensor([5, 6])}, r"input_ids: shape \(2,\) given, must be \(sentences, tokens\)"),
        ({"input_ids": torch.ones(0, 3, dtype=torch.long)}, r"shape \(0, 3\) given, .* none of them 0"),
        ({"input_ids": torch.ones(2, 3)}, "input_ids: torch.float32 given, must be integers"),
        ({"attention_mask": torch.ones(2, 3)}, r"attention_mask: shape \(2, 3\) given, but input_ids has \(2, 4\)"),
        ({"attention_mask": torch.ones(3, 4)}, r"attention_mask: shape \(3, 4\) given, but input_ids has \(2, 4\)"),
        ({"num_beams": 0}, "num_beams: 0 given, must be at least 1"),
        pytest.param({"decoding_dtype": "int4"}, "dtype: 'int4' given, allowed are float32", marks=needs_kernels),
    ],
)
def test_a_source_or_setting_that_cannot_be_is_named(request_, message):
    with pytest.raises(ValueError, match=message):
        make_model("pre_ln").generate(**{"input_ids": torch.full((2, 4), 5), "max_new_tokens": 2} | request_)


@pytest.mark.parametrize("beams", [1, 2])
def test_a_prefix_needs_a_row_for_each_sentence(beams):
    model, sources = make_model("resi_dual"), make_sources(random.Random(1), 3, False)
    for rows, given in ((1, sources), (3, sources[:1])):
        with pytest.raises(ValueError, match=f"{rows} rows given for {len(given)} sentences"):
            model.generate(given, decoder_input_ids=torch.full((rows, 1), 2), num_beams=beams, max_new_tokens=6)


@pytest.mark.parametrize("ends", [-1, [2, 500]])
def test_ends_that_are_no_tokens_ban_none(ends):
    model, sources = make_model("resi_dual"), make_sources(random.Random(3), 2, False)
    model.lm_head.bias.data[199] = 30.0
    options = {"eos_token_id": ends, "min_new_tokens": 4, "max_new_tokens": 4, "repetition_penalty": 1.1}
    found = model.generate(sources, **options)
    model.generation_config.fast_decoding = False
    assert found.tolist() == model.generate(sources, **options).tolist()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_source_of_padding_alone_is_left_to_transformers(beams, attention, served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(3), 3, left_padded=False)
    model.set_attn_implementation(attention)
    sources[1] = 1
    settings = {"num_beams": beams, "max_new_tokens": 8, "output_scores": True, "return_dict_in_generate": True}
    expected = model.generate(sources, custom_generate=transformers_loop, **settings)
    found = model.generate(sources, **settings)
    assert torch.equal(found.sequences, expected.sequences) and served == []
    torch.testing.assert_close(found.scores, expected.scores)


@pytest.fixture
def endless():
    """A model that never ends a translation by itself, and two sources, of 12 and 4 tokens."""
    model = make_model("resi_dual")
    model.lm_head.bias.data[model.config.eos_token_id] = -1e4
    model.generation_config.max_length_a, model.generation_config.max_length_b = 1.5, 30
    sources = torch.randint(4, VOCABULARY, (2, 12))
    sources[1, 4:] = 1
    return model, {"input_ids": sources, "attention_mask": sources.ne(1)}


SEARCHES = [
    {},
    {"num_beams": 3},
    {"do_sample": True},
    {"fast_decoding": False},
    {"num_beams": 3, "use_cache": False},
    {"num_beams": 3, "num_return_sequences": 2, "fast_decoding": False},
]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_translation_without_a_length_has_that_of_the_model(endless, search):
    model, batch = endless
    search = dict(search)
    model.generation_config.fast_decoding = search.pop("fast_decoding", True)
    model.generation_config.max_length = 20  # as `Seq2SeqTrainer` leaves it
    found = model.generate(**batch, **search)
    assert found.shape[1] == 1 + 1.5 * 12 + 30
    first, *_, last = found.ne(1).sum(1).tolist()
    assert (first, last) == (1 + 48, 1 + 36)  # whatever else is in the batch
    encoded = model.get_encoder()(**batch)
    assert model.generate(encoder_outputs=encoded, attention_mask=batch["attention_mask"]).shape[1] == 1 + 48
    model.generation_config.max_length_b = 100
    assert model.generate(**batch, **search).shape[1] == model.config.max_position_embeddings


def test_the_default_length_of_seq2seq_trainer_is_no_length(endless, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr(transformers_generate.logger, "warning", lambda message, *_: warnings.append(message))
    model, batch = endless
    model.generation_config.max_length = 20
    assert model.generate(**batch, max_new_tokens=5).shape[1] == 1 + 5
    own = copy.deepcopy(model.generation_config)
    own.num_beams = 2
    assert model.generate(**batch, generation_config=own).shape[1] == 1 + 48 and own.max_new_tokens is None
    model.generate(**batch)
    assert warnings == []
    model.save_pretrained(tmp_path)
    assert "max_length" not in json.loads((tmp_path / "generation_config.json").read_text())
    embeddings = model.get_encoder().embed_tokens(batch["input_ids"][:1])
    assert model.generate(inputs_embeds=embeddings).shape[1] == 1 + 48


def test_the_labels_that_seq2seq_trainer_passes_change_nothing(endless, served):
    model, batch = endless
    model.generate(**batch, labels=batch["input_ids"], max_new_tokens=3)
    assert len(served) == 1


def test_one_sentence_has_its_limit_in_the_loop_of_transformers(endless):
    model, batch = endless
    first = {name: tensor[:1] for name, tensor in batch.items()}
    limits = {"max_new_tokens": 30, "length_limits": torch.tensor([3])}
    assert model.generate(**first, **limits, fast_decoding=False).shape[1] == 1 + 3


@pytest.mark.parametrize(
    ("given", "length"),
    [({"max_new_tokens": 5}, 6), ({"max_length": 7}, 7), ({"generation_config": GenerationConfig(max_length=7)}, 7)],
)
def test_a_length_of_the_caller_or_of_the_saved_model_goes_before_its_rule(endless, given, length):
    model, batch = endless
    assert model.generate(**batch, **given).shape[1] == length
    model.generation_config.max_length = 9
    assert model.generate(**batch).shape[1] == 9
