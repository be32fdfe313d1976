"""Connections that are recorded as operations of the kernels: modes of users, and what is refused."""

import pytest
import torch
from native.test_decoder import FP32, assert_near_the_model, compare_steps
from support.models import SOURCE, make, randomise
from support.native_library import isa, needs_kernels  # noqa: F401
from torch import nn

from residual_hf.model.connections import LN_MODES, ResidualConnection, StreamBoundary
from residual_hf.model.norms import build_norm
from residual_hf.native.decoder import NativeDecoder
from residual_hf.native.programs import StackPrograms
from residual_hf.native.support import missing_support
from residual_hf.training.acceleration import accelerated

pytestmark = [needs_kernels, pytest.mark.usefixtures("isa")]


@pytest.fixture
def model_with(monkeypatch):
    """Makes a model of a new mode that has parameters to compute with."""

    def of(forward, boundary=StreamBoundary, **attributes):
        class Mine(ResidualConnection):
            name = "mine"
            Boundary = boundary

            def __init__(self, config, place):
                super().__init__(config, place)
                self.norm = build_norm(config)
                self.vector = nn.Parameter(torch.ones(config.d_model))
                self.gates = nn.Parameter(torch.zeros(3, config.d_model))

        Mine.forward = forward
        for name, value in attributes.items():
            setattr(Mine, name, value)
        monkeypatch.setitem(LN_MODES, "mine", Mine)
        return randomise(make("mine"))

    return of


def gated(self, stream, sublayer):
    (x,) = stream
    first, second, third = torch.sigmoid(nn.functional.linear(x, self.gates)).split(1, dim=-1)
    a = sublayer(self.norm(x - 0.5) / 2)
    return (self.norm(first * x + (1 - second) * a * self.vector + third * first),)


def exponential(self, stream, sublayer):
    (x,) = stream
    a = sublayer(x)
    return (torch.sub(self.vector, -x, alpha=0.5) + a * torch.exp((0.01 * a * self.vector).sum(-1, keepdim=True)),)


def in_both_streams(self, stream, sublayer):
    x, y = stream
    a = sublayer(torch.stack([x, y], dim=-2).unbind(-2)[1])
    return self.norm(y + a), torch.cat([x[..., None, :], a[..., None, :]], dim=-2)[..., 0, :] + y


class TwoStreams(StreamBoundary):
    def begin(self, hidden_states):
        return hidden_states, 2 * hidden_states

    def end(self, stream):
        return stream[0] + stream[1]


class Gate(nn.Module):
    """sigmoid(w . x) * LN(x) + b"""

    def __init__(self, width):
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.zeros(1, width)), nn.Parameter(torch.zeros(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, states):
        return torch.sigmoid(nn.functional.linear(states, self.weight)) * self.norm(states) + self.shift


class Affine(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.factor, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, states):
        return self.factor * states - self.shift


@pytest.mark.parametrize("slots", [("query", "value", "inner"), ("key", "heads", "output")])
@pytest.mark.parametrize("kind", [Gate, Affine])
def test_modules_of_a_user_within_sublayers(model_with, kind, slots):
    def inner_modules(config, place):
        if place.kind == "feed_forward":
            own = {"inner": kind(config.ffn_dim), "pre_activation": Affine(32)}
        else:
            widths = dict.fromkeys(("query", "key", "value"), config.d_model // config.attention_heads)
            own = {slot: kind(widths.get(slot, config.d_model)) for slot in ("query", "key", "value", "heads")}
        own["output"] = kind(config.d_model)
        return {slot: module for slot, module in own.items() if slot in (*slots, "pre_activation")}

    assert_near_the_model(model_with(gated, inner_modules=staticmethod(inner_modules)))


def test_what_is_left_to_pytorch_within_sublayers(model_with):
    def inner_modules(config, place):
        return {"pre_activation": Gate(32)} if place.kind == "feed_forward" else {}

    gated_activation = model_with(exponential, inner_modules=staticmethod(inner_modules))
    assert "more than a factor and a shift before an activation" in missing_support(gated_activation)
    scores = model_with(lambda self, stream, sublayer: sublayer.with_scores(stream[0], None)[:1])
    assert "other scores than those of the layer before" in missing_support(scores)


@pytest.mark.parametrize("forward", [gated, exponential])
def test_a_mode_of_a_user(model_with, forward):
    assert_near_the_model(model_with(forward))


def test_several_streams(model_with):
    model = model_with(in_both_streams, TwoStreams)
    assert compare_steps(model, NativeDecoder(model)) < FP32


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda self, x: x if x.sum(-1) else -x, "a decision"),
        (lambda self, x: x * x, "a product of two values"),
        (lambda self, x: self.vector / x, "a division"),
        (lambda self, x: torch.relu(x), "relu of hidden states"),
        (lambda self, x: torch.tanh(x), "tanh of hidden states"),
        (lambda self, x: x.mean(-1, keepdim=True), "mean of hidden states"),
        (lambda self, x: x[:, :1], "single rows"),
        (lambda self, x: x[..., :1], "single rows or values"),
        (lambda self, x: nn.functional.linear(x, torch.eye(16)) * x, "in place of the values"),
        (lambda self, x: torch.cat([x[:, :1], x[:, 1:]], dim=1), "single rows"),
        (lambda self, x: torch.stack([x, x])[0], "dimension 0"),
        (lambda self, x: nn.functional.layer_norm(x, (16,)), "without a gain"),
        (
            lambda self, x: nn.functional.layer_norm(torch.stack([x, x], -2), (2, 16), torch.ones(2, 16))[..., 0, :],
            "over several dimensions",
        ),
    ],
)
def test_what_is_left_to_pytorch(model_with, change, reason):
    model = model_with(lambda self, stream, sublayer: (sublayer(change(self, stream[0])),))
    assert reason in missing_support(model)


@pytest.mark.parametrize("loop", [{}, {"fast_decoding": False}])
def test_a_sublayer_that_runs_twice(model_with, loop):
    model = model_with(lambda self, stream, sublayer: (sublayer(sublayer(stream[0])),))
    assert "a sub-layer that does not run once" in missing_support(model)
    source = {"input_ids": SOURCE, "attention_mask": SOURCE.ne(1)}
    with pytest.raises(ValueError, match="self-attention runs twice.*give use_cache=False"):
        model.generate(**source, max_new_tokens=3, **loop)
    start, first = model.generate(**source, max_new_tokens=1, use_cache=False).unbind(1)
    assert torch.equal(model(**source, decoder_input_ids=start[:, None]).logits[:, -1].argmax(-1), first)


def test_a_sublayer_that_does_not_run(model_with):
    model = model_with(lambda self, stream, sublayer: stream)
    assert "a sub-layer that does not run once" in missing_support(model)
    assert torch.equal(model.generate(SOURCE), model.generate(SOURCE, use_cache=False))
    with pytest.raises(ValueError, match="not in the first layer.*give use_cache=False"):
        model.generate(SOURCE, fast_decoding=False)


def test_during_an_accelerated_training():
    model = randomise(make("resi_dual"))
    with accelerated(model):
        assert compare_steps(model, NativeDecoder(model)) < FP32


@pytest.mark.parametrize(("mode", "vectors"), [("post_ln", 1), ("resi_dual", 2), ("siamese_norm", 3), ("dlcl_pre", 4)])
def test_registers_are_used_again(mode, vectors):
    assert StackPrograms(make(mode).model.decoder).vectors == vectors
