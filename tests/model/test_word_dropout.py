"""Word dropout zeroes whole token embeddings in training, each stack by its own rate."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support.models import SOURCE, TARGET, make, randomise

from residual_hf.model.configuration_residual import ResidualConfig
from residual_hf.model.embeddings import drop_words
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration


def begun_with(model, **inputs):
    """What enters the first layer of each stack: the sum of tokens and positions."""
    states = model(**inputs, output_hidden_states=True)
    return {stack: states[f"{stack}_hidden_states"][0].detach() for stack in ("encoder", "decoder")}


def rows_equal(one, other):
    return torch.isclose(one, other, atol=1e-6).all(dim=-1)


def test_whole_vectors_are_zeroed_at_the_rate_and_the_others_stay_as_they_are():
    torch.manual_seed(0)
    embeddings = torch.randn(200, 100, 4)
    dropped = drop_words(embeddings, 0.1, keep_first=False)
    zero = (dropped == 0).all(dim=-1)
    assert torch.equal(dropped[~zero], embeddings[~zero])
    assert zero.float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert zero[:, 0].any()
    assert not (drop_words(embeddings, 0.5, keep_first=True) == 0).all(dim=-1)[:, 0].any()


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_only_the_stack_asked_for_loses_words_and_keeps_their_positions(stack):
    inputs = {"input_ids": SOURCE, "decoder_input_ids": TARGET}
    model = randomise(make("post_ln", dropout=0.0, **{f"{stack}_word_dropout": 0.6})).train()
    whole = begun_with(model.eval(), **inputs)
    torch.manual_seed(3)
    lossy = begun_with(model.train(), **inputs)
    other = "decoder" if stack == "encoder" else "encoder"
    assert torch.equal(lossy[other], whole[other])
    kept = rows_equal(lossy[stack], whole[stack])
    assert not kept.all() and kept.any()
    ids = SOURCE if stack == "encoder" else TARGET
    tokens = getattr(model.model, stack).embed_tokens(ids).detach()
    without_tokens = rows_equal(lossy[stack], whole[stack] - tokens)
    assert (kept | without_tokens).all()
    if stack == "decoder":
        assert kept[:, 0].all()


def test_evaluation_and_generation_see_every_word():
    plain = randomise(make("pre_ln"))
    lossy = make("pre_ln", encoder_word_dropout=0.9, decoder_word_dropout=0.9)
    lossy.load_state_dict(plain.state_dict())
    for model in (plain, lossy):
        model.eval()
    inputs = {"input_ids": SOURCE, "decoder_input_ids": TARGET}
    assert torch.equal(plain(**inputs).logits, lossy(**inputs).logits)
    settings = {"max_new_tokens": 6, "num_beams": 2}
    assert torch.equal(plain.generate(SOURCE, **settings), lossy.generate(SOURCE, **settings))


def test_without_it_no_random_number_is_drawn():
    model = make("post_ln", dropout=0.0).train()
    before = torch.get_rng_state()
    model(input_ids=SOURCE, decoder_input_ids=TARGET)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_rates_are_saved_and_checked(tmp_path):
    make("post_ln", encoder_word_dropout=0.1, decoder_word_dropout=0.2).save_pretrained(tmp_path)
    config = ResidualForConditionalGeneration.from_pretrained(tmp_path).config
    assert (config.encoder_word_dropout, config.decoder_word_dropout) == (0.1, 0.2)
    with pytest.raises(StrictDataclassError, match="encoder_word_dropout: 1.0 given, must be a number >= 0 and < 1"):
        ResidualConfig(encoder_word_dropout=1.0)
