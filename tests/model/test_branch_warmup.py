"""Models with branch warm-up against the same models with hooks that scale their branches."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.models import SOURCE, TARGET, every_shape, logits_of, make, randomise
from support.native_library import needs_kernels

from residual_hf import ResidualForConditionalGeneration
from residual_hf.conversion import change_ln_mode, fold_branch_warmup
from residual_hf.model.branch_warmup import BranchWarmupSettings, advance_branch_warmup, branch_warmups
from residual_hf.model.connections import ResidualConnection
from residual_hf.model.layers import BRANCHES
from residual_hf.model.profiling import profile_admin
from residual_hf.native.decoder import packed_model

WARMUP = {"schedule": "linear", "updates": 3}


def advance(model, updates):
    for _ in range(updates):
        advance_branch_warmup(model)
    return model


def warming(mode, updates=4, **fields):
    """A model with random weights after some updates, when the third layer of its decoder has a factor of 4/9."""
    return advance(randomise(make(mode, attention="eager", branch_warmup=WARMUP, **fields)), updates)


def host(mode, model, **fields):
    """The mode without warm-up, with the weights of a model."""
    plain = make("post_ln" if mode == "branch_norm" else mode, attention="eager", **fields)
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith("updates")}
    plain.load_state_dict(weights)
    return plain


def scale_branches(model, factor):
    """Hooks that multiply the branches of layer l = 1, 2, ... by `factor(l)`, after their dropout and norm."""

    def scale(value, by):
        return (scale(value[0], by), *value[1:]) if isinstance(value, tuple) else value * by

    for connection in [m for m in model.modules() if isinstance(m, ResidualConnection)]:
        layer = getattr(model.model, connection.place.stack).layers[connection.place.layer]
        last = getattr(layer, BRANCHES[connection.place.kind])
        if connection.norm_on_branch:
            last = getattr(connection, connection.norm_on_branch)
        by = factor(connection.place.layer + 1)
        last.register_forward_hook(lambda module, inputs, output, by=by: scale(output, by))
    return model


def assert_near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@every_shape
def test_branches_are_scaled_and_a_finished_warm_up_is_the_host_bitwise(mode):
    model = warming(mode)
    plain = host(mode, model)
    finished = logits_of(plain)
    assert_near(logits_of(model), logits_of(scale_branches(plain, lambda layer: min(1, 4 / (3 * layer)))))
    assert not torch.equal(logits_of(model), finished)
    assert torch.equal(logits_of(advance(model, 5)), finished)
    assert all(warmup.is_finished for warmup in branch_warmups(model))


@every_shape
def test_folding_a_warm_up_keeps_the_logits(mode, tmp_path):
    model = warming(mode)
    folded = fold_branch_warmup(model)
    assert not branch_warmups(folded) and folded.config.branch_warmup is None
    assert_near(logits_of(folded), logits_of(model))
    assert fold_branch_warmup(advance(model, 5)) is model


def staged(floor):
    """Layers in turn, ten updates each, from `floor(layer, depth)` to 1."""

    def factor(layer, depth, t):
        low = floor(layer, depth)
        return low + (1 - low) * min(1, max(0, t / 10 - (layer - 1)))

    return factor


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("linear", lambda layer, depth, t: t / (10 * layer)),
        ("linear_square", lambda layer, depth, t: (t / (10 * layer)) ** 2),
        ("linear_sqrt", lambda layer, depth, t: math.sqrt(t / (10 * layer))),
        ("equal", lambda layer, depth, t: t / 10),
        ("stagewise_0", staged(lambda layer, depth: 0)),
        ("stagewise_L", staged(lambda layer, depth: 1 / depth)),
        ("stagewise_sqrt_L", staged(lambda layer, depth: 1 / math.sqrt(depth))),
        ("stagewise_sqrt_l", staged(lambda layer, depth: 1 / math.sqrt(layer))),
    ],
)
def test_schedules(schedule, factor):
    model = make("pre_ln", branch_warmup={"schedule": schedule, "updates": 10}, decoder_layers=4)
    for t in range(45):
        for stack in (model.model.encoder, model.model.decoder):
            factors, depth = [layer.branch_warmup().item() for layer in stack.layers], len(stack.layers)
            assert factors == pytest.approx([min(1, factor(layer, depth, t)) for layer in range(1, depth + 1)])
        advance(model, 1)
    assert all(warmup.is_finished for warmup in branch_warmups(model))


def test_defaults_are_those_of_the_papers():
    assert make("pre_ln", branch_warmup={}).config.of("encoder").branch_warmup == BranchWarmupSettings("linear", 1000)
    model = make("branch_norm")
    assert model.config.of("decoder").branch_warmup == BranchWarmupSettings("equal", 4000)
    assert not branch_warmups(make("post_ln"))


def test_one_stack_can_be_branch_norm():
    model = randomise(make("pre_ln", encoder_ln_mode="branch_norm"))
    assert len(branch_warmups(model)) == len(model.model.encoder.layers)
    folded = fold_branch_warmup(advance(model, 1000))
    assert [folded.config.of(stack).ln_mode for stack in ("encoder", "decoder")] == ["post_ln", "pre_ln"]
    assert_near(logits_of(folded), logits_of(model))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"schedule": "reverse"}, "branch_warmup.schedule: 'reverse' given, must be one of 'linear', "),
        ({"updates": 0}, "branch_warmup.updates: 0 given, must be an integer >= 1"),
        ({"steps": 5}, "branch_warmup.steps: unknown field"),
    ],
)
def test_wrong_settings_are_named(value, message):
    with pytest.raises(StrictDataclassError, match=message):
        make("post_ln", branch_warmup=value)


def test_the_count_is_saved_and_keeps_its_digits_in_any_dtype(tmp_path):
    model = advance(make("resi_dual", branch_warmup={"updates": 100_000}), 1).to(torch.bfloat16)
    for warmup in branch_warmups(model):
        warmup.updates.fill_(12_345)
    model.save_pretrained(tmp_path)
    loaded = ResidualForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16)
    assert [int(warmup.updates) for warmup in branch_warmups(loaded)] == [12_345] * 5
    assert loaded.model.encoder.layers[1].branch_warmup().item() == pytest.approx(12_345 / 200_000)


def test_updates_that_nobody_counts_are_warned_of(tmp_path, caplog):
    model = make("resi_dual", branch_warmup={"updates": 10})
    advance(model, 1).save_pretrained(tmp_path / "counted")
    assert caplog.text == ""
    make("resi_dual", branch_warmup={"updates": 10}).save_pretrained(tmp_path / "new")
    assert "branch_warmup: no update was counted; a trainer needs `BranchWarmupCallback`" in caplog.text


def test_a_model_saved_without_warm_up_can_begin_one(tmp_path):
    make("post_ln").save_pretrained(tmp_path)
    model = ResidualForConditionalGeneration.from_pretrained(tmp_path, branch_warmup={"updates": 10})
    assert [int(warmup.updates) for warmup in branch_warmups(model)] == [0] * 5


@pytest.mark.slow
def test_updates_compile_nothing_again():
    model = warming("sandwich_ln", updates=0, encoder_layers=2, decoder_layers=1).get_encoder()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count)
    for _ in range(4):
        with torch.no_grad():
            actual, expected = (f(SOURCE, attention_mask=SOURCE.ne(1)).last_hidden_state for f in (compiled, model))
        assert_near(actual, expected)
        compiled_once = len(graphs)
        advance(model, 3)
    assert len(graphs) == compiled_once
    torch._dynamo.reset()


def test_admin_is_profiled_as_if_the_warm_up_were_finished():
    batch = {"input_ids": SOURCE, "attention_mask": SOURCE.ne(1), "labels": TARGET}
    model, plain = make("admin", branch_warmup=WARMUP), make("admin")
    assert profile_admin(model, batch) == profile_admin(plain, batch)
    assert [int(warmup.updates) for warmup in branch_warmups(model)] == [0] * 5


NATIVE = ["resi_dual", "pre_ln", "branch_norm", "sandwich_ln", "b2t", "mhc", "realformer"]


@pytest.mark.parametrize("mode", [*(pytest.param(name, marks=needs_kernels) for name in NATIVE), "in PyTorch"])
def test_fast_decoding_follows_the_warm_up(mode):
    model = warming(mode, 1) if mode in NATIVE else warming("mhc", 1, norm_type="scale_norm")
    assert (packed_model(model, None) is not None) == (mode in NATIVE)
    settings = {"attention_mask": SOURCE.ne(1), "max_new_tokens": 1, "output_scores": True}
    scores = []
    for _ in range(2):
        scores.append(model.generate(SOURCE, return_dict_in_generate=True, **settings).scores[0])
        with torch.no_grad():
            expected = model(SOURCE, attention_mask=SOURCE.ne(1), decoder_input_ids=TARGET[:, :1]).logits[:, 0]
        assert_near(scores[-1], expected)
        advance(model, 2)
    assert not torch.equal(*scores)


def test_starting_from_a_plain_model_is_a_finished_warm_up():
    post_ln = randomise(make("post_ln"))
    model = change_ln_mode(post_ln, "branch_norm")
    assert torch.equal(logits_of(model), logits_of(post_ln))
    assert all(warmup.is_finished for warmup in branch_warmups(model))
