"""Options of models of one stack: rotary positions, gated feed-forward, adaptive input and softmax."""

import pytest
import torch
from support.single_stacks import MODERN, causal, left_padded, logits_by_steps
from transformers import LlamaConfig, LlamaForCausalLM

from residual_hf import ResidualForCausalLM
from residual_hf.base.errors import InputError
from residual_hf.losses.label_smoothing import LossMeter

ADAPTIVE = {"adaptive_cutoffs": [10, 25], "adaptive_factor": 2}
OPTIONS = {"modern": MODERN, "adaptive": ADAPTIVE, "untied": {**ADAPTIVE, "tie_word_embeddings": False}}


@pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)
def test_model_saves_and_decodes_with_a_cache(fields, tmp_path):
    model, (ids, mask) = causal(ln_mode="b2t", **fields), left_padded()
    model.save_pretrained(tmp_path)
    loaded = ResidualForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        full = loaded(ids, attention_mask=mask).logits
        assert torch.equal(full, model(ids, attention_mask=mask).logits)
        steps = logits_by_steps(loaded, ids, mask)
        assert torch.allclose(steps[mask.bool()], full[mask.bool()], rtol=0, atol=1e-5)
        assert torch.allclose(full[:1, 3:], loaded(ids[:1, 3:]).logits, rtol=0, atol=1e-5)
    options = {"attention_mask": mask, "max_new_tokens": 4, "eos_token_id": None, "do_sample": False}
    greedy = loaded.generate(ids, **options)
    assert torch.equal(greedy, loaded.generate(ids, cache_implementation="static", **options))
    model.train()(ids, attention_mask=mask, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_rotary_positions_of_a_model_in_bf16_are_not_rounded():
    model = causal(d_model=64, num_attention_heads=1, max_position_embeddings=512, **MODERN)
    ids = torch.arange(512)[None] % 46 + 4
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
        expected = model(ids).logits
        assert torch.equal(model.bfloat16().float()(ids).logits, expected)


def test_rotary_positions_and_gate_are_those_of_llama():
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        rms_norm_eps=1e-5, max_position_embeddings=32, attention_bias=True, mlp_bias=True,
    )  # fmt: skip
    torch.manual_seed(0)
    other = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    names = {"self_attn.o_proj": "self_attn.out_proj", "mlp.up_proj": "ffn.fc1", "mlp.gate_proj": "ffn.gate"}
    names |= {"mlp.down_proj": "ffn.fc2", "input_layernorm": "self_attn_residual.norm"}
    names |= {"post_attention_layernorm": "ffn_residual.norm", "model.norm": "model.boundary.norm"}
    weights = {}
    for name, tensor in other.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        weights[name.replace("model.", "model.decoder.", 1)] = tensor
    model = causal(ln_mode="pre_ln", norm_type="rms_norm", scale_embedding=False, tie_word_embeddings=False, **MODERN)
    model.load_state_dict(weights)
    ids, mask = left_padded()
    with torch.no_grad():
        found, expected = (m(ids, attention_mask=mask).logits[mask.bool()] for m in (model, other))
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)


def test_adaptive_softmax_gives_log_probabilities_and_their_loss():
    model, (ids, mask) = causal(**ADAPTIVE), left_padded()
    labels = ids.masked_fill(mask == 0, -100)
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits
        assert torch.allclose(logits.exp().sum(-1), torch.ones(2, 8))
        expected = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )
        assert torch.allclose(model(ids, attention_mask=mask, labels=labels).loss, expected)
        count = (labels[:, 1:] != -100).sum()
        scaled = model(ids, attention_mask=mask, labels=labels, num_items_in_batch=4).loss
        assert torch.allclose(scaled, expected * count / 4)


def test_the_meter_of_the_trainer_sums_the_adaptive_loss():
    model, (ids, _) = causal(**ADAPTIVE), left_padded()
    with torch.no_grad():
        expected = model(ids, labels=ids).loss
        model.criterion = LossMeter(0.0, "fairseq")
        assert torch.allclose(model(ids, labels=ids).loss, expected)
        assert model.criterion.read()["nll"] == pytest.approx(expected.item())
        model.criterion = LossMeter(0.1, "fairseq")
        with pytest.raises(InputError, match="not supported with label smoothing"):
            model(ids, labels=ids)


def test_adaptive_softmax_equals_that_of_torch():
    """`nn.AdaptiveLogSoftmaxWithLoss` with the same weights; its bands have no tied maps."""
    model = causal(**ADAPTIVE)
    head = model.lm_head
    other = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 50, [10, 25], div_value=2.0)
    states = torch.randn(5, 16)
    with torch.no_grad():
        other.head.weight.copy_(torch.cat([head.table.weight, head.band_scores.weight]))
        for tail, band in zip(other.tail, head.bands, strict=True):
            tail[0].weight.copy_(band.projection.weight.T)
            tail[1].weight.copy_(band.table.weight)
        assert torch.allclose(head(states), other.log_prob(states), atol=1e-6)


def test_ids_outside_the_vocabulary_are_refused_as_by_a_table():
    embeddings = causal(**ADAPTIVE).get_input_embeddings()
    for outside in (-3, embeddings.starts[-1] + embeddings.bands[-1].table.num_embeddings):
        with pytest.raises(IndexError):
            embeddings(torch.tensor([5, outside]))


def test_adaptive_tables_are_tied_and_smaller():
    model = causal(**ADAPTIVE)
    embeddings = model.get_input_embeddings()
    assert [tuple(band.table.weight.shape) for band in embeddings.bands] == [(10, 16), (15, 8), (25, 4)]
    for band, tied in zip(list(embeddings.bands)[1:], model.lm_head.bands, strict=True):
        assert band.table.weight is tied.table.weight and band.projection.weight is tied.projection.weight
    fresh = ResidualForCausalLM(model.config).get_input_embeddings()
    assert not fresh(torch.tensor([[1]])).any()
    with pytest.raises(ValueError, match="cannot be resized"):
        model.resize_token_embeddings(60)
