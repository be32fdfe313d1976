"""Modes against classes of Transformers, with copied weights."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from support.plain_models import LN
from support.random_models import WIDTH, build, outputs_of
from torch import nn

from residual_hf import ResidualForConditionalGeneration


def deepseek(s, x, streams, learned_end):
    """DeepSeek-V4 with the weights of ours, whose norms have a gain and whose matrices are (to, from).

    At the end DeepSeek-V4 weights the streams, which the paper sums.
    """
    official = pytest.importorskip(
        "transformers.models.deepseek_v4.modeling_deepseek_v4", reason="this Transformers has no DeepSeek-V4"
    )
    sizes = {"hc_mult": streams, "hidden_size": WIDTH, "hc_eps": 0.0, "hc_sinkhorn_iters": 20, "rms_norm_eps": 1e-5}
    config = SimpleNamespace(**sizes)
    h = torch.stack([x] * streams, dim=-2)
    for c in s:
        connection = official.DeepseekV4HyperConnection(config)
        weight = c.dynamic_weight * c.weights_norm.weight
        mixing = weight[2 * streams :].unflatten(0, (streams, streams)).transpose(0, 1).flatten(0, 1)
        connection.fn = nn.Parameter(torch.cat([weight[: 2 * streams], mixing]))
        connection.base = nn.Parameter(torch.cat([c.static_read, c.static_write, c.static_mix.T.flatten()]))
        connection.scale = nn.Parameter(c.dynamic_scale)
        post, comb, collapsed = connection(h)
        a = c.f(LN(collapsed, c.norm))
        h = post.to(h.dtype).unsqueeze(-1) * a.unsqueeze(-2) + comb.to(h.dtype).transpose(-1, -2) @ h
    if not learned_end:
        return LN(h.sum(-2), s.end.norm)
    head = official.DeepseekV4HyperHead(config)
    head.hc_fn = nn.Parameter(s.end.dynamic_weight * s.end.weights_norm.weight)
    head.hc_base, head.hc_scale = nn.Parameter(s.end.static_read), nn.Parameter(s.end.dynamic_scale)
    return LN(head(h), s.end.norm)


@pytest.mark.parametrize(("streams", "learned_end"), [(2, False), (4, True)])
def test_mhc_is_that_of_deepseek_v4(streams, learned_end):
    options = {"streams": streams, "learned_end": learned_end}
    model, p = build(ResidualForConditionalGeneration, "mhc", options)
    with torch.no_grad():
        for ours, official in zip(*outputs_of(model, p, partial(deepseek, **options)), strict=True):
            torch.testing.assert_close(ours, official, rtol=1e-4, atol=1e-4)  # its weights are in fp32
