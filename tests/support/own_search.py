# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Whether a request to `generate` runs in the search of this package, and the loops of Transformers."""

from __future__ import annotations

import pytest

from residual_hf.model import decoding


def transformers_loop(model, input_ids, generation_config, **kwargs):
    loop = model._beam_search if generation_config.num_beams > 1 else model._sample
    return loop(input_ids, generation_config=generation_config, **kwargs)


@pytest.fixture
def served(monkeypatch):
    """Names of the searches of ours that ran."""
    names = []

    def watch(name):
        search = getattr(decoding, name)
        monkeypatch.setattr(decoding, name, lambda *args: names.append(name) or search(*args))

    watch("greedy_search")
    watch("beam_search")
    return names
