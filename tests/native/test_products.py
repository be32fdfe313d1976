import pytest
import torch
import torch.nn.functional as F
from native.test_autograd import assert_same, leaves
from support.native_library import assert_near, isa, needs_bf16, needs_kernels, threads  # noqa: F401

from residual_hf.native import products
from residual_hf.native.products import bf16_products, linear_bf16, matmul

SIZES = [(1, 2, 1), (5, 31, 16), (13, 256, 33), (33, 257, 50), (481, 130, 98)]


def matrix(rows, columns, transposed):
    return torch.randn(columns, rows).t() if transposed else torch.randn(rows, columns)


def rounded_product(left, right):
    return (left.bfloat16().double() @ right.bfloat16().double()).float()


@pytest.fixture
def kernel(monkeypatch, isa):  # noqa: F811
    """The kernel of each instruction set, also of those whose products PyTorch computes faster."""
    monkeypatch.setattr(products, "instruction_set", lambda: "avx512_bf16")
    with bf16_products():
        yield


@needs_kernels
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("size", SIZES)
def test_kernel_rounds_the_matrices_and_nothing_else(kernel, size, transposed):
    rows, inner, columns = size
    left, right = matrix(rows, inner, transposed[0]), matrix(inner, columns, transposed[1])
    bias, before = torch.randn(columns), torch.randn(rows, columns)
    expected = rounded_product(left, right)
    assert_near(matmul(left, right), expected, 1e-6)
    assert_near(matmul(left, right, bias=bias), expected + bias, 1e-6)
    assert matmul(left, right, add_to=(total := before.clone())) is total
    assert_near(total, expected + before, 1e-6)


@needs_kernels
def test_threads_do_not_change_the_result(kernel, monkeypatch):
    left, right = torch.randn(500, 600), torch.randn(600, 70)
    one = matmul(left, right)
    monkeypatch.setattr(products, "PRODUCTS_PER_THREAD", 1)
    with threads(3):
        assert torch.equal(matmul(left, right), one)


@needs_kernels
def test_views_and_empty_matrices(kernel):
    left, right = torch.randn(20, 60)[::2, ::3], torch.randn(7, 20, 9)[3]
    assert_near(matmul(left, right), rounded_product(left, right), 1e-6)
    assert matmul(torch.empty(0, 4), torch.empty(4, 3)).shape == (0, 3)
    assert torch.equal(matmul(torch.empty(2, 0), torch.empty(0, 3), bias=torch.ones(3)), torch.ones(2, 3))


@pytest.mark.parametrize(
    "shapes", [((4, 60), (50, 70)), ((4, 50), (50, 70), 10), ((4, 50), (50, 70), 70, (4, 10))], ids=str
)
def test_shapes_that_do_not_fit_raise_as_in_pytorch(shapes):
    left, right, bias, total = (*(torch.randn(shape) for shape in shapes), None, None)[:4]
    with bf16_products(), pytest.raises(RuntimeError, match=r"shapes|size|expand"):
        matmul(left, right, bias=bias if total is None else None, add_to=total)


def test_other_products_are_those_of_pytorch():
    left, right = torch.randn(4, 6), torch.randn(6, 5)
    assert torch.equal(matmul(left, right), left @ right)
    with bf16_products():
        torch.testing.assert_close(matmul(left.double(), right.double()), left.double() @ right.double())
    total = matmul(left.bfloat16(), right.bfloat16(), add_to=torch.ones(4, 5))
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, 1 + (left.bfloat16() @ right.bfloat16()).float())


@needs_bf16
@pytest.mark.parametrize("rows", [40, 200])
def test_linear_in_bf16(rows):
    inputs, weight, bias = leaves((2, rows, 50), (70, 50), 70)
    output = linear_bf16(inputs, weight, bias)
    assert output.dtype == torch.float32
    rounded = F.linear(inputs.bfloat16().float(), weight.bfloat16().float(), bias)
    assert_near(output, rounded, 3e-6)
    assert_same((output,), (F.linear(inputs, weight, bias),), (inputs, weight, bias), tolerance=0.01)


@needs_bf16
def test_the_context_ends():
    left, right = torch.randn(50, 60), torch.randn(60, 50)
    exact = left @ right
    with bf16_products(), bf16_products():
        pass
    first, second = bf16_products(), bf16_products()
    for step in (first.__enter__, second.__enter__, lambda: first.__exit__(None, None, None)):  # of two threads
        step()
    assert not torch.equal(matmul(left, right), exact)
    second.__exit__(None, None, None)
    assert torch.equal(matmul(left, right), exact)
