"""Graphs of connections: what they contain, and that tracing changes nothing."""

from threading import Thread

import pytest
import torch
from support.models import SOURCE, make, randomise
from torch import fx

from residual_hf.model.connections import LN_MODES
from residual_hf.tracing import Untraceable, operation_of, trace


def connection_of(ln_mode, **fields):
    return randomise(make(ln_mode, **fields)).model.encoder.layers[1].ffn_residual


def operations(graph):
    return [operation_of(node) for node in graph.nodes if node.op.startswith("call")]


def test_graphs_of_a_connection():
    connection = connection_of("deep_norm")
    graph = trace(connection, 1)
    branch = ["__call__", "getitem"]
    assert operations(graph) == ["mul", *branch, "__call__", "add", "norm"]
    assert operations(trace(connection, 1, is_warming=True)) == ["mul", *branch, "mul", "__call__", "add", "norm"]
    assert operations(trace(connection, 1, inline=True))[-1] == "layer_norm"
    assert [node.target for node in graph.nodes if node.op == "placeholder"] == ["h0", "branch", "dropout", "factor"]


@torch.no_grad()
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize(("ln_mode", "size"), [("resi_dual", 2), ("dlcl_pre", 3), ("hyper_connections", 4)])
def test_a_graph_computes_what_the_connection_computes(ln_mode, size, inline):
    connection, stream = connection_of(ln_mode), torch.randn(size, 2, 3, 16).unbind()
    graph = trace(connection, size, inline=inline)
    actual = fx.Interpreter(connection, graph=graph).run(*stream, lambda x: (x.tanh(),), lambda x: x, None)
    torch.testing.assert_close(tuple(actual), tuple(connection(stream, torch.tanh)))


@torch.no_grad()
def test_other_threads_run_the_model_meanwhile():
    model = randomise(make("hyper_connections"))
    connection = model.model.encoder.layers[0].ffn_residual
    before, expected = dict(vars(connection)), model.model.encoder(SOURCE).last_hidden_state
    found = []
    thread = Thread(target=lambda: found.extend(model.model.encoder(SOURCE).last_hidden_state for _ in range(20)))
    thread.start()
    while thread.is_alive():
        trace(connection, 4)
    assert len(found) == 20 and all(torch.equal(states, expected) for states in found)
    assert all(vars(connection)[name] is value for name, value in before.items())


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda self, stream, sublayer: stream if stream[0].sum() > 0 else sublayer(stream[0]), "a decision"),
        (lambda self, stream, sublayer: (stream[0] * (2 if self.training else 1),), "training"),
        (lambda self, stream, sublayer: setattr(self, "seen", True) or stream, "attributes that it sets"),
        (lambda self, stream, sublayer: (stream[0] + stream[5],), "index out of range"),
        (lambda self, stream, sublayer: (sublayer(stream[0]).add_(stream[0]),), "add_, in place"),
    ],
)
def test_what_cannot_be_traced(monkeypatch, forward, reason):
    connection = connection_of("post_ln")
    monkeypatch.setattr(LN_MODES["post_ln"], "forward", forward)
    with pytest.raises(Untraceable, match=reason):
        trace(connection, 1)
