"""The protocol: a mode of a user's own lives like one of ours."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.models import LABELS, SOURCE, logits_of, make
from torch import nn
from transformers import initialization as init

from residual_hf import ResidualConfig, ResidualForConditionalGeneration, register_ln_mode
from residual_hf.model import connections, layers, stacks
from residual_hf.model.connections import LN_MODES, ResidualConnection, StreamBoundary, Sublayer, layer_places
from residual_hf.model.ln_modes import PostLN, PreLN
from residual_hf.model.norms import build_norm
from residual_hf.model.options import option


@dataclass(frozen=True)
class GatedOptions:
    start: float = option(0.5, minimum=0.0, maximum=1.0, help="value of the gate at the beginning")


class CountedBoundary(StreamBoundary):
    """Carries the hidden state and the mean of all branch outputs."""

    def begin(self, hidden_states):
        return hidden_states, torch.zeros_like(hidden_states)

    def end(self, stream):
        return stream[0] + stream[1]


class Gated(ResidualConnection):
    """x <- LN(x + g * a), and the sum of all g * a travels along; g is learned."""

    equation = "x <- LN(x + g*a)"
    Options = GatedOptions
    Boundary = CountedBoundary

    def __init__(self, config, place):
        super().__init__(config, place)
        self.norm = build_norm(config)
        self.gate = nn.Parameter(torch.empty(config.d_model))

    def init_parameters(self):
        init.constant_(self.gate, self.options.start)

    def forward(self, stream, sublayer):
        x, total = stream
        a = self.gate * sublayer(x)
        return self.norm(x + a), total + a / self.place.num_layers


@pytest.fixture
def gated():
    register_ln_mode("gated_for_a_test")(Gated)
    yield "gated_for_a_test"
    del LN_MODES["gated_for_a_test"]


def test_mode_of_a_user_trains_saves_and_loads(gated, tmp_path):
    model = make(gated, ln_mode_options={"start": 0.25}).train()
    gates = [p for name, p in model.named_parameters() if name.endswith("gate")]
    assert len(gates) == 2 * 2 + 3 * 3
    assert all(torch.equal(gate, torch.full((16,), 0.25)) for gate in gates)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not any(torch.equal(gate, torch.full((16,), 0.25)) for gate in gates)
    model.eval().save_pretrained(tmp_path)
    loaded = ResidualForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert loaded.config.of("encoder").options.start == 0.25


def test_options_of_a_user_are_checked(gated):
    with pytest.raises(StrictDataclassError, match="start: 2.0 given, must be a number >= 0 and <= 1"):
        ResidualConfig(ln_mode=gated, ln_mode_options={"start": 2.0})


def test_a_name_belongs_to_one_class(gated):
    assert register_ln_mode(gated)(Gated) is Gated
    with pytest.raises(ValueError, match="'gated_for_a_test' is already registered by .*Gated"):
        register_ln_mode(gated)(PreLN)
    with pytest.raises(ValueError, match="'post_ln' is already registered"):
        register_ln_mode("post_ln")(Gated)
    assert LN_MODES["post_ln"] is PostLN


def test_mistakes_in_a_mode_are_named(monkeypatch):
    monkeypatch.setattr(connections, "LN_MODES", dict(LN_MODES))
    for members, error, message in (
        ({}, NotImplementedError, "Empty must implement forward"),
        ({"forward": lambda self, stream, sublayer: stream[0]}, TypeError, "Empty returned a tensor, must be a tuple"),
    ):
        register_ln_mode("empty_for_a_test")(type("Empty", (ResidualConnection,), members))
        with pytest.raises(error, match=message):
            logits_of(make("empty_for_a_test"))
    plain = type("Empty", (ResidualConnection,), {"Options": type("Options", (), {"start": 0.5})})
    with pytest.raises(ValueError, match="Options of ln_mode 'empty_for_a_test': is no dataclass"):
        register_ln_mode("empty_for_a_test")(plain)


def test_places_count_sublayers():
    places = layer_places(ResidualConfig(encoder_layers=2, decoder_layers=4).of("decoder"), 3)
    assert [place.kind for place in places] == ["self_attention", "cross_attention", "feed_forward"]
    assert [place.index for place in places] == [9, 10, 11]
    assert [place.is_first_in_layer for place in places] == [True, False, False]
    assert [place.is_last_in_layer for place in places] == [False, False, True]
    assert {place.num_layers for place in places} == {4}


def test_scores_are_not_divided_by_default():
    sublayer = Sublayer(lambda z, score_residual: (z, None, score_residual), nn.Dropout())
    assert sublayer.with_scores(torch.ones(1), None)[1] == (None, 1.0)


def test_layers_name_no_mode():
    """Neither layers nor stacks know a mode: adding one touches one file."""
    text = "".join(Path(module.__file__).read_text(encoding="utf-8") for module in (layers, stacks))
    named = [name for name in LN_MODES if f'"{name}"' in text or f"'{name}'" in text]
    assert named == []
