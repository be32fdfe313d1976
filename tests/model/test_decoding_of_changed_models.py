"""Whatever changes in a model, also after a search has prepared its weights, changes its translations."""

import copy
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.native_library import needs_kernels
from support.own_search import make_model, make_sources, transformers_loop

from residual_hf.model import decoding
from residual_hf.model.fingerprint import Fingerprint, unchanged
from residual_hf.model.layers import ResidualDecoderLayer, ResidualFeedForward
from residual_hf.model.prepared_decoder import prepared_decoder
from residual_hf.training.acceleration import accelerated


class DoubledLinear(torch.nn.Linear):
    """A linear map that is more than its weights, as those of adapters are."""

    def forward(self, states):
        return 2 * super().forward(states)


def test_linear_maps_of_other_classes_are_called(served):
    model, sources = make_model("resi_dual").double(), make_sources(random.Random(7), 3, left_padded=False)
    for layer in model.model.decoder.layers:
        layer.self_attn.v_proj.__class__ = layer.encoder_attn.out_proj.__class__ = DoubledLinear
    expected = model.generate(sources, max_new_tokens=10, num_beams=2, custom_generate=transformers_loop)
    assert torch.equal(model.generate(sources, max_new_tokens=10, num_beams=2), expected)
    assert served == ["beam_search"]


def test_a_replaced_forward_is_called(served):
    model, sources = make_model("resi_dual"), make_sources(random.Random(4), 2, left_padded=False)
    before, branch = model.generate(sources, max_new_tokens=4), model.model.decoder.layers[1].ffn
    branch.forward = lambda states: 9 * states
    assert not torch.equal(model.generate(sources, max_new_tokens=4), before) and served == ["greedy_search"]
    branch.forward = type(branch).forward.__get__(branch)  # as accelerate leaves it when it removes a hook
    assert torch.equal(model.generate(sources, max_new_tokens=4), before) and len(served) == 2
    with accelerated(model):
        assert torch.equal(model.generate(sources, max_new_tokens=4), before) and len(served) == 3


@pytest.mark.usefixtures("with_and_without_kernels")
def test_a_module_without_weights_that_is_replaced_after_a_search_is_noticed(served):
    model, sources = make_model("pre_ln"), make_sources(random.Random(4), 2, left_padded=False)
    settings = {"max_new_tokens": 6, "output_scores": True, "return_dict_in_generate": True}
    model.generate(sources, **settings)
    for layer in model.model.decoder.layers:
        layer.ffn.activation = torch.nn.Tanh().eval()
    ours, theirs = model.generate(sources, **settings), model.generate(sources, use_cache=False, **settings)
    torch.testing.assert_close(ours.scores, theirs.scores, rtol=1e-4, atol=1e-4)
    assert served == ["greedy_search", "greedy_search"]


class Skipping(ResidualDecoderLayer):
    def forward(self, *stream, **kwargs):
        return tuple(-x for x in stream[:-1])


class Adapter(torch.nn.Module):
    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, states):
        return (9 * self.branch(states)[0],)


class Negated(ResidualFeedForward):
    def forward(self, states):
        return (-super().forward(states)[0],)


def replace_activation(model):
    for layer in model.model.decoder.layers:
        layer.ffn.activation = torch.nn.Tanh()


def keep_dropout(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = module.train().p or 0.5


REPLACEMENTS = {
    "layer": lambda model: setattr(model.model.decoder.layers[1], "__class__", Skipping),
    "branch": lambda model: setattr(model.model.decoder.layers[1], "ffn", Adapter(model.model.decoder.layers[1].ffn)),
    "branch of the encoder": lambda model: setattr(model.model.encoder.layers[0].ffn, "__class__", Negated),
    "activation": replace_activation,
    "dropout in training mode": keep_dropout,
}


@pytest.mark.parametrize("change", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_modules_that_are_replaced_or_in_training_mode_compute_what_is_decoded(change):
    model, sources = make_model("post_ln"), make_sources(random.Random(4), 2, left_padded=False)
    change(model)
    found = []
    for model.generation_config.fast_decoding in (False, True):
        torch.manual_seed(0)
        found.append(model.generate(sources, max_new_tokens=6))
    assert torch.equal(*found)


def step_of_fused_adamw(model):
    weight = model.get_input_embeddings().weight
    weight.grad = torch.zeros_like(weight)
    weight.grad[5] = 1.0
    torch.optim.AdamW([weight], lr=2.0, weight_decay=0.0, fused=True).step()


def other_parameter(model):
    projection = model.model.decoder.layers[0].ffn.fc2
    projection.weight = torch.nn.Parameter(projection.weight.detach().flip(0))


def rows_in_another_order(model):
    weight = model.model.decoder.layers[0].ffn.fc2.weight.data
    weight.copy_(weight.flip(0).clone())


def scaling(model):
    for layer in model.model.decoder.layers:
        layer.self_attn.scaling = layer.encoder_attn.scaling = 3.0


def epsilon(model):
    for module in model.model.decoder.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1.0


def class_of_the_projections(model):
    for layer in model.model.decoder.layers:
        layer.ffn.fc1.__class__ = DoubledLinear


def of_opposite_sign(module):
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.neg_()
    return other


def adapter_of_the_head(model):
    peft = pytest.importorskip("peft", reason="needs the extra 'lora'")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["lm_head"], init_lora_weights=False)).eval()


CHANGES = {
    "embedding of one token": lambda model: model.get_input_embeddings().weight.data[5].add_(2.0),
    "one element through data": lambda model: model.model.decoder.layers[1].ffn.fc1.weight.data[3, 2].add_(30.0),
    "view in NumPy": lambda model: model.model.decoder.layers[1].ffn.fc2.weight.detach().numpy()[3, 5:9].fill(9.0),
    "step of fused AdamW": step_of_fused_adamw,
    "other parameter": other_parameter,
    "rows in another order": rows_in_another_order,
    "scaling of attention": scaling,
    "epsilon": epsilon,
    "scale of the embeddings": lambda model: setattr(model.model.decoder.embed_tokens, "scale", 0.5),
    "class of the projections": class_of_the_projections,
    "other head": lambda model: setattr(model, "lm_head", of_opposite_sign(model.lm_head)),
    "other decoder": lambda model: setattr(model.model, "decoder", of_opposite_sign(model.model.decoder)),
    "other encoder": lambda model: setattr(model.model, "encoder", of_opposite_sign(model.model.encoder)),
    "other stacks": lambda model: setattr(model, "model", of_opposite_sign(model.model)),
    "adapter of the head": adapter_of_the_head,
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=[needs_kernels, pytest.mark.slow])])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.usefixtures("with_and_without_kernels")
def test_no_change_of_a_model_gives_an_old_translation(change, dtype, served):
    model, sources = make_model("post_ln"), make_sources(random.Random(9), 4, left_padded=False)
    sources[:, 0] = 5
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    search = {"decoding_dtype": dtype, **settings}
    before = torch.stack(model.generate(sources, **search).scores)
    assert torch.equal(torch.stack(model.generate(sources, **search).scores), before)
    change(model)
    scores = torch.stack(model.generate(sources, **search).scores)
    anew = torch.stack(copy.deepcopy(model).generate(sources, **search).scores)
    assert torch.equal(scores, anew) and not torch.equal(scores, before) and len(served) == 4
    if dtype == "float32":
        expected = model.generate(sources, custom_generate=transformers_loop, **settings).scores
        torch.testing.assert_close(scores, torch.stack(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1, "b": 5}, {"a": {"b": 5}}),
        ({"a": {"b": 1}, "c": 1}, {"a": 1, "b": {"c": 1}}),
        ({"a": [], "b": 0}, {"a": (), "b": 0}),
    ],
    ids=str,
)
def test_attributes_that_are_nested_otherwise_are_noticed(before, after):
    module = torch.nn.Module()
    vars(module).update(before)
    found = Fingerprint([module])
    assert found.matches(module, [module])
    for name in before:
        delattr(module, name)
    vars(module).update(after)
    assert not found.matches(module, [module])


def test_a_list_that_is_filled_in_place_is_noticed():
    module = torch.nn.Module()
    module.rates = []
    found = Fingerprint([module])
    module.rates.append(0.5)
    assert not found.matches(module, [module])


@pytest.mark.usefixtures("with_and_without_kernels")
def test_weights_that_are_the_same_are_prepared_once():
    model, sources = make_model("post_ln"), make_sources(random.Random(9), 2, left_padded=False)

    def prepared():
        model.generate(sources, max_new_tokens=2)
        return decoding.pack_for_kernels(model, None) or prepared_decoder(model)

    first = prepared()
    assert prepared() is first
    model.train().eval()  # as an evaluation within a training
    assert prepared() is first


@pytest.mark.usefixtures("with_and_without_kernels")
def test_several_threads_prepare_the_weights_once(monkeypatch):
    model, sources = make_model("post_ln"), make_sources(random.Random(9), 2, left_padded=False)
    prepared, init = [], Fingerprint.__init__

    def prepare(fingerprint, *parts):
        prepared.append(parts)
        time.sleep(0.05)  # in which the other threads come
        init(fingerprint, *parts)

    monkeypatch.setattr(Fingerprint, "__init__", prepare)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: model.generate(sources, max_new_tokens=2), range(4)))
    assert len(prepared) == 1


@pytest.mark.usefixtures("with_and_without_kernels")
def test_a_model_that_its_owner_leaves_unchanged_is_looked_at_once(monkeypatch):
    model, sources = make_model("post_ln"), make_sources(random.Random(9), 2, left_padded=False)
    before = model.generate(sources, max_new_tokens=10)
    looks = []
    look = Fingerprint._look
    monkeypatch.setattr(Fingerprint, "_look", lambda self: looks.append(self) or look(self))
    modules = []
    computes = decoding.computes_as_defined
    monkeypatch.setattr(decoding, "computes_as_defined", lambda model: modules.append(model) or computes(model))
    with unchanged(model):
        for _ in range(3):
            model.generate(sources, max_new_tokens=10)
            with unchanged(model):
                model.generate(sources, max_new_tokens=10)
    assert len(looks) == 1 and len(modules) == 1
    model.lm_head.bias.data[9] = 100.0
    assert not torch.equal(model.generate(sources, max_new_tokens=10), before)
