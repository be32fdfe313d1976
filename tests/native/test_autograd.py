"""The kernels of training, forward and backward, against the operations of PyTorch that they replace."""

import pytest
import torch
import torch.nn.functional as F
from support.native_library import assert_near, isa, needs_kernels, threads  # noqa: F401

from residual_hf.native import autograd

pytestmark = [needs_kernels, pytest.mark.usefixtures("isa")]
RATES = [0.0, 0.3]
WIDTHS = [128, 3, 16, 37, 80]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def assert_same(actual, expected, inputs, tolerance=3e-6):
    """Outputs are equal, and so are the gradients of a random weighting of them."""
    weights = [torch.randn_like(output) for output in expected]
    for got, wanted in zip(actual, expected, strict=True):
        assert_near(got, wanted, tolerance)
    losses = (sum((w * o).sum() for w, o in zip(weights, outputs, strict=True)) for outputs in (actual, expected))
    gradients, wanted = (torch.autograd.grad(loss, inputs) for loss in losses)
    for got, expected_gradient in zip(gradients, wanted, strict=True):
        assert_near(got, expected_gradient, tolerance)


def with_mask(operation, shape, rate):
    """A result with dropout, and the mask that it used: zeros, and 1 / (1 - rate)."""
    torch.manual_seed(7)
    result = operation()
    torch.manual_seed(7)
    return result, autograd.dropout_add(torch.ones(shape), torch.zeros(shape), rate)


def test_tensors_of_other_shapes_are_refused():
    stream, other, gain = torch.ones(2, 3, 8), torch.ones(2, 1, 8), torch.ones(8)
    with pytest.raises(ValueError, match=r"branch: shape \(2, 1, 8\) given, must be \(2, 3, 8\)"):
        autograd.dropout_add(other, stream, 0.0)
    for tensors, name in (((other, stream, gain), "branch"), ((stream, stream, gain[1:]), "gain")):
        branch, residual, weight = tensors
        with pytest.raises(ValueError, match=f"{name}: shape"):
            autograd.dropout_add_norm(branch, residual, 0.0, weight, None, 1e-5)
    with pytest.raises(ValueError, match="dual: shape"):
        autograd.dropout_add_norm(stream, stream, 0.0, gain, None, 1e-5, dual=other)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("with_dual", [True, False])
def test_dropout_add_norm(norm, width, rate, with_dual):
    shape = (3, 5, width)
    branch, stream, dual, gain, bias = leaves(shape, shape, shape, width, width)
    branch.data += 10  # sums far from 0, in which a variance from the mean of squares would lose digits
    centered = norm == "layer_norm"
    inputs = [branch, stream, gain, *([bias] if centered else []), *([dual] if with_dual else [])]
    more = {"centered": centered, "dual": dual if with_dual else None, "dual_scale": 0.5}
    weights = gain, bias if centered else None, 1e-3
    (output, new_dual), mask = with_mask(
        lambda: autograd.dropout_add_norm(branch, stream, rate, *weights, **more), shape, rate
    )
    total = stream + branch * mask
    expected = F.layer_norm(total, (width,), gain, bias, 1e-3) if centered else F.rms_norm(total, (width,), gain, 1e-3)
    if with_dual:
        assert_same((output, new_dual), (expected, dual + 0.5 * branch * mask), inputs)
    else:
        assert new_dual is None
        assert_same((output,), (expected,), inputs)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("width", WIDTHS)
def test_dropout_add(width, rate):
    branch, stream = leaves((4, width), (4, width))
    output, mask = with_mask(lambda: autograd.dropout_add(branch, stream, rate), (4, width), rate)
    assert torch.equal(output, stream + branch * mask)
    assert_same((output,), (stream + branch * mask,), (branch, stream))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("outputs", "members"), [(1, 4), (4, 5), (1, 1)])
@pytest.mark.parametrize("rows", [(3, 5), ()], ids=["of each row", "of all rows"])
def test_weighted_sums(rows, outputs, members, width):
    weights, *vectors = leaves((*rows, outputs, members), *[(3, 5, width)] * members)
    exact = weights.double() @ torch.stack(vectors, dim=-2).double()  # in fp32, PyTorch is the less exact one
    expected = exact.float().unbind(-2)
    assert_same(autograd.weighted_sums(weights, vectors), expected, (weights, *vectors))


@pytest.mark.parametrize("widths", [[8, 8, 8], [8, 9]])
def test_sums_of_other_members_than_there_are_weights(widths):
    with pytest.raises(RuntimeError, match=r"weighted_sums: weights \(2, 2\) for . members \[\(3, 8\)"):
        autograd.weighted_sums(torch.ones(2, 2), [torch.ones(3, width) for width in widths])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("members", [1, 4])
def test_depth_attention(members, width):
    query, *vectors = leaves(width, *[(3, 5, width)] * members)
    query.data /= width**0.5  # logits of size 1
    normed = [F.rms_norm(vector, (width,), None, 1e-3) for vector in vectors]
    probabilities = torch.stack([vector @ query for vector in normed], dim=-1).softmax(-1)
    expected = (probabilities[..., None, :] @ torch.stack(vectors, dim=-2)).squeeze(-2)
    assert_same((autograd.depth_attention(vectors, query, 1e-3),), (expected,), (query, *vectors))


@pytest.mark.parametrize("count", [1, 15, 16, 33, 1000])
def test_dropout(count):
    (values,) = leaves(count)
    torch.manual_seed(7)
    output = autograd.dropout(values, 0.4)
    torch.manual_seed(7)
    mask = autograd.dropout(torch.ones(count), 0.4)
    assert torch.equal(output, values * mask)
    assert_same((output,), (values * mask,), [values])
    assert autograd.dropout(values, 0.0) is values


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
def test_masks_are_random(rate):
    shape = 1000, 1000
    kept = autograd.dropout(torch.ones(shape), rate).ne(0).double()
    error = (rate * (1 - rate) / kept.numel()) ** 0.5
    assert abs(float(kept.mean()) - (1 - rate)) < 5 * error + 1e-5
    for line in (0, 1):  # neither rows nor columns differ more than by chance
        spread = float(kept.mean(line).std()) / (rate * (1 - rate) / 1000) ** 0.5
        assert 0.9 < spread < 1.1
    centered = kept - kept.mean()
    for shift in (1, 16, 32, 1000):  # nor do values depend on those before them
        correlation = (centered.flatten()[shift:] * centered.flatten()[:-shift]).mean() / centered.var()
        assert abs(float(correlation)) < 6e-3


def test_rates_near_one_drop_nearly_all():
    assert int(autograd.dropout(torch.ones(100_000), 1 - 1e-6).ne(0).sum()) < 100


def test_masks_follow_the_generator_of_torch():
    ones = torch.ones(1000)
    torch.manual_seed(1)
    first, second = autograd.dropout(ones, 0.5), autograd.dropout(ones, 0.5)
    torch.manual_seed(1)
    assert torch.equal(autograd.dropout(ones, 0.5), first)
    assert not torch.equal(first, second)


def test_threads_have_the_mask_of_one(monkeypatch):
    shape = 211, 130
    branch, stream, dual, gain, bias = leaves(shape, shape, shape, shape[1], shape[1])

    def run(parts):
        monkeypatch.setattr(autograd, "threads_for", lambda *_: parts)
        torch.manual_seed(3)
        return *autograd.dropout_add_norm(branch, stream, 0.3, gain, bias, 1e-5, dual=dual), autograd.dropout(
            branch, 0.3
        )

    with threads(3):
        assert all(torch.equal(one, three) for one, three in zip(run(1), run(3), strict=True))
        assert_same(run(3), run(1), [branch, stream, dual, gain, bias])


def test_rows_that_are_not_contiguous():
    branch, stream, gain, bias = leaves((6, 4, 20), (4, 6, 20), 20, 20)
    output, _ = autograd.dropout_add_norm(branch.transpose(0, 1), stream, 0.0, gain, bias, 1e-5)
    expected = F.layer_norm(stream + branch.transpose(0, 1), (20,), gain, bias)
    assert_same((output,), (expected,), (branch, stream, gain, bias))


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="float64"):
        autograd.dropout(torch.ones(4, dtype=torch.float64), 0.5)


@pytest.mark.parametrize("classes", [1, 15, 16, 33, 1000])
def test_softmax(classes):
    logits = 5 * torch.randn(70, classes) + 100
    labels = torch.randint(classes, (70,))
    expected = logits.double().log_softmax(1)
    nll, log_prob_sum = autograd.softmax_(logits, labels)
    torch.testing.assert_close(logits, expected.exp().float(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(nll.double(), F.nll_loss(expected, labels, reduction="sum"), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(log_prob_sum.double(), expected.sum(), rtol=1e-5, atol=1e-3)


def test_softmax_of_extreme_logits():
    logits = torch.tensor([[1000.0, -1000.0, 0.0]])
    assert autograd.softmax_(logits, torch.tensor([1]))[0] == 2000
    torch.testing.assert_close(logits, torch.tensor([[1.0, 0.0, 0.0]]))
    assert autograd.softmax_(torch.tensor([[0.0, torch.nan, 0.0]]), torch.tensor([0]))[0].isnan()


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_that_do_not_exist_are_refused(label):
    with pytest.raises(IndexError, match="must be in 0 to 2"):
        autograd.softmax_(torch.zeros(1, 3), torch.tensor([label]))


def test_labels_of_32_bits():
    logits, labels = torch.randn(4, 3), torch.tensor([1, 0, 2, 0, 0, 0, 0, 0], dtype=torch.int32)[:4]
    expected = F.nll_loss(logits.log_softmax(1), labels.long(), reduction="sum")
    torch.testing.assert_close(autograd.softmax_(logits, labels)[0], expected)
