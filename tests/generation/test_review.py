# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""The list of translations to look at first."""

from __future__ import annotations

from residual_hf.generation.stream import Review
from residual_hf.generation.translator import Hypothesis


def test_a_text_without_words_has_nothing_to_look_at():
    review = Review(2)
    review.add(1, ["", " "], [Hypothesis("", 0.0)] * 2)
    assert str(review) == "0 of 2 lines are suspicious"
