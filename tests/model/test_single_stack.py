"""Models of one stack: language models, masked language models and classifiers."""

import copy

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from support import small_sizes
from support.models import every_shape
from support.single_stacks import SIZES, causal, disturbed, left_padded, logits_by_steps
from transformers import (
    AttentionInterface,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from residual_hf import (
    ResidualConfig,
    ResidualForCausalLM,
    ResidualForConditionalGeneration,
    ResidualForMaskedLM,
    ResidualForSequenceClassification,
)
from residual_hf.base.errors import InputError
from residual_hf.conversion import change_ln_mode


@every_shape
def test_every_mode_trains_saves_reloads_and_decodes_with_a_cache(mode, tmp_path):
    model = causal(ln_mode=mode)
    ids, mask = left_padded()
    model.train()(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    torch.optim.SGD(model.parameters(), lr=0.01).step()

    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is ResidualForCausalLM and loaded.config.to_diff_dict() == model.eval().config.to_diff_dict()
    with torch.no_grad():
        full = loaded(ids, attention_mask=mask).logits
        assert torch.equal(full, model(ids, attention_mask=mask).logits)
        real, exact = mask.bool(), copy.deepcopy(loaded).double()  # in which logits of any size are close
        full = exact(ids, attention_mask=mask).logits
        assert torch.allclose(logits_by_steps(exact, ids, mask)[real], full[real], rtol=1e-5, atol=1e-5)
        without_padding = exact(ids[:1, 3:]).logits
        assert torch.allclose(full[:1, 3:], without_padding, rtol=1e-5, atol=1e-5)
    options = {"attention_mask": mask, "max_new_tokens": 4, "eos_token_id": None, "do_sample": False}
    greedy = loaded.generate(ids, **options)
    assert torch.equal(greedy, loaded.generate(ids, use_cache=False, **options))
    assert greedy[1, :8].equal(ids[1]) and greedy.shape == (2, 12)


def test_the_loss_is_that_of_the_next_token_and_divides_by_the_given_number():
    model, (ids, mask) = causal(), left_padded()
    labels = ids.masked_fill(mask == 0, -100)
    with torch.no_grad():
        output = model(ids, attention_mask=mask, labels=labels)
        expected = torch.nn.functional.cross_entropy(
            output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )
        count = (labels[:, 1:] != -100).sum()
        assert torch.allclose(output.loss, expected / count)
        assert torch.allclose(model(ids, attention_mask=mask, labels=labels, num_items_in_batch=5).loss, expected / 5)


@pytest.mark.parametrize("fields", [{}, {"adaptive_cutoffs": [20, 35]}, {"fix_norm": True}])
def test_shifted_labels_are_not_shifted_again(fields):
    """The part of a sequence on one device: its last label is the first token of the next part."""
    model = causal(**fields)
    ids, mask = left_padded()
    shifted = torch.roll(ids.masked_fill(mask == 0, -100), -1, dims=1)
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(
            model(ids, attention_mask=mask).logits.flatten(0, 1), shifted.flatten(), ignore_index=-100
        )
        assert torch.allclose(model(ids, attention_mask=mask, labels=ids, shift_labels=shifted).loss, expected)
        assert model(ids, attention_mask=mask, shift_labels=shifted).loss is None


def test_a_criterion_replaces_the_loss():
    model, (ids, _) = causal(), left_padded()
    with torch.no_grad():
        loss = model(ids, labels=ids).loss
        model.criterion = lambda states, weight, labels, items: torch.nn.functional.cross_entropy(
            (states @ weight.T).flatten(0, 1), labels.flatten()
        )
        assert torch.allclose(model(ids, labels=ids).loss, loss)


@pytest.mark.parametrize("use_cache", [True, False])
def test_texts_packed_into_a_row_do_not_see_each_other(use_cache):
    model, (ids, _) = causal(), left_padded()
    first, second = ids[1, :5], ids[1, 5:]
    positions = torch.cat([torch.arange(5), torch.arange(3)])[None]
    with torch.no_grad():
        packed = model(ids[1:], position_ids=positions, use_cache=use_cache).logits[0]
        apart = torch.cat([model(text[None]).logits[0] for text in (first, second)])
    assert torch.allclose(packed, apart, rtol=0, atol=1e-5)


def test_packed_texts_together_may_be_longer_than_the_position_table():
    model, ids = causal(), torch.arange(4, 24).repeat(2)[None]
    packed = model(ids, position_ids=torch.arange(20).repeat(2)[None]).logits
    torch.testing.assert_close(packed[:, 20:], model(ids[:, :20]).logits, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="40 tokens, but max_position_embeddings is 32"):
        model(ids, position_ids=torch.arange(40)[None])


def test_attention_functions_receive_the_positions_of_packed_texts():
    """Flash attention has no mask in which texts could be told apart."""
    received = []

    def attention(module, query, key, value, mask, position_ids=None, **kwargs):
        received.append(position_ids)
        return query.transpose(1, 2).contiguous(), None

    AttentionInterface.register("recording", attention)
    model, positions = causal(), torch.tensor([[0, 1, 2, 0, 1]])
    model.set_attn_implementation("recording")
    model(torch.arange(4, 9)[None], position_ids=positions)
    assert len(received) == 2 and all(torch.equal(given, positions) for given in received)


def test_an_encoder_refuses_packed_texts():
    model = ResidualForMaskedLM(ResidualConfig(is_encoder_only=True, **SIZES))
    with pytest.raises(ValueError, match="the encoder has no position_ids"):
        model(torch.arange(4, 9)[None], position_ids=torch.tensor([[0, 1, 2, 0, 1]]))


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_padding_does_not_change_the_class(pooling, padding):
    torch.manual_seed(0)
    config = ResidualConfig(is_encoder_only=True, num_labels=3, classifier_pooling=pooling, **SIZES)
    model = disturbed(ResidualForSequenceClassification(config))
    ids, pad = torch.randint(4, 50, (1, 5)), torch.ones(1, 3, dtype=torch.long)
    padded = torch.cat([pad, ids] if padding == "left" else [ids, pad], dim=1)
    with torch.no_grad():
        expected = model(ids).logits
        assert expected.shape == (1, 3)
        assert torch.allclose(model(padded).logits, expected, rtol=0, atol=1e-5)
        assert torch.allclose(model(padded, attention_mask=padded.ne(1)).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("auto_class", "cls"),
    [
        (AutoModelForMaskedLM, ResidualForMaskedLM),
        (AutoModelForSequenceClassification, ResidualForSequenceClassification),
    ],
)
def test_models_of_an_encoder_save_and_load(auto_class, cls, tmp_path):
    config = ResidualConfig(is_encoder_only=True, ln_mode="b2t", **SIZES)
    model = disturbed(cls(config))
    ids, mask = left_padded()
    labels = ids if cls is ResidualForMaskedLM else torch.tensor([0, 1])
    model(ids, attention_mask=mask, labels=labels).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    model.save_pretrained(tmp_path)
    loaded, encoder = auto_class.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is cls
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)
        assert torch.equal(encoder.eval()(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_an_encoder_alone_is_that_of_an_encoder_decoder():
    fields = {name: value for name, value in SIZES.items() if not name.startswith(("num_", "inter"))}
    config = ResidualConfig(**fields | small_sizes(layers=2, ffn_dim=32))
    model = disturbed(ResidualForConditionalGeneration(config))
    single = ResidualConfig(is_encoder_only=True, **SIZES)
    encoder = AutoModel.from_config(single).eval()
    report = encoder.load_state_dict(model.model.state_dict(), strict=False)
    assert not report.missing_keys
    ids, mask = left_padded()
    with torch.no_grad():
        expected = model.model.encoder(ids, attention_mask=mask).last_hidden_state
        assert torch.equal(encoder(ids, attention_mask=mask).last_hidden_state, expected)


def test_sizes_of_a_single_stack_have_their_usual_names():
    config = ResidualConfig(is_decoder_only=True, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64)
    assert (config.decoder_layers, config.decoder_attention_heads, config.decoder_ffn_dim) == (4, 2, 64)
    config.num_hidden_layers = 5
    assert config.decoder_layers == config.num_hidden_layers == 5
    assert config.stacks == ("decoder",) and not config.is_encoder_decoder
    assert ResidualConfig(num_hidden_layers=2).encoder_layers == 2
    saved = config.to_diff_dict()
    assert not [name for name in saved if name.startswith("encoder_")]
    assert ResidualConfig.from_dict(saved).to_dict() == config.to_dict()


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_the_width_of_a_single_stack_need_not_suit_the_heads_of_the_other(stack):
    config = ResidualConfig(d_model=12, **{f"is_{stack}_only": True, f"{stack}_attention_heads": 3})
    assert config.num_attention_heads == config.to_dict()["num_attention_heads"] == 3  # PEFT reads the latter
    assert ResidualConfig(**config.to_dict()).to_dict() == config.to_dict()
    with pytest.raises(StrictDataclassError, match=f"{stack}_attention_heads must divide d_model, but 12 % 5"):
        ResidualConfig(d_model=12, **{f"is_{stack}_only": True, f"{stack}_attention_heads": 5})


@pytest.mark.parametrize("cls", [ResidualForCausalLM, ResidualForMaskedLM, ResidualForSequenceClassification])
def test_a_class_refuses_the_config_of_another_one(cls):
    with pytest.raises(ValueError, match=f"{cls.__name__} needs a config with is_.*coder_only=True"):
        cls(ResidualConfig(**SIZES))


def test_a_text_longer_than_the_position_table_is_refused():
    with pytest.raises(ValueError, match="33 tokens, but max_position_embeddings is 32"):
        causal()(torch.full((1, 33), 5))


def test_a_change_of_mode_refuses_a_language_model():
    with pytest.raises(InputError, match="a ResidualForCausalLM given, must be an encoder-decoder"):
        change_ln_mode(causal(ln_mode="admin"), "post_ln")
