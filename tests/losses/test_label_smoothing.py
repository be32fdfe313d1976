"""The fused loss equals the plain one, and the plain one equals its formula and torch."""

import gc
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from residual_hf.base.errors import InputError
from residual_hf.losses import label_smoothing as loss
from residual_hf.losses.label_smoothing import fused_linear_smoothed_cross_entropy, smoothed_cross_entropy
from residual_hf.losses.token_costs import SmoothedCost

ROWS, WIDTH, CLASSES = 37, 12, 53


def example(dtype=torch.float32, bias=False, rows=ROWS):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    offset = torch.randn(CLASSES, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    labels[::5] = -100
    return hidden, weight, (offset if bias else None), labels


def assert_close_relative(actual, expected, tolerance):
    assert ((actual - expected).norm() / expected.norm()).item() < tolerance


def test_fairseq_form_is_its_formula_summed_over_tokens():
    hidden, weight, _, labels = example(torch.float64)
    logits = F.linear(hidden, weight)
    epsilon, expected, expected_nll = 0.1, 0.0, 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        if label == -100:
            continue
        total = math.fsum(math.exp(value) for value in row)
        log_probs = [value - math.log(total) for value in row]
        epsilon_i = epsilon / (CLASSES - 1)
        expected += (1 - epsilon - epsilon_i) * -log_probs[label] + epsilon_i * -math.fsum(log_probs)
        expected_nll -= log_probs[label]
    sums = smoothed_cross_entropy(logits, labels, epsilon=epsilon, form="fairseq")
    assert sums.smoothed.item() == pytest.approx(expected, rel=1e-12)
    assert sums.nll.item() == pytest.approx(expected_nll, rel=1e-12)
    assert sums.tokens.item() == sum(label != -100 for label in labels.tolist())


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_torch_form_is_cross_entropy_of_torch(epsilon):
    hidden, weight, _, labels = example(torch.float64)
    logits = F.linear(hidden, weight)
    sums = smoothed_cross_entropy(logits, labels, epsilon=epsilon, form="torch")
    expected = F.cross_entropy(logits, labels, label_smoothing=epsilon).item()
    assert sums.per_token().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["fairseq", "torch"])
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("chunk_rows", [2, 9, 1000])
def test_fused_equals_plain_in_fp32(form, bias, chunk_rows, monkeypatch):
    monkeypatch.setattr(loss, "CPU_CHUNK_ROWS", chunk_rows)
    inputs = [tensor for tensor in example(bias=bias)[:3] if tensor is not None]
    labels = example()[3]
    hidden, weight, offset = (*inputs, None)[:3]
    plain = smoothed_cross_entropy(F.linear(hidden, weight, offset), labels, form=form)
    fused = fused_linear_smoothed_cross_entropy(hidden, weight, labels, bias=offset, form=form)
    assert fused.smoothed.item() == pytest.approx(plain.smoothed.item(), rel=1e-6)
    assert fused.nll.item() == pytest.approx(plain.nll.item(), rel=1e-6)
    assert fused.tokens.item() == plain.tokens.item()
    expected = torch.autograd.grad(plain.per_token() * 7, inputs)
    actual = torch.autograd.grad(fused.per_token() * 7, inputs)
    for got, wanted in zip(actual, expected, strict=True):
        assert_close_relative(got, wanted, 1e-5)


@pytest.mark.parametrize("form", ["fairseq", "torch"])
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
def test_fused_passes_gradcheck(form, bias, monkeypatch):
    monkeypatch.setattr(loss, "CPU_CHUNK_ROWS", 2)
    hidden, weight, offset, labels = example(torch.float64, bias=bias, rows=6)

    def smoothed(hidden, weight, offset=None):
        return fused_linear_smoothed_cross_entropy(hidden, weight, labels, bias=offset, form=form).smoothed

    assert torch.autograd.gradcheck(smoothed, (hidden, weight) if offset is None else (hidden, weight, offset))


def test_hidden_and_labels_may_have_batch_dimensions_and_be_strided():
    hidden, weight, _, labels = example(rows=36)
    flat = fused_linear_smoothed_cross_entropy(hidden, weight, labels)
    time_major = hidden.detach().view(4, 9, WIDTH).transpose(0, 1).contiguous().transpose(0, 1)
    assert not time_major.is_contiguous()
    batched = fused_linear_smoothed_cross_entropy(time_major, weight, labels.view(4, 9))
    assert batched.smoothed.item() == pytest.approx(flat.smoothed.item(), rel=1e-6)


def test_frozen_weight_and_frozen_hidden_get_no_gradient():
    hidden, weight, _, labels = example()
    fused_linear_smoothed_cross_entropy(hidden, weight.detach(), labels).smoothed.backward()
    expected = torch.autograd.grad(smoothed_cross_entropy(F.linear(hidden, weight), labels).smoothed, hidden)[0]
    assert_close_relative(hidden.grad, expected, 1e-5)
    assert weight.grad is None
    hidden.grad = None
    fused_linear_smoothed_cross_entropy(hidden.detach(), weight, labels).smoothed.backward()
    assert hidden.grad is None and weight.grad is not None


def test_ignored_rows_get_zero_gradient_even_where_they_hold_nan():
    hidden, weight, _, labels = example()
    poisoned = hidden.detach().clone()
    poisoned[::5] = float("nan")
    poisoned.requires_grad_()
    sums = fused_linear_smoothed_cross_entropy(poisoned, weight, labels)
    sums.smoothed.backward()
    assert torch.equal(poisoned.grad[::5], torch.zeros_like(poisoned[::5]))
    assert weight.grad.isfinite().all() and sums.smoothed.isfinite()


def test_batch_without_labels_gives_zero_and_no_nan():
    hidden, weight, _, labels = example()
    nothing = torch.full_like(labels, -100)
    loss = fused_linear_smoothed_cross_entropy(hidden, weight, nothing).per_token()
    loss.backward()
    assert loss.item() == 0.0
    assert not hidden.grad.any() and not weight.grad.any()
    assert smoothed_cross_entropy(F.linear(hidden, weight), nothing).per_token().item() == 0.0


def test_no_gradients_are_computed_without_grad():
    hidden, weight, _, labels = example()
    with torch.no_grad():
        silent = fused_linear_smoothed_cross_entropy(hidden, weight, labels)
    assert not silent.smoothed.requires_grad
    with_grad = fused_linear_smoothed_cross_entropy(hidden, weight, labels)
    assert silent.smoothed.item() == with_grad.smoothed.item()


def test_full_logits_never_exist(monkeypatch):
    monkeypatch.setattr(loss, "CPU_CHUNK_ROWS", 4)
    rows, classes = 64, 5000
    hidden = torch.randn(rows, 8, requires_grad=True)
    weight = torch.randn(classes, 8, requires_grad=True)
    labels = torch.randint(classes, (rows,))
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        fused_linear_smoothed_cross_entropy(hidden, weight, labels).smoothed.backward()
    gc.collect()
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert largest < rows * classes * 4 / 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_products_in_half_and_returns_gradients_of_the_parameters_types(dtype, monkeypatch):
    monkeypatch.setattr(loss, "CPU_CHUNK_ROWS", 8)
    hidden, weight, _, labels = example()
    with torch.autocast("cpu", dtype=dtype):
        sums = fused_linear_smoothed_cross_entropy(hidden, weight, labels)
    assert sums.smoothed.dtype == torch.float32
    sums.smoothed.backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.float32
    plain = smoothed_cross_entropy(F.linear(hidden, weight), labels)
    exact = torch.autograd.grad(plain.smoothed, (hidden, weight))
    assert sums.smoothed.item() != plain.smoothed.item()
    assert sums.smoothed.item() == pytest.approx(plain.smoothed.item(), rel=1e-2)
    assert_close_relative(hidden.grad, exact[0], 2e-2)
    assert_close_relative(weight.grad, exact[1], 2e-2)


def test_half_inputs_keep_softmax_in_fp32():
    hidden, weight, _, labels = example(torch.bfloat16)
    sums = fused_linear_smoothed_cross_entropy(hidden, weight, labels)
    sums.smoothed.backward()
    logits = F.linear(hidden, weight).float()
    assert sums.smoothed.item() == pytest.approx(smoothed_cross_entropy(logits, labels).smoothed.item(), rel=1e-5)
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_a_class_of_probability_zero_without_smoothing():
    logits = torch.tensor([[1.0, 2.0, -torch.inf]])
    smoothed, nll, _ = SmoothedCost(1.0, 0.0)(logits, torch.tensor([[1]]), torch.float32, gradient=False)
    assert smoothed == nll and nll.isfinite().all()


def test_large_logits_stay_finite():
    hidden, weight, _, labels = example()
    sums = fused_linear_smoothed_cross_entropy(hidden * 1000, weight, labels)
    plain = smoothed_cross_entropy(F.linear(hidden * 1000, weight), labels)
    assert sums.smoothed.item() == pytest.approx(plain.smoothed.item(), rel=1e-6)


def test_bad_arguments_are_named():
    hidden, weight, _, labels = example()
    for epsilon in (1.0, -0.1):
        with pytest.raises(InputError, match=f"label smoothing: {epsilon} given"):
            fused_linear_smoothed_cross_entropy(hidden, weight, labels, epsilon=epsilon)
    with pytest.raises(InputError, match=r"hidden: shape \(37, 12\) given, must be the shape of labels \(36,\)"):
        fused_linear_smoothed_cross_entropy(hidden, weight, labels[:-1])


def test_meter_reads_means_per_token_and_speed_without_evaluations(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(loss, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    hidden, weight, _, labels = example()
    expected = smoothed_cross_entropy(F.linear(hidden, weight), labels)
    meter = loss.LossMeter(0.1, "fairseq")
    meter(hidden, weight, labels)
    now[0] = 2.0
    with meter.paused():
        meter(hidden * 2, weight, labels)
        now[0] = 100.0
        assert meter.read()["nll"] != pytest.approx(float(expected.nll / expected.tokens))
    now[0] = 101.0
    figures = meter.read()
    assert figures["nll"] == pytest.approx(float(expected.nll / expected.tokens))
    assert figures["loss"] == pytest.approx(expected.smoothed.item() / float(expected.tokens))
    assert figures["ppl"] == pytest.approx(math.exp(figures["nll"]))
    assert figures["tokens_per_second"] == pytest.approx(float(expected.tokens) / 3)
    assert meter.read() == {}
