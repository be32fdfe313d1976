import pytest
import torch
from native.test_autograd import assert_same
from support.native_library import isa, needs_kernels, threads  # noqa: F401

from residual_hf.native import dot_attention as native
from residual_hf.native.dot_attention import dot_attention, fits

pytestmark = [needs_kernels, pytest.mark.usefixtures("isa")]
SHAPES = [(3, 4, 15, 15, 32), (2, 1, 1, 40, 8), (2, 2, 70, 33, 20), (1, 3, 131, 131, 64), (2, 2, 5, 17, 130)]


def heads(sentences, count, rows, size):
    """Views of (sentences, rows, heads, size), as in a model."""
    return torch.randn(sentences, rows, count, size, requires_grad=True).transpose(1, 2)


def plain(query, key, value, mask, scale, dropped):
    scores = (scale * query @ key.transpose(2, 3)).masked_fill(~mask, -torch.inf)
    return (scores.softmax(dim=-1).nan_to_num() * dropped @ value).transpose(1, 2)


def mask_of(sentences, queries, keys, kind):
    if kind == "causal":
        return torch.ones(queries, keys, dtype=torch.bool).tril().expand(sentences, 1, queries, keys)
    lengths = torch.randint(1, keys + 1, (sentences, 1, 1, 1))
    return (torch.arange(keys) < lengths).expand(sentences, 1, queries, keys)


def factors_of_dropout(sentences, count, queries, keys, rate, seed):
    """(sentences, count, queries, keys): equal weights of values that are a unit matrix leave the dropout."""
    equal, units = torch.zeros(sentences, count, queries, keys), torch.eye(keys).expand(sentences, count, keys, keys)
    torch.manual_seed(seed)
    output = dot_attention(equal, units, units, None, scale=1.0, rate=rate, causal=False)
    return keys * output.transpose(1, 2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kind", "rate"), [("all", 0.0), ("all", 0.4), ("causal", 0.4), ("padding", 0.4), ("causal mask", 0.0)]
)
def test_equals_softmax_of_scores(shape, kind, rate):
    torch.manual_seed(1)
    sentences, count, queries, keys, size = shape
    inputs = [heads(sentences, count, rows, size) for rows in (queries, keys, keys)]
    mask = mask_of(sentences, queries, keys, kind.split()[0]) if kind != "all" else None
    arguments = {"scale": size**-0.5, "rate": rate, "causal": kind == "causal"}

    def attend(*states):
        torch.manual_seed(2)
        return dot_attention(*states, None if kind == "causal" else mask, **arguments)

    allowed = torch.ones(sentences, 1, queries, keys, dtype=torch.bool) if mask is None else mask
    dropped = factors_of_dropout(sentences, count, queries, keys, rate, seed=2)
    kept = dropped[dropped > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)))
    assert 0.5 * rate <= (dropped == 0).float().mean() <= 1.5 * rate
    assert_same([attend(*inputs)], [plain(*inputs, allowed, arguments["scale"], dropped)], inputs)


def test_a_query_that_may_attend_to_nothing():
    query, key, value = (heads(1, 1, 3, 16) for _ in range(3))
    mask = torch.tensor([[True, False, True], [False] * 3, [True] * 3]).view(1, 1, 3, 3)
    inputs = [query, key, value]
    output = dot_attention(*inputs, mask, scale=0.25, rate=0.0, causal=False)
    assert not output[0, 1].any()
    gradients = torch.autograd.grad(output.sum(), inputs)
    assert all(gradient.isfinite().all() for gradient in gradients) and not gradients[0][0, 0, 1].any()


def test_threads_do_not_change_the_result(monkeypatch):
    inputs = [heads(3, 3, 20, 16) for _ in range(3)]

    def run():
        torch.manual_seed(2)
        output = dot_attention(*inputs, None, scale=0.25, rate=0.3, causal=True)
        return output, *torch.autograd.grad(output.square().sum(), inputs)

    alone = run()
    monkeypatch.setattr(native, "PRODUCTS_PER_THREAD", 1)
    with threads(4):
        assert all(torch.equal(one, four) for one, four in zip(alone, run(), strict=True))


def test_what_the_kernel_does_not_serve():
    query, key = heads(2, 4, 5, 16), heads(2, 4, 7, 16)
    allowed = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    assert fits(query, key, key, None) and fits(query, key, key, allowed)
    assert not fits(query, key, key, allowed.float())
    assert not fits(query, key, key, allowed.expand(2, 4, 5, 7))
    assert not fits(query, key[:, :2], key[:, :2], None)
    assert not fits(query.double(), key.double(), key.double(), None)
    assert not fits(query, key.transpose(2, 3).contiguous().transpose(2, 3), key, None)
    assert not fits(query[:0], key[:0], key[:0], None)
