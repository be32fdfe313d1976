# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Memory of the CPU: what a training step frees, the next one takes again."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let glibc keep the memory that this process frees instead of handing it back to the kernel at once.

    A training step allocates and frees the same large tensors again and again; by default each of them is mapped,
    zeroed and unmapped every time. The process then stays at its peak size. Where the C library is another one this
    does nothing and returns False.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, LARGEST))
