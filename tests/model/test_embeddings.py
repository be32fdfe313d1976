"""Tables of tokens and positions: which are one, what resizing does to them, how positions are numbered."""

import itertools
import json
import math

import pytest
import torch
from safetensors import safe_open
from support.models import LABELS, SOURCE, TARGET, logits_of, make, randomise

from residual_hf.losses.label_smoothing import LossMeter
from residual_hf.model.embeddings import SinusoidalPositions, position_ids_from_mask
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

SWITCHES = list(itertools.product((True, False), repeat=2))
TABLES = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"}
switches = pytest.mark.parametrize(
    ("share", "tie"), SWITCHES, ids=["shared-tied", "shared-untied", "separate-tied", "separate-untied"]
)


def build(share, tie, **fields):
    return make(
        "resi_dual",
        share_encoder_decoder_embeddings=share,
        tie_word_embeddings=tie,
        decoder_vocab_size=None if share else 20,
        **fields,
    )


def groups(model):
    """The three tables as sets of names that are one parameter."""
    by_parameter = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in TABLES:
            by_parameter.setdefault(id(parameter), set()).add(name.split(".")[-3 if "embed" in name else 0])
    return sorted(map(sorted, by_parameter.values()))


EXPECTED = {
    (True, True): [["decoder", "encoder", "lm_head"]],
    (True, False): [["decoder", "encoder"], ["lm_head"]],
    (False, True): [["decoder", "lm_head"], ["encoder"]],
    (False, False): [["decoder"], ["encoder"], ["lm_head"]],
}


@switches
def test_each_switch_does_what_it_says(share, tie, tmp_path):
    model = randomise(build(share, tie))
    assert groups(model) == EXPECTED[share, tie]
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = TABLES & set(file.keys())
    assert len(saved) == len(EXPECTED[share, tie])
    loaded, info = ResidualForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert groups(loaded) == EXPECTED[share, tie]
    assert torch.equal(logits_of(loaded), logits_of(model))


@switches
def test_every_parameter_is_trained(share, tie):
    model = randomise(build(share, tie)).train()
    model(SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@switches
@pytest.mark.parametrize("sizes", [(40, None), (25, None), (None, 26), (None, 18)])
def test_resizing_keeps_ties_and_tokens(share, tie, sizes, tmp_path):
    source, target = sizes
    model = randomise(build(share, tie))
    if share and target:
        with pytest.raises(ValueError, match="use resize_token_embeddings"):
            model.resize_decoder_token_embeddings(target)
        return
    old = logits_of(model)
    (model.resize_token_embeddings if source else model.resize_decoder_token_embeddings)(source or target)
    assert groups(model) == EXPECTED[share, tie]
    found = model.config.vocab_size, model.config.decoder_vocab_size
    assert found == (source or 30, source if share else target or 20)
    new = logits_of(model)
    assert new.shape[-1] == found[1]
    common = min(old.shape[-1], new.shape[-1])
    torch.testing.assert_close(new[..., :common], old[..., :common])
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(ResidualForConditionalGeneration.from_pretrained(tmp_path)), new)


def test_resized_models_train_on():
    model = build(True, True)
    model.resize_token_embeddings(33, pad_to_multiple_of=8)
    assert model.config.vocab_size == model.config.decoder_vocab_size == 40
    assert model(SOURCE, labels=torch.full_like(LABELS, 32)).loss.isfinite()


def test_embeddings_may_be_given_for_tokens():
    model = randomise(make("resi_dual"))
    with torch.no_grad():
        out = model(
            inputs_embeds=model.model.encoder.embed_tokens(SOURCE),
            attention_mask=SOURCE.ne(1),
            decoder_inputs_embeds=model.model.decoder.embed_tokens(TARGET),
        ).logits
    torch.testing.assert_close(out, logits_of(model))


def test_scale_is_the_root_of_the_width():
    table = make("resi_dual", scale_embedding=True).get_input_embeddings()
    torch.testing.assert_close(table(SOURCE), math.sqrt(16) * table.weight[SOURCE])
    table = make("resi_dual", scale_embedding=False).get_input_embeddings()
    assert torch.equal(table(SOURCE), table.weight[SOURCE])


def test_sinusoids_are_those_of_tensor2tensor():
    table = SinusoidalPositions(12, 8, padding_idx=1).table
    assert table.shape == (14, 8)
    assert not table[1].any()
    for position, k in itertools.product(range(2, 14), range(4)):
        angle = position * 10000 ** (-k / 3)
        assert table[position, k].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[position, 4 + k].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_positions_count_real_tokens_only():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert position_ids_from_mask(mask, 4, 1).tolist() == [[1, 1, 2, 3], [2, 3, 4, 1]]
    assert position_ids_from_mask(mask, 1, 1).tolist() == [[3], [1]]
    causal = torch.ones(1, 1, 3, 3).tril().log()
    for hidden in (-1e9, -1e4, torch.finfo(torch.bfloat16).min, torch.finfo(torch.float32).min, -torch.inf):
        assert position_ids_from_mask(causal.clamp(min=hidden), 3, 1).tolist() == [[2, 3, 4]]


def test_tokens_that_see_each_other_have_positions_in_their_order():
    prefix = torch.ones(1, 1, 4, 4).tril().bool()
    prefix[..., :3, :3] = True  # of a prefix language model
    assert position_ids_from_mask(prefix, 4, 1).tolist() == [[2, 3, 4, 5]]
    assert position_ids_from_mask(prefix[:, :, 3:], 1, 1, past_length=3).tolist() == [[5]]
    packed = torch.block_diag(torch.ones(2, 2).tril(), torch.ones(2, 2).tril()).bool()
    assert position_ids_from_mask(packed[None, None], 4, 1).tolist() == [[2, 3, 2, 3]]


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@pytest.mark.parametrize("padding", [0, 5])
def test_another_padding_token_moves_no_position(kind, padding, tmp_path):
    """As `Trainer` takes it from a tokenizer."""
    model = randomise(make("resi_dual", position_embedding_type=kind))
    inputs = {"input_ids": SOURCE, "attention_mask": SOURCE.ne(1), "decoder_input_ids": TARGET}
    before = model(**inputs).logits
    model.config.pad_token_id = padding
    assert torch.equal(model(**inputs).logits, before)
    model.save_pretrained(tmp_path)
    loaded = ResidualForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.config.pad_token_id == padding
    assert torch.equal(loaded(**inputs).logits, before)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "none"])
def test_kinds_of_positions(kind, tmp_path):
    model = randomise(make("resi_dual", position_embedding_type=kind))
    saved = {name for name in model.state_dict() if "embed_positions" in name}
    learned = {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
    assert saved == (learned if kind == "learned" else set())
    swapped = SOURCE[:, [1, 0, 2, 3, 4]]
    with torch.no_grad():
        first, second = (
            model.get_encoder()(ids, attention_mask=SOURCE.ne(1)).last_hidden_state for ids in (SOURCE, swapped)
        )
    order_is_seen = not torch.allclose(first, second[:, [1, 0, 2, 3, 4]], atol=1e-5)
    assert order_is_seen == (kind != "none")
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["position_embedding_type"] == kind
    assert torch.equal(logits_of(ResidualForConditionalGeneration.from_pretrained(tmp_path)), logits_of(model))


def test_without_positions_there_is_no_limit():
    model = make("resi_dual", position_embedding_type="none")
    long = torch.full((1, 40), 5)
    assert model(long, decoder_input_ids=long).logits.shape == (1, 40, 30)


@switches
def test_fix_norm_keeps_directions_only(share, tie, tmp_path):
    model = randomise(build(share, tie, fix_norm=True))
    for table in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens):
        ids = torch.arange(2, 20)
        torch.testing.assert_close(table(ids).norm(dim=-1), torch.full((18,), math.sqrt(16)))
    torch.testing.assert_close(model.output_weight.norm(dim=-1), torch.ones(30 if share else 20))
    old = logits_of(model)
    with torch.no_grad():
        for table in {id(t): t for t in (model.get_input_embeddings().weight, model.lm_head.weight)}.values():
            table.mul_(3.0)
    torch.testing.assert_close(logits_of(model), old, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(ResidualForConditionalGeneration.from_pretrained(tmp_path)), logits_of(model))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fix_norm_in_half_precision(dtype):
    model = build(True, True, fix_norm=True).eval().to(dtype)
    assert not model.get_input_embeddings().weight[1].any() and logits_of(model).isfinite().all()


def test_fix_norm_does_not_shrink_learned_positions():
    model = build(True, True, fix_norm=True, position_embedding_type="learned")
    width = model.config.d_model
    assert model.model.encoder.embed_positions.weight.std().item() == pytest.approx(width**-0.5, rel=0.3)


def test_fix_norm_trains_through_the_criterion_too():
    model = make("pre_ln", fix_norm=True, norm_type="scale_norm", init_style="small_init")
    assert 0.009 < model.get_input_embeddings().weight.abs().max() <= 0.01
    plain = model(SOURCE, labels=LABELS).loss
    model.criterion = LossMeter(0.0, "torch")
    fused = model(SOURCE, labels=LABELS).loss
    torch.testing.assert_close(fused, plain)
    fused.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
