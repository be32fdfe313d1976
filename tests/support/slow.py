"""Which values of a parameter are slow."""

import pytest


def slow_except(quick, values, *others):
    """The values of a parameter, and of others, slow except for the quick ones."""
    return [pytest.param(value, *others, marks=[pytest.mark.slow] * (value not in quick)) for value in values]
