"""A decoder alone on the native kernels against the model itself: prompts are read at once, then single tokens."""

import copy

import numpy as np
import pytest
import torch
from native.test_decoder import FP32
from support.models import every_mode
from support.native_library import best_isa, isa, needs_kernels, threads  # noqa: F401
from support.single_stacks import MODERN, causal

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.native.decoder import NativeDecoder
from residual_hf.native.support import missing_support

pytestmark = needs_kernels
ODD = {"d_model": 42, "num_attention_heads": 3, "intermediate_size": 50}
VARIANTS = {
    "modern": {**MODERN, **ODD},
    "norms inside a gated layer": {**MODERN, "ln_mode": "sub_ln"},
    "odd": {**ODD, "ln_mode": "hybrid_norm"},
    "all tokens counted": {"position_counting": "all_tokens", "position_embedding_type": "learned"},
    "no final norm": {"ln_mode": "pre_ln", "final_norm": False},
}
LENGTHS = 5, 1, 2, 4  # of prompts in columns up to PROMPT
PROMPT, END, BEAMS = 5, 9, 3


def texts():
    ids = torch.randint(4, 50, (len(LENGTHS), END), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(END) >= PROMPT - torch.tensor(LENGTHS)[:, None]
    return ids.masked_fill(~mask, 1), mask


@torch.no_grad()
def error(model, decoder):
    """Largest relative error of the logits of a step, with beams in another order and a text that leaves."""
    ids, mask = texts()
    positions = (mask.cumsum(1) - 1).clamp(min=0)  # as in `generate`
    expected = copy.deepcopy(model).double()(ids, attention_mask=mask.long(), position_ids=positions).logits
    state = decoder.read(ids[:, :PROMPT], mask[:, :PROMPT], BEAMS, END)
    text, worst = torch.arange(len(ids)), 0.0
    for column in range(PROMPT - 1, END):
        found, wanted = state.step(ids[text, column].numpy()), expected[text, column]
        assert found.isfinite().all() and wanted.isfinite().all()
        worst = max(worst, float((found - wanted).norm() / wanted.norm()))
        rows = torch.arange(len(text)).repeat_interleave(BEAMS if column == PROMPT - 1 else 1)
        rows = rows.view(-1, BEAMS).flip(1)[1 if column == PROMPT else 0 :].flatten()
        state.select(rows.numpy())
        text = text[rows]
    return worst


@best_isa
@every_mode
def test_fp32_has_the_logits_of_the_model(isa, mode):  # noqa: F811
    model = causal(ln_mode=mode)
    assert error(model, NativeDecoder(model)) < FP32


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
def test_variants_in_every_precision(isa, fields):  # noqa: F811
    model = causal(**fields)
    for dtype, tolerance in zip(DECODING_DTYPES, (FP32, 0.05, 0.15), strict=True):
        assert error(model, NativeDecoder(model, dtype)) < tolerance


@torch.no_grad()
@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_a_text_has_the_same_logits_in_any_batch_and_with_any_threads(isa, dtype):  # noqa: F811
    model = causal(ln_mode="resi_dual", d_model=96, intermediate_size=200, **MODERN)
    decoder = NativeDecoder(model, dtype)
    ids, mask = (values[:, :PROMPT].repeat(20, 1) for values in texts())

    def logits(rows):
        state = decoder.read(ids[rows], mask[rows], 1, END)
        return [state.step(np.full(len(ids[rows]), token)).clone() for token in (7, 8)]

    together = logits(slice(None))
    with threads(3):
        assert all(map(torch.equal, logits(slice(None)), together))
    for row, length in enumerate(LENGTHS):
        assert all(torch.equal(a[0], b[row]) for a, b in zip(logits([row]), together, strict=True))
        state = decoder.read(ids[row, None, -length:], mask[row, None, -length:], 1, END)
        assert torch.equal(state.step(np.array([7]))[0], together[0][row])


@pytest.mark.parametrize("padding", [-100, "first behind"])
def test_padding_outside_the_vocabulary_is_refused(padding):
    model = causal()
    ids, mask = torch.tensor([[0, 5, 6], [4, 5, 6]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    ids[0, 0] = model.config.vocab_size if padding == "first behind" else padding
    for fast in (True, False):
        with pytest.raises(IndexError):
            model.generate(ids, attention_mask=mask, max_new_tokens=2, no_repeat_ngram_size=1, fast_decoding=fast)


def test_what_has_no_kernels_is_refused():
    assert "AdaptiveSoftmax" in missing_support(causal(adaptive_cutoffs=[10, 25], adaptive_factor=2))
    model = causal(max_position_embeddings=6)
    ids, mask = texts()
    state = NativeDecoder(model).read(ids[:, :PROMPT], mask[:, :PROMPT], 1, END)
    state.step(np.full(len(ids), 7))
    state.step(np.full(len(ids), 7))
    with pytest.raises(ValueError, match="the decoder received 7 tokens, but max_position_embeddings is 6"):
        state.step(np.full(len(ids), 7))
