"""The kernels run on PyTorch's threads, and on threads of their own where a process has none of these."""

import ctypes
import multiprocessing

import pytest
import torch
from support.native_library import needs_kernels, threads

from residual_hf.native import autograd

pytestmark = needs_kernels
VALUES = [1.0] * 5000


def dropped(values: list[float]) -> list[float]:
    return autograd.masked(torch.tensor(values), 0.5, seed=1).tolist()


@pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="PyTorch was built without OpenMP")
def test_the_threads_of_pytorch_are_found():
    assert hasattr(ctypes.CDLL(None), "GOMP_parallel")


@pytest.mark.parametrize("count", [1, 2, 12])
def test_parts_need_not_be_as_many_as_threads(count, monkeypatch):
    expected = dropped(VALUES)
    assert {*expected} == {0.0, 2.0}
    monkeypatch.setattr(autograd, "threads_for", lambda *_: 5)
    with threads(count):
        assert dropped(VALUES) == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads(monkeypatch):
    monkeypatch.setattr(autograd, "threads_for", lambda *_: 2)
    with threads(2):
        expected = dropped(VALUES)  # starts the threads of this process
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(dropped, (VALUES,)).get(timeout=30) == expected
