"""Relative position biases against those of T5 in Transformers, and in everything that attention is part of."""

import pytest
import torch
from support.models import LABELS, SOURCE, TARGET, logits_in_pieces, logits_of, make, randomise
from support.native_library import needs_kernels
from support.single_stacks import causal
from transformers import EncoderDecoderCache, StaticCache, T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from residual_hf import ResidualForConditionalGeneration
from residual_hf.base.errors import InputError
from residual_hf.conversion.export import export
from residual_hf.native.support import missing_support

RELATIVE = {"position_embedding_type": "relative", "encoder_attention_heads": 4, "decoder_attention_heads": 2}


def model_of(mode="pre_ln", **fields):
    return randomise(make(mode, **RELATIVE, **fields))


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_biases_are_those_of_t5(stack):
    """Of queries that begin after 90 others, up to beyond the farthest distance."""
    bias = getattr(model_of().model, stack).relative_bias
    config = T5Config(num_heads=bias.weight.shape[1], d_model=16, d_kv=4, is_decoder=stack == "decoder")
    reference = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    reference.relative_attention_bias.weight = bias.weight
    past, queries, keys = (90, 110, 200) if stack == "decoder" else (0, 200, 200)
    expected = reference.compute_bias(queries, keys, past_seen_tokens=past)
    visible = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    states = torch.zeros(1, 1, keys, 4)
    torch.testing.assert_close(bias.mask(visible, states[:, :, :queries], states, past), expected)


def test_layers_add_the_bias_of_their_stack():
    model = model_of(attention="eager", encoder_layers=1)
    layer, x = model.model.encoder.layers[0], torch.randn(1, 5, 16)
    attention, bias = layer.self_attn, model.model.encoder.relative_bias
    _, weights = attention(x, relative=(bias, 0))
    queries, keys = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (attention.q_proj, attention.k_proj))
    scores = queries @ keys.mT / 2 + bias.mask(None, queries, keys, 0)
    torch.testing.assert_close(weights, scores.softmax(-1))
    before = model.model.encoder(SOURCE).last_hidden_state
    with torch.no_grad():
        bias.weight.add_(torch.randn_like(bias.weight))
    assert not torch.allclose(model.model.encoder(SOURCE).last_hidden_state, before)


@pytest.mark.parametrize("mode", ["resi_dual", "realformer"])
def test_cached_decoding_equals_the_full_pass(mode):
    attention = "eager" if mode == "realformer" else "sdpa"
    model = model_of(mode, attention=attention)
    full = logits_of(model)
    static = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=n) for n in (8, SOURCE.shape[1])))
    for cache in (None, None if mode == "realformer" else static):
        torch.testing.assert_close(logits_in_pieces(model, cache, 1), full, rtol=1e-4, atol=1e-4)


def test_padding_and_implementation_make_no_difference():
    model = model_of()
    expected = logits_of(model)
    eager = make("pre_ln", attention="eager", **RELATIVE)
    eager.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits_of(eager), expected, rtol=1e-4, atol=1e-4)
    left = SOURCE[1:].roll(2, dims=1)  # the padding of the second sentence on its left
    with torch.no_grad():
        moved = model(left, attention_mask=left.ne(1), decoder_input_ids=TARGET[1:]).logits
    torch.testing.assert_close(moved, expected[1:], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="'relative' needs attn_implementation 'eager' or 'sdpa', not 'flex"):
        make("pre_ln", attention="flex_attention", **RELATIVE)


@pytest.mark.parametrize("reentrant", [None, True])
def test_gradients_reach_the_biases_and_a_saved_model_is_the_same(reentrant, tmp_path):
    model = model_of().train()
    if reentrant:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    model(SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss.backward()
    assert all(stack.relative_bias.weight.grad.abs().max() > 0 for stack in (model.model.encoder, model.model.decoder))
    if not reentrant:
        model.eval().save_pretrained(tmp_path)
        loaded = ResidualForConditionalGeneration.from_pretrained(tmp_path).eval()
        assert torch.equal(logits_of(loaded), logits_of(model))


@needs_kernels
def test_transformers_decodes_without_kernels_and_exports_refuse(tmp_path, monkeypatch):
    model = model_of()
    assert "'relative' has no native kernel" in (missing_support(model) or "")
    output = model.generate(SOURCE, attention_mask=SOURCE.ne(1), num_beams=2, max_new_tokens=20)
    assert output.shape[0] == 2
    monkeypatch.setattr("residual_hf.conversion.export.load_checkpoint", lambda *args, **kwargs: (model, None))
    with pytest.raises(InputError, match="position_embedding_type: 'relative' given, must be another"):
        export("model", "torch", tmp_path / "out")


def test_a_decoder_alone_reads_packed_and_padded_texts():
    model = causal(ln_mode="pre_ln", position_embedding_type="relative", num_attention_heads=4)
    ids = torch.randint(4, 30, (1, 6))
    padded = torch.cat([torch.ones(1, 2, dtype=torch.long), ids], dim=1)
    with torch.no_grad():
        apart = torch.cat([model(part).logits for part in ids.split(3, dim=1)], dim=1)
        packed = model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]])).logits
        torch.testing.assert_close(packed, apart, rtol=1e-4, atol=1e-4)
        moved = model(padded, attention_mask=padded.ne(1)).logits[:, 2:]
        torch.testing.assert_close(moved, model(ids).logits, rtol=1e-4, atol=1e-4)
        gaps = torch.tensor([[0, 2, 4, 6, 8, 10]])  # as between texts with masked tokens
        spread = torch.ones(1, 11, dtype=torch.long).scatter(1, gaps, ids)
        expected = model(spread, attention_mask=spread.ne(1)).logits[:, ::2]
        with_gaps = model(ids, attention_mask=torch.ones_like(ids), position_ids=gaps).logits  # the mask: one text
        torch.testing.assert_close(with_gaps, expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(model(ids).logits, expected, atol=1e-2)
