# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import pytest

from residual_hf.model import decoding


@pytest.fixture
def served(monkeypatch):
    """Names of the searches of this package that ran, each time that one did."""
    names = []

    def watch(name):
        search = getattr(decoding, name)
        monkeypatch.setattr(decoding, name, lambda *args: names.append(name) or search(*args))

    watch("greedy_search")
    watch("beam_search")
    return names
