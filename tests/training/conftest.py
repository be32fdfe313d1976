# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from functools import partial

import pytest

from residual_hf.hub import card


@pytest.fixture(scope="module", autouse=True)
def quick_cards():
    """Cards of the many runs here have few resamples and no picture; tests/hub tests the complete ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(card, "paired_bootstrap", partial(card.paired_bootstrap, samples=20))
        patch.setattr(card, "learning_curve", lambda records: None)
        yield
