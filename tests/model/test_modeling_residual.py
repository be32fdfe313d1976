"""What every model of the family does, whatever its `ln_mode`: masks, losses, recorded states, saving, attention."""

import copy

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from support.models import LABELS, OURS, SOURCE, TARGET, every_mode, every_shape, logits_of, make, shapes_of
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import flash_attention_mask

from residual_hf.model.connections import LN_MODES
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration
from residual_hf.model.stacks import ResidualDecoder, ResidualEncoder


def changed(old, new):
    """Per sentence and target position: did anything change?"""
    return (old - new).abs().amax(-1) > 1e-6 * old.abs().max()


@every_shape
def test_masked_source_tokens_are_not_seen_and_others_are(mode, models):
    model, mask = models(mode), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    old = logits_of(model, mask=mask)
    hidden, seen = SOURCE.clone(), SOURCE.clone()
    hidden[1, 3:] = torch.tensor([20, 21])
    seen[1, 2] = 20
    assert not changed(old, logits_of(model, hidden, mask)).any()
    assert changed(old, logits_of(model, seen, mask)).tolist() == [[False] * 4, [True] * 4]


@every_shape
def test_layers_can_be_dropped_in_training_or_the_config_says_no(mode):
    rates = {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}
    if not LN_MODES[mode].supports_layerdrop:
        with pytest.raises(StrictDataclassError, match=f"encoder_layerdrop must be 0 with ln_mode '{mode}', not 0.5"):
            make(mode, None, **rates)
        return
    model = make(mode, None, **rates, encoder_layers=4).train()
    losses = {model(SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss.item() for _ in range(8)}
    assert len(losses) > 1 or mode in ("fixup", "rezero", "skip_init")  # their initial layers are the identity
    model(SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss.backward()


def test_layers_whose_mean_counts_them_are_not_dropped():
    with pytest.raises(ValueError, match="encoder_layerdrop must be 0 with running_mean, not 0.5"):
        make("realformer", None, ln_mode_options={"running_mean": True}, encoder_layerdrop=0.5)


def test_attention_over_blocks_without_the_first_layer():
    options = {"delta": True, "block_size": 4}
    model = make("attention_residuals", ln_mode_options=options, encoder_layers=4, encoder_layerdrop=0.5).train()
    losses = {model(SOURCE, attention_mask=SOURCE.ne(1), labels=LABELS).loss.item() for _ in range(16)}
    assert len(losses) > 1


@every_mode
def test_decoder_sees_the_past_only(mode, models):
    target = TARGET.clone()
    target[0, 2] = 20
    new = changed(logits_of(models(mode)), logits_of(models(mode), target=target))
    assert new.tolist() == [[False, False, True, True], [False] * 4]


@every_shape
def test_masked_target_tokens_are_not_seen(mode, models):
    mask, target = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]), TARGET.clone()
    target[0, 1] = 20
    old, new = (logits_of(models(mode), target=t, decoder_attention_mask=mask) for t in (TARGET, target))
    assert changed(old, new)[0, [0, 2, 3]].sum() == 0


@every_mode
def test_side_of_the_padding_makes_no_difference(mode, models):
    model = copy.deepcopy(models(mode)).double()  # modes without norms enlarge the rounding of fp32
    source, target = torch.tensor([[1, 1, 9, 10, 2]]), torch.tensor([[1, 1, 2, 14, 15]])
    left = logits_of(model, source, source.ne(1), target, decoder_attention_mask=target.ne(1))[:, 2:]
    alone = logits_of(model, source[:, 2:], source[:, 2:].ne(1), target[:, 2:])
    torch.testing.assert_close(left, alone, rtol=1e-5, atol=1e-9 * alone.abs().max().item())


def test_padding_is_found_without_a_mask(models):
    with torch.no_grad():
        found = models("resi_dual")(SOURCE, decoder_input_ids=TARGET).logits
    assert torch.equal(found, logits_of(models("resi_dual")))


def test_a_sentence_of_padding_alone_gives_numbers(models):
    source = torch.tensor([[5, 6, 2], [1, 1, 1]])
    for attention in ("eager", "sdpa"):
        assert logits_of(models("resi_dual", attention), source, source.ne(1)).isfinite().all()


def agree_after_switching(mode, attention):
    model = make(mode, "eager")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    eager = logits_of(model)
    model.set_attn_implementation(attention)
    assert model.config._attn_implementation == attention
    torch.testing.assert_close(logits_of(model), eager, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", shapes_of(m for m in OURS if LN_MODES[m].attention_implementations is None))
def test_eager_and_sdpa_attention_agree(mode):
    agree_after_switching(mode, "sdpa")


@pytest.mark.slow
def test_flex_attention_agrees():
    agree_after_switching("resi_dual", "flex_attention")


def test_flash_attention_reads_padded_sources_by_another():
    """It takes the padding of keys for that of queries, of which cross-attention has others."""

    def flash(module, query, key, value, mask, **kwargs):
        assert mask is None or query.shape[2] == key.shape[2] == mask.shape[1] and not module.is_cross_attention
        mask = None if mask is None else mask[:, None, None].bool()
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register("unpadding", flash)
    AttentionMaskInterface.register("unpadding", flash_attention_mask)
    model, source = make("resi_dual", "sdpa"), SOURCE.clone()
    source[1, -2:] = model.config.pad_token_id
    expected = logits_of(model, source, source.ne(1))
    model.set_attn_implementation("unpadding")
    torch.testing.assert_close(logits_of(model, source, source.ne(1)), expected)


def test_modes_that_need_one_attention_take_it_by_themselves(tmp_path):
    model = make("realformer", None)
    assert model.config._attn_implementation == "eager"
    model.save_pretrained(tmp_path)
    assert ResidualForConditionalGeneration.from_pretrained(tmp_path).config._attn_implementation == "eager"
    for refused in (
        lambda: model.set_attn_implementation("sdpa"),
        lambda: ResidualForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="sdpa"),
    ):
        with pytest.raises(ValueError, match="'realformer' needs attn_implementation 'eager', not 'sdpa'"):
            refused()


def test_attention_modules_carry_what_the_implementations_read(models):
    model = models("resi_dual").model
    for layer in (*model.encoder.layers, *model.decoder.layers):
        attentions = [module for name, module in layer.named_children() if name.endswith("_attn")]
        for attention in attentions:
            assert attention.config is model.config
            assert attention.is_causal == (layer in model.decoder.layers and attention is layer.self_attn)
    assert [layer.encoder_attn.layer_idx for layer in model.decoder.layers] == [0, 1, 2]


@every_shape
def test_recorded_states_have_the_depth_of_their_stack(mode, models):
    model = models(mode, "eager")
    with torch.no_grad():
        out = model(
            SOURCE,
            attention_mask=SOURCE.ne(1),
            decoder_input_ids=TARGET,
            output_hidden_states=True,
            output_attentions=True,
        )
    shapes = {name: [tuple(t.shape) for t in states] for name, states in out.items() if isinstance(states, tuple)}
    assert shapes == {
        "encoder_hidden_states": [(2, 5, 16)] * 3,
        "decoder_hidden_states": [(2, 4, 16)] * 4,
        "encoder_attentions": [(2, 4, 5, 5)] * 2,
        "decoder_attentions": [(2, 4, 4, 4)] * 3,
        "cross_attentions": [(2, 4, 4, 5)] * 3,
    }
    assert torch.equal(out.encoder_hidden_states[-1], out.encoder_last_hidden_state)
    assert torch.equal(model.lm_head(out.decoder_hidden_states[-1]), out.logits)


def test_labels_with_padding_on_the_left_are_refused(models):
    model = models("resi_dual")
    for labels in ([[11, 12, 2], [-100, 13, 2]], [[-100, -100, 2], [-100, -100, 2]]):
        with pytest.raises(ValueError, match="labels: padded on the left"):
            model(SOURCE, labels=torch.tensor(labels))
    assert model(SOURCE, labels=torch.tensor([[11, 2], [-100, -100]])).loss.isfinite()  # a row without labels


def test_loss_is_not_shifted_and_ignores_minus_100(models):
    model = models("resi_dual")
    assert model.prepare_decoder_input_ids_from_labels(LABELS).tolist() == [[2, 11, 12, 13], [2, 14, 15, 2]]
    given = torch.tensor([[2, 11, 12, 13], [2, 14, 15, 2]])
    with torch.no_grad():
        made = model(SOURCE, labels=LABELS)
        loss = model(SOURCE, decoder_input_ids=given, labels=LABELS).loss
    expected = nn.functional.cross_entropy(made.logits.flatten(0, 1), LABELS.flatten(), ignore_index=-100)
    torch.testing.assert_close(made.loss, expected)
    assert torch.equal(made.loss, loss)
    moved = LABELS.clone()
    moved[moved == -100] = 1
    assert model(SOURCE, labels=moved).loss != made.loss


def test_accumulated_losses_and_gradients_are_those_of_one_batch():
    sources, labels = SOURCE.repeat(2, 1), torch.cat([LABELS, LABELS.flip(0)])
    items = labels.ne(-100).sum()
    whole, parts = (make("resi_dual").train() for _ in range(2))
    whole_loss = whole(sources, labels=labels, num_items_in_batch=items).loss
    whole_loss.backward()
    part_losses = []
    for i in range(4):
        loss = parts(sources[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=items).loss
        loss.backward()
        part_losses.append(loss.detach())
    torch.testing.assert_close(sum(part_losses), whole_loss.detach())
    for (name, a), b in zip(whole.named_parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_logits_to_keep(models):
    full = logits_of(models("resi_dual"))
    torch.testing.assert_close(logits_of(models("resi_dual"), logits_to_keep=1), full[:, -1:])
    torch.testing.assert_close(logits_of(models("resi_dual"), logits_to_keep=torch.tensor([0, 2])), full[:, [0, 2]])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": SOURCE}, "pass decoder_input_ids, decoder_inputs_embeds or labels"),
        ({"decoder_input_ids": TARGET}, "the encoder requires exactly one of input ids and inputs_embeds"),
        (
            {"input_ids": SOURCE, "decoder_input_ids": TARGET, "decoder_inputs_embeds": torch.zeros(2, 4, 16)},
            "the decoder requires exactly one",
        ),
        (
            {"input_ids": torch.full((1, 17), 5), "labels": LABELS},
            "the encoder received 17 tokens, but max_position_embeddings is 16",
        ),
        ({"input_ids": SOURCE[:1], "labels": torch.full((1, 17), 5)}, "the decoder received 17 tokens"),
    ],
    ids=["no target", "no source", "two targets", "long source", "long target"],
)
def test_unusable_inputs_are_named(inputs, message, models):
    with pytest.raises(ValueError, match=message):
        models("resi_dual")(**inputs)


def test_decoder_alone_needs_the_encoder(models):
    with pytest.raises(ValueError, match="the decoder needs encoder_hidden_states"):
        models("resi_dual").get_decoder()(TARGET)


@every_shape
def test_saved_model_is_the_same_bit_by_bit(mode, models, tmp_path):
    model = models(mode)
    model.save_pretrained(tmp_path)
    loaded, info = ResidualForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert torch.equal(logits_of(loaded), logits_of(model))


def test_stacks_load_by_themselves(models, tmp_path):
    model = models("resi_dual").model
    model.encoder.save_pretrained(tmp_path / "encoder")
    model.decoder.save_pretrained(tmp_path / "decoder")
    encoder = ResidualEncoder.from_pretrained(tmp_path / "encoder")
    decoder = ResidualDecoder.from_pretrained(tmp_path / "decoder")
    with torch.no_grad():
        memory = encoder(SOURCE, attention_mask=SOURCE.ne(1)).last_hidden_state
        states = decoder(TARGET, encoder_hidden_states=memory, encoder_attention_mask=SOURCE.ne(1))[0]
        assert torch.equal(models("resi_dual").lm_head(states), logits_of(models("resi_dual")))


def test_what_a_checkpoint_lacks_is_reported_and_drawn_anew(models, tmp_path):
    model = models("pre_ln")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = ["model.encoder.layers.0.ffn.fc1.weight", "model.decoder.boundary.norm.weight"]
    save_file({n: w for n, w in weights.items() if n not in lost}, tmp_path / "model.safetensors", {"format": "pt"})
    loaded, info = ResidualForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == set(lost)
    loaded = loaded.state_dict()
    bound = 16**-0.5  # of torch's own law, which fairseq_main leaves to the feed-forward
    assert 0.8 * bound < loaded[lost[0]].abs().max() <= bound
    assert torch.equal(loaded[lost[1]], torch.ones(16))
    assert all(torch.equal(loaded[n], w) for n, w in weights.items() if n not in lost)


@every_shape
def test_a_copy_is_independent(mode, models):
    model, old = models(mode), logits_of(models(mode))
    duplicate = copy.deepcopy(model)
    for parameter in duplicate.parameters():
        nn.init.normal_(parameter)
    assert torch.equal(logits_of(model), old)
    assert changed(old, logits_of(duplicate)).all()


def test_dummy_inputs_run(models):
    model = models("resi_dual")
    assert model(**model.dummy_inputs).logits.shape == (2, 4, 30)
