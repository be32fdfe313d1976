"""What BART and Marian do otherwise than fairseq: positions of all tokens, a norm on embeddings, a bias on logits."""

import math

import pytest
import torch
from support.models import LABELS, SOURCE, TARGET, logits_in_pieces, logits_of, make, randomise

from residual_hf.losses.label_smoothing import LossMeter
from residual_hf.model.embeddings import MarianPositions
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

OPTIONS = {"position_counting": "all_tokens", "embedding_norm": True, "output_bias": True}


def test_rows_of_the_marian_table():
    table = MarianPositions(9, 8, None).table
    assert table.shape == (9, 8)
    for k in range(4):
        angle = 5 * 10000 ** (-2 * k / 8)
        assert table[5, k].item() == pytest.approx(math.sin(angle), abs=1e-7)
        assert table[5, 4 + k].item() == pytest.approx(math.cos(angle), abs=1e-7)
    assert not MarianPositions(9, 8, 1).table[1].any()


@pytest.mark.parametrize("kind", ["sinusoidal", "sinusoidal_marian", "learned"])
def test_all_tokens_are_counted_from_zero(kind):
    model = make("post_ln", position_embedding_type=kind, position_counting="all_tokens")
    positions = model.model.encoder.embed_positions
    table = positions.weight if kind == "learned" else positions.table
    assert len(table) == model.config.max_position_embeddings
    embeddings = torch.zeros(2, 5, 16)
    for mask in (None, SOURCE.ne(1), SOURCE.flip(1).ne(1)):
        assert torch.equal(model.model.encoder.add_positions(embeddings, mask, 0)[1], table[:5])
    assert torch.equal(model.model.encoder.add_positions(embeddings, None, 3)[0], table[3:8])


def test_counting_decides_whether_left_padding_matters():
    left = torch.tensor([[1, 1, 9, 10, 2]])
    right = torch.tensor([[9, 10, 2, 1, 1]])
    for counting, same in (("real_tokens", True), ("all_tokens", False)):
        model = randomise(make("post_ln", position_counting=counting))
        with torch.no_grad():
            one, two = (model(s, attention_mask=s.ne(1), decoder_input_ids=TARGET[:1]).logits for s in (left, right))
        assert ((one - two).abs().max().item() < 1e-5) is same


@pytest.mark.parametrize("mode", ["resi_dual", "pre_ln"])
def test_cache_changes_nothing(mode):
    model = randomise(make(mode, **OPTIONS))
    torch.testing.assert_close(logits_in_pieces(model, sizes=2), logits_of(model), rtol=1e-5, atol=1e-5)
    for cache in ("static", "dynamic"):
        settings = {"max_new_tokens": 5, "num_beams": 2, "cache_implementation": cache}
        out = model.generate(SOURCE, attention_mask=SOURCE.ne(1), **settings)
        assert torch.equal(out, model.generate(SOURCE, attention_mask=SOURCE.ne(1), max_new_tokens=5, num_beams=2))


@pytest.mark.parametrize("mode", ["resi_dual", "pre_ln"])
def test_norm_stands_behind_the_sum_of_tokens_and_positions(mode):
    model = randomise(make(mode, embedding_norm=True))
    encoder = model.model.encoder
    seen = []
    encoder.layers[0].register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    encoder(SOURCE[:1])
    total = encoder.embed_tokens(SOURCE[:1]) + encoder.embed_positions.table[2:7]
    torch.testing.assert_close(seen[0], encoder.embed_norm(total))
    assert isinstance(make(mode, norm_type="rms_norm", embedding_norm=True).model.decoder.embed_norm, torch.nn.RMSNorm)


@pytest.mark.parametrize("fix_norm", [False, True])
@pytest.mark.parametrize("tie", [True, False])
def test_the_bias_on_logits_is_trained_saved_and_seen_by_the_criterion(tie, fix_norm, tmp_path):
    model = make("resi_dual", output_bias=True, tie_word_embeddings=tie, fix_norm=fix_norm)
    assert not model.lm_head.bias.any()
    model = randomise(model)
    bias = model.lm_head.bias.detach().clone()
    with torch.no_grad():
        model.lm_head.bias.zero_()
        without = logits_of(model)
        model.lm_head.bias.copy_(bias)
    torch.testing.assert_close(logits_of(model), without + bias)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(ResidualForConditionalGeneration.from_pretrained(tmp_path)), logits_of(model))
    gradients = []
    for criterion in (None, LossMeter(0.0, "torch")):
        model.criterion = criterion
        model.zero_grad()
        loss = model(SOURCE, attention_mask=SOURCE.ne(1), decoder_input_ids=TARGET, labels=LABELS).loss
        loss.backward()
        gradients.append((loss.detach(), model.lm_head.bias.grad.clone(), model.lm_head.weight.grad.clone()))
    assert gradients[0][1].any()
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_the_bias_is_resized_with_the_vocabulary(share, tie):
    model = randomise(
        make(
            "post_ln", output_bias=True, fix_norm=True, share_encoder_decoder_embeddings=share, tie_word_embeddings=tie
        )
    )
    before, bias = logits_of(model), model.lm_head.bias.detach().clone()
    resize = model.resize_token_embeddings if share else model.resize_decoder_token_embeddings
    resize(35)
    assert model.lm_head.bias.shape == (35,) and torch.equal(model.lm_head.bias[:30], bias)
    torch.testing.assert_close(logits_of(model)[..., :30], before)
    assert (model.lm_head.weight is model.model.decoder.embed_tokens.weight) is tie
