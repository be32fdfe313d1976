"""What the tests of the native kernels share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from residual_hf import native
from residual_hf.native import INSTRUCTION_SETS, library, multiplies_bf16
from support.slow import slow_except

needs_kernels = pytest.mark.skipif(library() is None, reason="the native kernels were not built or cannot run here")
needs_bf16 = pytest.mark.skipif(not multiplies_bf16(), reason="this CPU has no matrix products in bf16")


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context in which PyTorch and the kernels have `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """The error, relative to the size of all values, is at most `tolerance`, whatever the CPU."""
    assert actual.shape == expected.shape
    error, size = (actual.double() - expected.double()).norm(), expected.double().norm()
    assert error <= tolerance * size, f"{error / size} > {tolerance}"


def load(most: str) -> str:
    """Load the library of the best instruction set up to `most`; returns which one that is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESIDUAL_HF_ISA", most)
        native._load.cache_clear()
        return native.instruction_set()


def available() -> list[str]:
    """The instruction sets that have a library and that this CPU has, or the one of a library that was chosen."""
    if os.environ.get("RESIDUAL_HF_NATIVE", "1") != "1":
        return [native.instruction_set()] if library() else []
    found = sorted({load(name) for name in INSTRUCTION_SETS} - {"none"}, key=INSTRUCTION_SETS.index)
    native._load.cache_clear()
    return found


AVAILABLE = available()
best_isa = pytest.mark.parametrize("isa", slow_except(AVAILABLE[-1:], AVAILABLE), indirect=True)
"""The best instruction set of this CPU; the others if slow tests run."""


@pytest.fixture(params=slow_except(AVAILABLE[:1] + AVAILABLE[-1:], AVAILABLE))
def isa(request):
    """The least and the best instruction set of this CPU, in use; also those between if slow tests run."""
    load(request.param)
    yield request.param
    native._load.cache_clear()
