from functools import cache

import pytest
from support.models import make, randomise
from support.native_library import needs_kernels

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


@pytest.fixture(params=[pytest.param(True, marks=needs_kernels), False], ids=["kernels", "PyTorch"])
def with_and_without_kernels(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(decoding, "pack_for_kernels", decoding.without_kernels)


@pytest.fixture(scope="module")
def models():
    """A function that makes one random model per mode and attention; tests only read them."""
    return cache(lambda mode, attention=None: randomise(make(mode, attention)))
