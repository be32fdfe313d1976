# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Where a program on a GPU would wait for it: what Python reads from tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)


class CountReads(TorchDispatchMode):
    """Context that counts `int(tensor)`, `bool(tensor)`, `.item()`, `nonzero` and the like in `count`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in READS
        return func(*args, **(kwargs or {}))
