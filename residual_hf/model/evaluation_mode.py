# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Evaluation mode for a block of code, also of several threads that share a model."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_evaluated: dict[nn.Module, tuple[int, list[tuple[nn.Module, bool]]]] = {}
_evaluated_lock = threading.Lock()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without dropout, for a block; after the last of several threads, modules get their own back."""
    with _evaluated_lock:
        users, modes = _evaluated.get(model, (0, []))
        if model.training:
            modes = [(module, module.training) for module in model.modules()]
            model.eval()
        _evaluated[model] = users + 1, modes
    try:
        yield
    finally:
        with _evaluated_lock:
            users, modes = _evaluated.pop(model)
            if users > 1:
                _evaluated[model] = users - 1, modes
            else:
                for module, training in modes:
                    module.training = training
