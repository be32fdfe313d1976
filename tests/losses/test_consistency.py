"""R-Drop and SimCut equal their formulas."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.trainers import make_model, make_trainer

from residual_hf.base.errors import InputError
from residual_hf.losses.consistency import TwoPasses
from residual_hf.losses.label_smoothing import LossMeter, smoothed_cross_entropy
from residual_hf.model.fingerprint import is_changed
from residual_hf.training.sharding import gather_full_model
from residual_hf.training.training_settings import TrainingSettings

METHODS = {"r_drop": (5.0, None), "simcut": (3.0, 0.05)}


def formula(logits, labels, alpha, both, form="fairseq"):
    """The sum over tokens, from the logits of two passes, by autograd and `F.kl_div`."""
    kept = labels != -100
    first, second = (F.log_softmax(half[kept], -1) for half in logits.chunk(2))
    smoothed = [smoothed_cross_entropy(half, labels, form=form).smoothed for half in logits.chunk(2)]
    forward, backward = (
        F.kl_div(q, p, reduction="sum", log_target=True) for p, q in ((first, second), (second, first))
    )
    if both:
        return smoothed[0] + smoothed[1] + alpha * (forward + backward) / 2
    return smoothed[0] + alpha * forward


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["fairseq", "torch"])
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
def test_loss_and_gradients_are_those_of_the_formula(method, form, bias, monkeypatch):
    monkeypatch.setattr("residual_hf.losses.label_smoothing.CPU_CHUNK_ROWS", 6)
    alpha, cutoff = METHODS[method]
    generator = torch.Generator().manual_seed(1)
    shapes = [(8, 7, 12), (53, 12), *([(53,)] if bias else [])]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    labels = torch.randint(53, (4, 7), generator=generator)
    labels[1, 3:] = -100
    passes = TwoPasses(make_model(dropout=0.1), alpha, cutoff)
    passes.active = True
    meter = LossMeter(0.1, form, passes)
    offset = inputs[2] if bias else None
    loss = meter(inputs[0], inputs[1], torch.cat([labels, labels]), num_items=100, bias=offset)
    expected = formula(F.linear(inputs[0], inputs[1], offset), labels, alpha, method == "r_drop", form) / 100
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    for mine, theirs in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    tokens = int((labels != -100).sum())
    assert meter.read()["loss"] == pytest.approx(expected.item() * 100 / tokens)


@pytest.mark.parametrize("method", METHODS)
def test_the_last_chunk_may_have_one_token(method):
    """In fp32, where the kernels write probabilities over logits, of which a single pair is contiguous."""
    alpha, cutoff = METHODS[method]
    passes = TwoPasses(make_model(dropout=0.1), alpha, cutoff)
    passes.active = True
    hidden, weight = (torch.randn(shape).requires_grad_() for shape in ((2, 1, 12), (53, 12)))
    labels = torch.tensor([[7]])
    loss = LossMeter(0.1, "fairseq", passes)(hidden, weight, labels.repeat(2, 1), num_items=1)
    expected = formula(F.linear(hidden, weight), labels, alpha, method == "r_drop")
    for mine, theirs in zip(*(torch.autograd.grad(each, (hidden, weight)) for each in (loss, expected)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_the_profile_of_admin_is_that_of_one_pass(tmp_path):
    profiles = []
    for settings in ({}, {"simcut": 3.0, "simcut_rate": 0.9}):
        torch.manual_seed(1)
        trainer = make_trainer(tmp_path, make_model(ln_mode="admin"), max_updates=1, **settings)
        trainer.train()
        profiles.append(trainer.model.config.admin_profile)
    assert profiles[0] == profiles[1] is not None


@pytest.mark.parametrize("method", METHODS)
def test_an_update_divides_by_the_tokens_of_the_text_over_all_accumulated_batches(method, tmp_path):
    seen = []
    settings = {"max_updates": 1, "update_freq": 3, method: METHODS[method][0]}
    trainer = make_trainer(tmp_path, make_model(dropout=0.2), **settings)
    meter = trainer.meter

    def criterion(hidden, weight, labels, num_items, **options):
        loss = meter(hidden, weight, labels, num_items, **options)
        seen.append((hidden.detach(), weight.detach().clone(), labels, num_items, loss.detach()))
        return loss

    criterion.passes = meter.passes
    trainer.model.criterion = criterion
    trainer.train()
    training = seen[:3]
    texts = [labels.chunk(2)[0] for _, _, labels, _, _ in training]
    assert all(torch.equal(*labels.chunk(2)) for _, _, labels, _, _ in training)
    tokens = sum(int((text != -100).sum()) for text in texts)
    for (hidden, weight, _, num_items, loss), text in zip(training, texts, strict=True):
        assert int(num_items) == tokens
        assert not torch.equal(*hidden.chunk(2))
        expected = formula(F.linear(hidden, weight), text, METHODS[method][0], method == "r_drop") / tokens
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("ends", [2, [7, 2]], ids=["one", "several"])
def test_the_second_pass_of_simcut_lacks_embeddings_of_both_sides_and_the_first_does_not(ends):
    model = make_model(eos_token_id=ends, decoder_start_token_id=2).train()
    found = {}
    model.criterion = LossMeter(0.0, "fairseq", TwoPasses(model, 3.0, 0.8))
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_tokens.register_forward_hook(lambda m, i, o, name=stack.stack: found.update({name: o.detach()}))
    ids = torch.arange(4, 36).view(4, 8)
    ids[:, -1] = 2
    model(input_ids=ids, labels=ids)
    for embeddings, end in zip(found.values(), (-1, 0), strict=True):  # where `</s>` is
        first, second = embeddings.chunk(2)
        missing = (second == 0).all(-1)
        assert not missing[:, end].any()
        assert torch.equal(second, first * ~missing.unsqueeze(-1)) and not (first == 0).all(-1).any()
        assert 0.4 < missing.float().mean() < 0.95
    model(input_ids=ids, decoder_input_ids=ids)  # no labels: nothing to train on
    assert found["encoder"].shape[0] == 4


def test_simcut_drops_the_embeddings_of_a_resized_model_once():
    model = make_model(share_encoder_decoder_embeddings=True)
    model.resize_token_embeddings(model.config.vocab_size + 8)
    passes = TwoPasses(model.train(), 1.0, cutoff=0.4)
    passes.active = True
    rows = []
    model.model.encoder.embed_tokens.register_forward_hook(lambda *call: rows.append(call[-1]))
    tokens = torch.full((1, 2000), 5)
    model.model.encoder.embed_tokens(torch.cat([tokens, tokens]))
    dropped = (rows[0][1] == 0).all(-1).float().mean().item()
    assert dropped == pytest.approx(0.4, abs=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_evaluation_is_that_of_one_pass(method, tmp_path):
    model = make_model(dropout=0.1)
    plain = make_trainer(tmp_path, copy.deepcopy(model)).evaluate()
    twice = make_trainer(tmp_path, model, **{method: 1.0}).evaluate()
    assert {n: v for n, v in twice.items() if n in plain} == plain


@pytest.mark.parametrize("method", METHODS)
def test_a_second_trainer_of_a_model_does_not_double_the_batch_again(method, tmp_path):
    model = make_model(dropout=0.1)
    rows = []
    model.model.encoder.embed_tokens.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    batch = next(iter(make_trainer(tmp_path, model).get_train_dataloader()))
    for settings, times in (({method: 1.0}, 2), ({method: 1.0}, 2), ({}, 1)):
        make_trainer(tmp_path, model, **settings)
        model.train()(**batch)
        assert rows.pop() == times * len(batch["labels"])
    make_trainer(tmp_path, model, **{method: 1.0})
    model.criterion = None
    assert len(model.train()(**batch).logits) == len(batch["labels"])


@pytest.mark.parametrize("method", METHODS)
def test_the_search_of_this_package_stays_in_use(method):
    model = make_model(dropout=0.1)
    TwoPasses(model, *METHODS[method])
    assert not any(is_changed(module) for module in model.modules())
    model.register_forward_pre_hook(lambda *_: None)
    assert is_changed(model)


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(InputError, match="simcut: 3.0 given, must be 0 with r_drop"):
        TrainingSettings(max_updates=1, r_drop=1.0, simcut=3.0)
    with pytest.raises(InputError, match="training.r_drop: the model has no dropout"):
        make_trainer(tmp_path, make_model(), r_drop=5.0)


@pytest.mark.parametrize("method", METHODS)
def test_a_copy_of_a_sharded_model_is_evaluated_in_one_pass(method):
    model = make_model(dropout=0.1)
    model.criterion = LossMeter(0.0, "fairseq", TwoPasses(model, *METHODS[method]))
    batch = {"input_ids": torch.arange(4, 16).view(2, 6), "labels": torch.arange(5, 17).view(2, 6)}
    expected = model.eval()(**batch).loss
    model.train()(**batch)
    torch.testing.assert_close(gather_full_model(model).eval()(**batch).loss, expected)
