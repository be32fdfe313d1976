# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""What the tests of the native kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from residual_hf.native import INSTRUCTION_SETS, instruction_set, library, multiplies_bf16

needs_kernels = pytest.mark.skipif(library() is None, reason="the native kernels were not built or cannot run here")
needs_bf16 = pytest.mark.skipif(not multiplies_bf16(), reason="this CPU has no matrix products in bf16")
AVAILABLE = INSTRUCTION_SETS[1 : INSTRUCTION_SETS.index(instruction_set()) + 1]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context in which PyTorch and the kernels have `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(params=AVAILABLE)
def isa(request):
    """Each instruction set that this CPU has, in use."""
    library().enable_instruction_set(INSTRUCTION_SETS.index(request.param))
    yield request.param
    library().enable_instruction_set(INSTRUCTION_SETS.index(instruction_set()))
