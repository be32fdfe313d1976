"""Decoders of Transformers with the same weights have the same logits and gradients."""

import pytest
import torch
from support.single_stacks import SIZES, disturbed, left_padded
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM

from residual_hf import ResidualConfig, ResidualForCausalLM
from residual_hf.conversion import convert_fairseq_state_dict


def ours(weights, **fields):
    config = ResidualConfig(
        **SIZES, is_decoder_only=True, position_embedding_type="learned", scale_embedding=False, **fields
    )
    model = ResidualForCausalLM(config)
    model.load_state_dict(convert_fairseq_state_dict(weights, config))
    return model.eval()


def assert_equal(model, other, table):
    ids, mask = left_padded()
    labels = ids.masked_fill(mask == 0, -100)
    expected, found = (each(ids, attention_mask=mask, labels=labels) for each in (other, model))
    assert torch.allclose(found.logits[mask.bool()], expected.logits[mask.bool()], rtol=0, atol=1e-5)
    assert torch.allclose(found.loss, expected.loss, rtol=0, atol=1e-5)
    (found.loss + expected.loss).backward()
    gradient = model.get_input_embeddings().weight.grad
    assert torch.allclose(gradient, table.grad, rtol=0, atol=1e-5)
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(ids, **options), other.generate(ids, pad_token_id=1, **options))


@pytest.mark.parametrize("mode", ["post_ln", "pre_ln"])
def test_opt(mode):
    config = OPTConfig(
        vocab_size=50, hidden_size=16, word_embed_proj_dim=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32,
        max_position_embeddings=32, do_layer_norm_before=mode == "pre_ln",
    )  # fmt: skip
    other = disturbed(OPTForCausalLM(config))
    weights = {
        name.removeprefix("model.").replace("decoder.final_layer_norm", "decoder.layer_norm"): tensor
        for name, tensor in other.state_dict().items()
        if name != "lm_head.weight"
    }
    # OPT counts real tokens from row 2; fairseq from the row after the padding, which has row 1
    model = ours(weights, ln_mode=mode, activation_function="relu")
    assert_equal(model, other, other.model.decoder.embed_tokens.weight)


def test_gpt2():
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_inner=32, n_positions=32)
    other = disturbed(GPT2LMHeadModel(config))
    names = {"ln_1": "self_attn_layer_norm", "attn.c_proj": "self_attn.out_proj", "ln_2": "final_layer_norm"}
    names |= {"mlp.c_fc": "fc1", "mlp.c_proj": "fc2", "attn.c_attn": "self_attn"}
    top = {"wte.weight": "embed_tokens.weight", "wpe.weight": "embed_positions.weight"}
    weights = {}
    for name, tensor in other.transformer.state_dict().items():
        kind, _, rest = name.partition(".")
        if kind == "h":
            layer, _, place = rest.partition(".")
            module, _, part = place.rpartition(".")
            tensor = tensor.T if part == "weight" and tensor.ndim == 2 else tensor
            part = f"in_proj_{part}" if module == "attn.c_attn" else part
            weights[f"decoder.layers.{layer}.{names[module]}.{part}"] = tensor
        else:
            weights[f"decoder.{top.get(name, name.replace('ln_f', 'layer_norm'))}"] = tensor
    model = ours(weights, ln_mode="pre_ln", activation_function="gelu_new", position_counting="all_tokens")
    ids, mask = left_padded()
    ids, mask = ids[1:], mask[1:]
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, other(ids).logits, rtol=0, atol=1e-5)
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(ids, **options), other.generate(ids, pad_token_id=1, **options))
