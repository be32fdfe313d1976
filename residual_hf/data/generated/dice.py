# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
"""Random choices that come out the same on every Python version."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Choices made from `random.Random.random` alone.

    It is the one method of `random` whose numbers Python promises to keep from version to version;
    `choice`, `randrange` and `shuffle` carry no such promise.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))
