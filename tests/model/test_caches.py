# Copyright 2026 The residual_hf authors. Licensed under the Apache License, Version 2.0.
from __future__ import annotations

import inspect

import pytest
import torch
from model.test_mode_invariants import make
from transformers import BartForConditionalGeneration

from residual_hf.model.caches import CACHE

SOURCE, TARGET = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8, 9, 4]])


def test_the_name_is_that_of_transformers():
    assert CACHE in inspect.signature(BartForConditionalGeneration.forward).parameters


@torch.no_grad()
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cache_may_have_both_names(name):
    model = make("resi_dual").eval()
    first = model(SOURCE, decoder_input_ids=TARGET[:, :2], use_cache=True)
    second = model(SOURCE, decoder_input_ids=TARGET[:, 2:], **{name: first[CACHE]})
    whole = model(SOURCE, decoder_input_ids=TARGET, use_cache=False)
    assert CACHE not in whole
    torch.testing.assert_close(second.logits, whole.logits[:, 2:])
    states = model.model(SOURCE, decoder_input_ids=TARGET[:, :2], use_cache=True)
    decoder = model.model.decoder(TARGET[:, 2:], encoder_hidden_states=states[-1], **{name: states[CACHE]})
    torch.testing.assert_close(model.lm_head(decoder[0]), whole.logits[:, 2:])
