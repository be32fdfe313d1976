"""`generate` with every mode: with a dynamic or a static cache, and by every strategy."""

import copy

import torch
from support.models import SOURCE, every_mode, every_shape, logits_in_pieces, logits_of, make, randomise
from transformers import EncoderDecoderCache, StaticCache


def generate(model, source=SOURCE, **settings):
    fixed = {"max_new_tokens": 8, "min_new_tokens": 4, "do_sample": False, "attention_mask": source.ne(1)}
    return model.generate(source, **fixed | settings)


@every_mode
def test_decoding_with_a_cache_equals_the_full_pass(mode, models):
    full = logits_of(models(mode))
    tolerance = 1e-5 * max(1.0, full.abs().max().item())
    torch.testing.assert_close(logits_in_pieces(models(mode)), full, rtol=1e-5, atol=tolerance)


@every_shape
def test_static_cache_equals_the_full_pass(mode, models):
    model = copy.deepcopy(models(mode)).double()
    full = logits_of(model)
    cache = EncoderDecoderCache(
        StaticCache(config=model.config, max_cache_len=8),
        StaticCache(config=model.config, max_cache_len=SOURCE.shape[1]),
    )
    tolerance = 1e-10 * max(1.0, full.abs().max().item())
    torch.testing.assert_close(logits_in_pieces(model, cache, (1, 1, 1, 1)), full, rtol=1e-10, atol=tolerance)
    assert torch.equal(generate(model, cache_implementation="static"), generate(model))


def test_assisted_decoding_equals_greedy(models):
    helper = randomise(make("post_ln", decoder_layers=1, encoder_layers=1))
    source = SOURCE[:1]
    assert torch.equal(
        generate(models("resi_dual"), source, assistant_model=helper), generate(models("resi_dual"), source)
    )


def test_encoder_outputs_serve_a_search_that_transformers_finishes(models):
    model = models("resi_dual")
    encoder_outputs = model.get_encoder()(SOURCE, attention_mask=SOURCE.ne(1))
    settings = {"attention_mask": SOURCE.ne(1), "num_beams": 2, "max_new_tokens": 8, "do_sample": False}
    ours = model.generate(encoder_outputs=encoder_outputs, **settings)
    theirs = model.generate(encoder_outputs=encoder_outputs, output_attentions=True, **settings)
    assert torch.equal(ours, theirs)


def test_source_embeddings_may_be_given(models):
    model = models("resi_dual")
    embeds = model.get_input_embeddings()(SOURCE)
    given = model.generate(
        inputs_embeds=embeds, attention_mask=SOURCE.ne(1), min_new_tokens=4, max_new_tokens=8, do_sample=False
    )
    assert torch.equal(given, generate(model))


def test_generated_attentions_and_states_have_their_depths(models):
    out = generate(
        make("resi_dual", "eager"), return_dict_in_generate=True, output_attentions=True, output_hidden_states=True
    )
    assert [len(step) for step in out.cross_attentions] == [3] * len(out.cross_attentions)
    assert [len(step) for step in out.decoder_hidden_states] == [4] * len(out.cross_attentions)
    assert (len(out.encoder_attentions), len(out.encoder_hidden_states)) == (2, 3)


def test_separate_vocabularies_generate_within_that_of_the_target():
    fields = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 19}
    model = randomise(make("resi_dual", **fields))
    for beams in (1, 4):
        found = generate(model, num_beams=beams)
        assert found.max() < 19
        assert torch.equal(found, generate(model, num_beams=beams, use_cache=False))


def test_sampling_follows_the_seed(models):
    def sample(seed):
        torch.manual_seed(seed)
        return generate(models("resi_dual"), do_sample=True, num_return_sequences=3, top_k=0)

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1)[:, :4], sample(2)[:, :4])
    assert len(sample(1)) == 6


def test_generation_goes_on_behind_a_given_beginning(models):
    whole = generate(models("resi_dual"), SOURCE[:1])
    for beams in (1, 2):
        after = generate(models("resi_dual"), SOURCE[:1], decoder_input_ids=whole[:, :3], num_beams=beams)
        assert torch.equal(after[:, :3], whole[:, :3])
    assert torch.equal(generate(models("resi_dual"), SOURCE[:1], decoder_input_ids=whole[:, :3])[:, :6], whole[:, :6])
