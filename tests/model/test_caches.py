import inspect

import peft
import pytest
import torch
from support.models import make, randomise
from support.single_stacks import causal
from transformers import BartForConditionalGeneration, GenerationConfig
from transformers.generation import configuration_utils

from residual_hf.model.caches import CACHE

SOURCE, TARGET = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[2, 8, 9, 4]])


def test_the_name_is_that_of_transformers():
    assert CACHE in inspect.signature(BartForConditionalGeneration.forward).parameters


@torch.no_grad()
@pytest.mark.parametrize("name", sorted({CACHE, "past_key_values"}))
def test_a_cache_may_have_the_former_name_too(name):
    model = make("resi_dual").eval()
    first = model(SOURCE, decoder_input_ids=TARGET[:, :2], use_cache=True)
    second = model(SOURCE, decoder_input_ids=TARGET[:, 2:], **{name: first[CACHE]})
    whole = model(SOURCE, decoder_input_ids=TARGET, use_cache=False)
    assert CACHE not in whole
    torch.testing.assert_close(second.logits, whole.logits[:, 2:])
    states = model.model(SOURCE, decoder_input_ids=TARGET[:, :2], use_cache=True)
    decoder = model.model.decoder(TARGET[:, 2:], encoder_hidden_states=states[-1], **{name: states[CACHE]})
    torch.testing.assert_close(model.lm_head(decoder[0]), whole.logits[:, 2:])


@pytest.mark.parametrize("cache", ["of the search of this package", "dynamic", "static"])
def test_no_cache_goes_beyond_the_table_of_positions(cache):
    model = make("pre_ln", max_position_embeddings=6).eval()
    options = {"do_sample": True, "cache_implementation": cache} if cache in ("dynamic", "static") else {}
    with pytest.raises(ValueError, match="the decoder received 7 tokens, but max_position_embeddings is 6"):
        model.generate(SOURCE, min_new_tokens=9, max_new_tokens=9, **options)


@torch.no_grad()
def test_generate_reads_the_prefix_of_peft():
    model = randomise(make("pre_ln")).eval()
    config = model.config
    sizes = {
        "num_layers": config.decoder_layers,
        "num_attention_heads": config.decoder_attention_heads,
        "token_dim": config.d_model,
    }
    settings = peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3, **sizes)
    prefixed = peft.get_peft_model(model, settings).eval()
    torch.nn.init.normal_(prefixed.prompt_encoder["default"].embedding.weight, std=2.0)
    limits = {"min_new_tokens": 5, "max_new_tokens": 5}
    expected = torch.tensor([[config.decoder_start_token_id]])
    for _ in range(5):
        logits = prefixed(input_ids=SOURCE, decoder_input_ids=expected, use_cache=False).logits[:, -1]
        logits[:, config.eos_token_id] = -torch.inf
        expected = torch.cat([expected, logits.argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(prefixed.generate(input_ids=SOURCE, **limits), expected)
    assert not torch.equal(model.generate(input_ids=SOURCE, **limits), expected)


@pytest.mark.skipif(CACHE == "past_key_values", reason="that of Transformers 5.17 fails on a CPU")
def test_continuous_batching_gives_the_tokens_of_generate():
    model = causal(ln_mode="pre_ln", position_embedding_type="rotary", d_model=32, vocab_size=60)
    prompts, length = [[5, 6, 7], [8, 9, 10, 11]], 5
    settings = GenerationConfig(max_new_tokens=length, do_sample=False, pad_token_id=1, eos_token_id=59)
    small = configuration_utils.ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
    found = model.generate_batch(prompts, settings, small, warmup=False)
    for prompt, result in zip(prompts, found.values(), strict=True):
        expected = model.generate(torch.tensor([prompt]), settings, use_cache=False)[0, len(prompt) :].tolist()
        assert result.generated_tokens == expected
