"""Functions of PyTorch that are not public: each is known here, so that a version without it says what broke."""

import re

import pytest
import torch
from support import ROOT

USES = {
    "_foreach_norm": "DiagnosticsCallback: norms of the gradients",
    "_foreach_lerp_": "the moving average of the weights",
    "_foreach_mul_": "the optimizer radam",
}


def test_every_use_is_known():
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "residual_hf").rglob("*.py"))
    used = {name for source in sources for name in re.findall(r'(?<!")\btorch\.(_[a-z]\w*)', source)}  # not as text
    assert used == USES.keys()


@pytest.mark.parametrize("name", USES)
def test_the_function_exists(name):
    assert callable(getattr(torch, name, None)), f"torch.{name} is missing, which {USES[name]} needs"
