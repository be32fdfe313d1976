# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Modes against classes of Transformers, with copied weights."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support.plain_models import LN
from support.random_models import WIDTH, build, outputs_of
from torch import nn

from residual_hf import ResidualForConditionalGeneration


def deepseek_connection(c, streams):
    """DeepSeek-V4's connection with the weights of ours, whose norm has a gain and whose matrix is (to, from)."""
    module = pytest.importorskip(
        "transformers.models.deepseek_v4.modeling_deepseek_v4", reason="this Transformers has no DeepSeek-V4"
    )
    config = {"hc_mult": streams, "hidden_size": WIDTH, "hc_eps": 0.0, "hc_sinkhorn_iters": 20, "rms_norm_eps": 1e-5}
    connection = module.DeepseekV4HyperConnection(SimpleNamespace(**config))
    weight = c.dynamic_weight * c.weights_norm.weight
    mixing = weight[2 * streams :].unflatten(0, (streams, streams)).transpose(0, 1).flatten(0, 1)
    connection.fn = nn.Parameter(torch.cat([weight[: 2 * streams], mixing]))
    connection.base = nn.Parameter(torch.cat([c.static_read, c.static_write, c.static_mix.T.flatten()]))
    connection.scale = nn.Parameter(c.dynamic_scale)
    return connection


def deepseek(s, x, streams):
    """The layers of `DeepseekV4DecoderLayer`; at its end DeepSeek-V4 weights the streams, which the paper sums."""
    h = torch.stack([x] * streams, dim=-2)
    for c in s:
        post, comb, collapsed = deepseek_connection(c, streams)(h)
        a = c.f(LN(collapsed, c.norm))
        h = post.to(h.dtype).unsqueeze(-1) * a.unsqueeze(-2) + comb.to(h.dtype).transpose(-1, -2) @ h
    return LN(h.sum(-2), s.end.norm)


@pytest.mark.parametrize("streams", [2, 4])
def test_mhc_is_that_of_deepseek_v4(streams):
    model, p = build(ResidualForConditionalGeneration, "mhc", {"streams": streams})
    with torch.no_grad():
        for ours, official in zip(*outputs_of(model, p, partial(deepseek, streams=streams)), strict=True):
            torch.testing.assert_close(ours, official, rtol=1e-4, atol=1e-4)  # its weights are in fp32
