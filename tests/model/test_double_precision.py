# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""A model in fp64 computes in fp64: its gradients equal differences of its logits far below the rounding of fp32."""

from __future__ import annotations

import pytest
import torch
from support.models import OURS, SOURCE, TARGET, make, randomise

from residual_hf.model.connections import LN_MODES
from residual_hf.model.modes_gpas import GPAS
from residual_hf.model.norms import AdaNorm

EXACT = [mode for mode in OURS if not issubclass(LN_MODES[mode], GPAS)]  # GPAS passes another gradient by design
CASES = [(mode, {}) for mode in EXACT] + [(mode, {"norm_type": "scale_norm"}) for mode in ("post_ln", "pre_ln")]


@pytest.mark.parametrize(("mode", "fields"), CASES, ids=["-".join([mode, *fields.values()]) for mode, fields in CASES])
def test_gradients_equal_differences_of_the_logits(mode, fields):
    model = randomise(make(mode, "eager", activation_function="gelu", **fields)).double()  # relu has no gradient at 0
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]

    def projection():
        logits = model(SOURCE, attention_mask=SOURCE.ne(1), decoder_input_ids=TARGET).logits
        return (logits * torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)).sum()

    def projection_at(step):
        with torch.no_grad():
            for parameter, d in zip(model.parameters(), direction, strict=True):
                parameter.add_(d, alpha=step)
            value = projection()
            for parameter, d in zip(model.parameters(), direction, strict=True):
                parameter.sub_(d, alpha=step)
            return value

    gradients = torch.autograd.grad(projection(), list(model.parameters()), allow_unused=True)
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True) if g is not None)
    step = 1e-6
    difference = (projection_at(step) - projection_at(-step)) / (2 * step)
    assert difference.dtype == torch.float64
    torch.testing.assert_close(difference, slope, rtol=1e-4, atol=1e-7)


def test_ada_norm_in_fp64():
    x = torch.randn(4, 16, dtype=torch.float64)
    y = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
    torch.testing.assert_close(AdaNorm(16, eps=0.0, scale=1.0)(x), (1 - 0.1 * y) * y, rtol=1e-13, atol=1e-13)
