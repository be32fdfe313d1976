"""The decoder on the native kernels against the model itself."""

import copy
import re

import numpy as np
import pytest
import torch
from support.models import make, randomise
from support.native_library import best_isa, isa, needs_kernels, threads  # noqa: F401
from torch import nn

from residual_hf.base.choices import DECODING_DTYPES
from residual_hf.base.errors import InputError
from residual_hf.model.connections import LN_MODES
from residual_hf.model.fingerprint import checksum as plain_checksum
from residual_hf.native.decoder import NativeDecoder
from residual_hf.native.decoder import checksum as native_checksum
from residual_hf.native.support import missing_support
from residual_hf.native.weights import LargePages

pytestmark = needs_kernels
PAD, BEAMS, STEPS = 1, 3, 7
FP32 = 2e-5  # relative error of fp32 against fp64: the largest measured one is 5e-6
MODES = ["post_ln", "pre_ln", "resi_dual"]
INSIDE = ["hybrid_norm", "mhc", "normformer", "realformer", "sub_ln"]  # modes that change sub-layers or join streams
SIZES = {
    "heads of 4": {},
    "heads of 16": {"d_model": 64},
    "odd": {"d_model": 78, "encoder_attention_heads": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 50},
    "heads of 128": {"d_model": 128, "encoder_attention_heads": 1, "decoder_attention_heads": 1},
}
VARIANTS = {
    "own tables": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "decoder_vocab_size": 71},
    "like BART": {"position_embedding_type": "learned", "embedding_norm": True, "activation_function": "gelu"},
    "like Marian": {"position_counting": "all_tokens", "activation_function": "silu", "output_bias": True},
    "fixed norm": {"fix_norm": True, "position_embedding_type": "none", "scale_embedding": False},
    "RMSNorm": {"norm_type": "rms_norm", "embedding_norm": True},
    "hybrid": {"encoder_ln_mode": "pre_ln"},
    "dual options": {"ln_mode_options": {"dual_scale": 0.1, "main_scale": 0.7}},
    "static streams": {"mode": "hyper_connections", "ln_mode_options": {"streams": 2, "dynamic": False}},
    "blocks": {"mode": "attention_residuals", "ln_mode_options": {"block_size": 2}},
    "deltas": {"mode": "attention_residuals", "ln_mode_options": {"block_size": 2, "delta": True}},
    "dynamic averages": {"mode": "dense_former", "ln_mode_options": {"dynamic": True}},
    "products": {"mode": "mhc", "ln_mode_options": {"mixing": "kronecker", "learned_end": True}},
    "hybrid streams": {"mode": "siamese_norm", "ln_mode_options": {"hybrid": True}},
    "first layer": {"mode": "hybrid_norm", "ln_mode_options": {"star": True}},
    "heads before": {"mode": "normformer", "ln_mode_options": {"head_scale_position": "pre_out"}},
    "mean of scores": {"mode": "realformer", "ln_mode_options": {"running_mean": True}},
}


def model_of(mode, **fields):
    return randomise(make(mode, attention=None, **fields))


def sources(side="right"):
    lengths, longest = (6, 2, 4, 5), 7
    ids = torch.full((len(lengths), longest), PAD)
    generator = torch.Generator().manual_seed(3)
    for row, length in zip(ids, lengths, strict=True):
        place = slice(length) if side == "right" else slice(-length, None)
        row[place] = torch.randint(3, 30, (length,), generator=generator)
    return ids, ids.ne(PAD)


@torch.no_grad()
def compare_steps(model, decoder, side="right", beams=BEAMS):
    """Largest relative error of logits over random tokens, with beams reordered and sentences dropped."""
    ids, mask = sources(side)
    exact = copy.deepcopy(model).double()
    memory = exact.model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    state = decoder.start(memory.float(), mask, beams, STEPS)
    generator = torch.Generator().manual_seed(4)
    sentence = torch.arange(len(ids))
    history = torch.full((len(sentence), 1), 2)
    worst = 0.0
    for step in range(STEPS):
        inputs = {"encoder_outputs": (memory[sentence],), "attention_mask": mask[sentence]}
        expected = exact(**inputs, decoder_input_ids=history).logits[:, -1]
        actual = state.step(history[:, -1].numpy())
        assert actual.shape == expected.shape and expected.isfinite().all() and actual.isfinite().all()
        worst = max(worst, float((actual - expected).norm() / expected.norm()))
        rows = torch.arange(len(sentence)).repeat_interleave(1 if step else beams)
        if step:
            rows = rows // beams * beams + torch.randint(beams, (len(rows),), generator=generator)
        if step in (3, 5):
            rows = rows[: -2 * beams] if step == 3 else rows[beams:]
        state.select(rows.numpy())
        sentence, history = sentence[rows], history[rows]
        tokens = torch.randint(3, 30, (len(rows), 1), generator=generator)
        history = torch.cat([history, tokens], dim=1)
    return worst


@torch.no_grad()
def compare_encoder(model, decoder, side="right"):
    """Relative error of the states of real tokens."""
    ids, mask = sources(side)
    expected = copy.deepcopy(model.model.encoder).double()(input_ids=ids, attention_mask=mask).last_hidden_state[mask]
    actual = decoder.encode(ids, mask)
    assert not actual[~mask].any()
    return float((actual[mask] - expected).norm() / expected.norm())


def assert_near_the_model(model, side="right"):
    """States of the encoder and logits of fp32 are those of the model."""
    decoder = NativeDecoder(model)
    assert compare_encoder(model, decoder, side) < FP32
    assert compare_steps(model, decoder, side) < FP32
    return decoder


@best_isa
@pytest.mark.parametrize("mode", sorted(LN_MODES))
def test_fp32_has_the_logits_of_the_model(isa, mode):  # noqa: F811
    assert_near_the_model(model_of(mode))


@pytest.mark.parametrize("mode", MODES)
def test_padding_on_the_left(isa, mode):  # noqa: F811
    assert_near_the_model(model_of(mode), "left")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mode", MODES)
def test_sizes(isa, mode, sizes):  # noqa: F811
    model = model_of(mode, **SIZES[sizes])
    assert compare_steps(model, assert_near_the_model(model), beams=1) < FP32


@best_isa
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_model(isa, variant):  # noqa: F811
    assert_near_the_model(model_of(**{"mode": "resi_dual", **VARIANTS[variant]}))


@torch.no_grad()
def bfloat16_errors(model):
    """Relative errors of encoder states and logits with all of the model in bfloat16."""
    ids, mask = sources()
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.arange(3, 3 + STEPS).expand(4, -1)}
    rounded = copy.deepcopy(model).bfloat16()
    states, rounded_states = (m.model.encoder(ids, mask).last_hidden_state[mask].float() for m in (model, rounded))
    logits, rounded_logits = (m(**inputs).logits.float() for m in (model, rounded))
    per_step = (rounded_logits - logits).norm(dim=(0, 2)) / logits.norm(dim=(0, 2))
    return float((rounded_states - states).norm() / states.norm()), float(per_step.max())


@pytest.mark.parametrize(
    ("mode", "sizes"),
    [("resi_dual", sizes) for sizes in SIZES]
    + [(mode, "odd") for mode in ("post_ln", "mhc", "normformer")]
    + [
        pytest.param(mode, "odd", marks=pytest.mark.slow) for mode in ("pre_ln", "hybrid_norm", "realformer", "sub_ln")
    ],
)
def test_low_precision(isa, mode, sizes):  # noqa: F811
    model = model_of(mode, **SIZES[sizes])
    encoder_error, decoder_error = bfloat16_errors(model)
    for dtype, factor in (("bfloat16", 1.5), ("int8", 6.0)):
        decoder = NativeDecoder(model, dtype)
        assert compare_encoder(model, decoder) < factor * encoder_error
        assert compare_steps(model, decoder) < factor * decoder_error


@pytest.mark.parametrize("mode", INSIDE)
def test_modes_that_change_sublayers_in_other_sizes(isa, mode):  # noqa: F811
    model = model_of(mode, **SIZES["odd"])
    assert compare_steps(model, NativeDecoder(model), "left") < FP32


def test_a_matrix_whose_first_number_nothing_reads(monkeypatch):
    monkeypatch.setattr(LN_MODES["mhc"].Boundary, "end", lambda self, stream: self.norm(stream[1]))
    model = model_of("mhc")
    assert compare_steps(model, NativeDecoder(model)) < FP32


def test_an_encoder_without_kernels_is_left_to_the_model():
    model = model_of("resi_dual", encoder_norm_type="scale_norm")
    decoder = NativeDecoder(model)
    assert decoder.encode(*sources()) is None
    assert compare_steps(model, decoder) < FP32


@torch.no_grad()
@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_a_sentence_has_the_same_logits_in_any_batch(isa, dtype):  # noqa: F811
    model = model_of("resi_dual", d_model=96, encoder_ffn_dim=200, decoder_ffn_dim=200)
    decoder = NativeDecoder(model, dtype)
    ids, mask = sources()
    together = decoder.encode(ids, mask)
    state = decoder.start(together, mask, 1, 3)
    logits = [state.step(np.full(len(ids), token)).clone() for token in (2, 5, 6)]
    for row, length in enumerate(mask.sum(dim=1)):
        alone = decoder.encode(ids[row : row + 1, :length])
        assert torch.equal(alone[0], together[row, :length])
        state = decoder.start(alone, None, 1, 3)
        for step, token in enumerate((2, 5, 6)):
            assert torch.equal(state.step(np.array([token]))[0], logits[step][row])


@torch.no_grad()
@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_threads_share_the_rows_of_a_batch(dtype):
    model = model_of("resi_dual")
    decoder = NativeDecoder(model, dtype)
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 16, (40,), generator=generator)
    mask = torch.arange(15) < lengths.unsqueeze(1)
    ids = torch.randint(3, 30, mask.shape, generator=generator).masked_fill(~mask, PAD)

    def run():
        memory = decoder.encode(ids, mask)
        state = decoder.start(memory, mask, BEAMS, 3)
        outputs = [memory]
        for rows in (np.arange(120)[::-1] // BEAMS, np.arange(95)):
            outputs += map(torch.from_numpy, state.best(np.arange(len(state.sources)) % 30, 4))
            state.select(rows)
        return [*outputs, state.step(np.arange(95) % 30)]

    alone = run()
    with threads(3):
        together = run()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@torch.no_grad()
@pytest.mark.parametrize(
    ("size", "forbidden", "counts"), [(30, 0, (1, 6, 29, 500)), (1500, 600, (5,))], ids=["all", "not the first"]
)
def test_candidates_are_the_best_of_the_logits(size, forbidden, counts):
    """Tokens that are forbidden have no share."""
    model = model_of("post_ln", vocab_size=size, output_bias=forbidden > 0)
    if forbidden:
        model.lm_head.bias[:forbidden] = -torch.inf
    decoder = NativeDecoder(model)
    ids, mask = sources()
    for count in counts:
        states = [decoder.start(decoder.encode(ids, mask), mask, 1, STEPS) for _ in range(2)]
        tokens = np.arange(3, 7)
        log_probs, found = map(torch.from_numpy, states[0].best(tokens, count))
        expected = states[1].step(tokens).log_softmax(dim=-1)
        torch.testing.assert_close(log_probs, expected.topk(min(count, size)).values)
        torch.testing.assert_close(log_probs, expected.gather(1, found))
        assert found.min() >= forbidden


@torch.no_grad()
@pytest.mark.parametrize(("mode", "options"), [("fixup", None), ("normformer", {"head_scale_position": "pre_out"})])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_models_that_are_rounded_themselves(mode, options, dtype):
    model = model_of(mode, ln_mode_options=options)
    ids, mask = sources()
    states = []
    for precision in (torch.float32, torch.bfloat16):
        decoder = NativeDecoder(model.to(precision), dtype)
        states.append(decoder.start(decoder.encode(ids, mask), mask, 1, STEPS).step(np.full(4, 2)))
    torch.testing.assert_close(*states, rtol=0.2, atol=0.2 * states[0].abs().max().item())


@pytest.mark.parametrize("fields", [{"fix_norm": True}, {"ln_mode_options": {"dual_scale": 2.0}}])
def test_changed_fields_of_the_config_are_noticed(fields):
    model = model_of("resi_dual")
    decoder = NativeDecoder(model)
    vars(model.config).update(fields)
    assert not decoder.fingerprint.matches(model, decoder.parts_of(model))


@pytest.mark.parametrize("checksum", [native_checksum, plain_checksum], ids=["native", "NumPy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_every_value_and_its_place_counts_in_a_checksum(checksum, dtype):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randint(100, (size,), generator=generator).to(dtype) for size in (70_001, 1, 0, 333)]
    seen = {checksum(tensors)}
    with threads(3):
        assert checksum([tensor.clone() for tensor in tensors]) in seen

    def changed(tensor, row, value):
        before, tensor[row] = tensor[row].clone(), value
        seen.add(checksum(tensors))
        tensor[row] = before

    places = [(0, 0), (0, 69_999), (0, 70_000), (1, 0), (3, 64), (3, 332)]
    for tensor, row in places:
        changed(tensors[tensor], row, tensors[tensor][row] + 1)
    changed(tensors[0], slice(500, 502), tensors[0][500:502].flip(0) + 0)
    changed(tensors[0], slice(0, 70_001), tensors[0].flip(0))
    if dtype.is_floating_point:
        changed(tensors[3], slice(0, 64), -tensors[3][:64])
        changed(tensors[3], slice(0, 128, 2), -tensors[3][:128:2])
    expected = len(places) + 3 + 2 * dtype.is_floating_point
    assert len(seen) == expected
    assert checksum(tensors) in seen and checksum(tensors[:1]) not in seen


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ln_mode": "mhc", "norm_type": "ada_norm"}, "ln_mode 'mhc' computes mean of hidden states"),
        ({"ln_mode": "sub_ln", "norm_type": "ada_norm"}, "ln_mode 'sub_ln' computes mean of hidden states"),
        ({"norm_type": "scale_norm"}, "norm of hidden states"),
        ({"activation_function": "gelu_new"}, "gelu_new"),
        ({"d_model": 264, "decoder_attention_heads": 2}, "heads of 132"),
    ],
)
def test_what_has_no_kernels_is_refused(change, reason):
    model = make(**{"ln_mode": "post_ln", **change})
    assert reason in missing_support(model)
    with pytest.raises(InputError, match=re.escape(reason)):
        NativeDecoder(model)


class AdaptedNorm(nn.Module):
    """A norm as PEFT wraps it."""

    active_adapters = ("default",)

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer

    def forward(self, states):
        return self.base_layer(states)


def test_classes_in_the_code_of_a_checkpoint_are_served():
    model = model_of("post_ln")
    for layer in model.model.decoder.layers:
        layer.ffn.fc1.__class__ = type("Projection", (nn.Linear,), {})
        layer.ffn.fc2.__class__ = nn.Linear
    model.lm_head.__class__ = type("Projection", (nn.Linear,), {})
    assert compare_steps(model, NativeDecoder(model)) < FP32
    model.lm_head.__class__ = type("Projection", (type(model.lm_head),), {})
    assert "output projection is a Projection" in missing_support(model)


@pytest.mark.parametrize("dtype", DECODING_DTYPES)
def test_generate_encodes_on_the_kernels(dtype, monkeypatch):
    model, (ids, mask) = make("post_ln"), sources()
    monkeypatch.delattr(type(model.model.encoder), "forward")
    assert len(model.generate(ids, attention_mask=mask, max_new_tokens=2, decoding_dtype=dtype)) == len(ids)


def test_weights_are_copied_to_blocks_of_large_pages(monkeypatch):
    monkeypatch.setattr(LargePages, "BLOCK", 4096)
    pages, kept = LargePages(), [torch.arange(n * 6.0).view(n, 6).T for n in (3, 100, 500, 7)]
    copies = [pages.copy(values) for values in kept]
    assert all(torch.equal(*pair) for pair in zip(copies, kept, strict=True))
    assert all(values.is_contiguous() and values.data_ptr() % 64 == 0 for values in copies)


def test_replaced_modules_are_refused():
    model = make("post_ln")
    model.model.decoder.layers[1].ffn.fc1 = nn.Sequential(model.model.decoder.layers[1].ffn.fc1)
    assert "layers.1.ffn.fc1 is a Sequential" in missing_support(model)
    assert "float64" in missing_support(make("post_ln").double())
    model = make("post_ln")
    connection = model.model.decoder.layers[1].ffn_residual
    connection.norm = AdaptedNorm(connection.norm)
    assert "layers.1.ffn_residual.norm is an adapter (AdaptedNorm)" in missing_support(model)
    assert "allowed are float32" in missing_support(make("post_ln"), "fp4")


@torch.no_grad()
def test_logits_are_of_fp32_whatever_the_default_type_is():
    model = model_of("post_ln")
    decoder = NativeDecoder(model)
    ids, mask = sources()
    states = [decoder.start(decoder.encode(ids, mask), mask, 1, 1) for _ in range(2)]
    expected = states[0].step(np.full(4, 2))
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(states[1].step(np.full(4, 2)), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def test_a_batch_of_padding_alone():
    model = model_of("post_ln")
    decoder = NativeDecoder(model)
    ids = torch.full((2, 3), PAD)
    memory = decoder.encode(ids)
    assert not memory.any()
    assert decoder.start(memory, ids.ne(PAD), 1, 1).step(np.array([2, 2])).isfinite().all()


@torch.no_grad()
def test_bad_calls():
    model = make("post_ln", max_position_embeddings=8)
    decoder = NativeDecoder(model)
    ids, mask = sources()
    state = decoder.start(decoder.encode(ids, mask), mask, 1, 2)
    with pytest.raises(IndexError, match="vocabulary of 30"):
        state.step(np.array([2, 2, 2, 30]))
    with pytest.raises(IndexError, match="vocabulary of 30"):
        decoder.encode(ids + 25, mask)
    with pytest.raises(ValueError, match="the encoder received 9 tokens"):
        decoder.encode(torch.full((1, 9), 5))
    with pytest.raises(ValueError, match=r"attention_mask: for \(4, 6\) states given, encoder_outputs has \(4, 7\)"):
        decoder.start(decoder.encode(ids, mask), mask[:, 1:], 1, 2)
    model.config.max_position_embeddings = 4000  # the table still ends at 8
    with pytest.raises(ValueError, match="the encoder received 9 tokens, but max_position_embeddings is 8"):
        NativeDecoder(model).encode(torch.full((1, 9), 5))
    with pytest.raises(ValueError, match="3 given for 4 rows"):
        state.step(np.full(3, 2))
    with pytest.raises(ValueError, match="5 selected"):
        state.select(np.zeros(5, np.int64))
    state.step(np.full(4, 2))
    state.step(np.full(4, 2))
    with pytest.raises(ValueError, match="max_length: 2"):
        state.step(np.full(4, 2))
