"""Models in training with the native kernels against the same models without them."""

import copy
import logging

import pytest
import torch
from support.models import OURS, SOURCE, TARGET, make, randomise, shapes_of
from support.native_library import needs_bf16, needs_kernels
from torch import nn

from residual_hf.losses.label_smoothing import LossMeter
from residual_hf.model.connections import LN_MODES
from residual_hf.model.layers import ResidualAttention
from residual_hf.model.ln_modes import PostLN, ResiDual
from residual_hf.model.modes_skip_scaling import DeepNorm
from residual_hf.native.dot_attention import dot_attention
from residual_hf.training import acceleration, fusion
from residual_hf.training.acceleration import accelerated

SERVED = ["post_ln", "pre_ln", "resi_dual", "deep_norm", "keel", "hyper_connections", "mhc"]
ALSO_SERVED = ["admin", "b2t", "dlcl_pre", "hybrid_norm", "mix_ln", "xskip_ln"]
RMS_NORM = ["post_ln", "pre_ln", "resi_dual", "deep_norm_gpas", "mhc", "attention_residuals", "sandwich_ln"]
WITHOUT_NORMS = ["b2t_no_ln", "fixup", "rezero", "skip_init", "t_fixup", "xskip"]
WITHOUT = ["attention_residuals", "layer_scale", "sandwich_ln", "siamese_norm"]


def step(model):
    """Loss and gradients of one batch."""
    model.zero_grad()
    loss = model(SOURCE, attention_mask=SOURCE.ne(1), decoder_input_ids=TARGET, labels=TARGET).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def model_of(ln_mode, **fields):
    model = randomise(make(ln_mode, **fields)).train()
    model.criterion = LossMeter(0.1, "fairseq")
    return model


def check_kernels(model):
    """Loss and gradients with the kernels are those without them."""
    expected = step(model)
    with accelerated(model):
        actual = step(model)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize(
    ("ln_mode", "norm_type"),
    shapes_of(OURS, "layer_norm") + [(mode, "rms_norm") for mode in RMS_NORM],
)
def test_gradients_equal_those_without_kernels(ln_mode, norm_type):
    options = {"ln_mode_options": {"dual_scale": 0.3}} if ln_mode == "resi_dual" else {}
    attention = (LN_MODES[ln_mode].attention_implementations or ("sdpa",))[0]
    model = model_of(ln_mode, norm_type=norm_type, attention=attention, **options)
    if ln_mode in WITHOUT_NORMS:  # whose states would grow until fp32 has no digits left
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.4)
    check_kernels(model)


@needs_kernels
@pytest.mark.parametrize("ln_mode", [*SERVED, *ALSO_SERVED, *WITHOUT])
def test_the_modes_that_have_a_joint_kernel(monkeypatch, ln_mode):
    joined, joins = [], fusion.join_kernels
    monkeypatch.setattr(fusion, "join_kernels", lambda *arguments: joined.append(joins(*arguments)) or joined[-1])
    model = model_of(ln_mode)
    with accelerated(model):
        step(model)
        assert len(joined) == 13
        assert set(joined) == {ln_mode not in WITHOUT}
        step(model)
    assert len(joined) == 13, "a connection is traced once"


@needs_kernels
@pytest.mark.parametrize("mask", [SOURCE.ne(1), None])
def test_attention_has_a_kernel(monkeypatch, mask):
    model, calls = model_of("pre_ln"), []
    attention = {module for module in model.modules() if type(module) is ResidualAttention}

    def counted(*states, **options):
        calls.append(1)
        return dot_attention(*states, **options)

    monkeypatch.setattr(acceleration, "dot_attention", counted)
    inputs = {"attention_mask": mask, "decoder_input_ids": TARGET}
    expected = model(SOURCE, **inputs).logits
    assert not calls
    with accelerated(model):
        actual = model(SOURCE, **inputs).logits
        assert len(calls) == len(attention)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        first = model(SOURCE, **{**inputs, "decoder_input_ids": TARGET[:, :3]}, use_cache=True)
        cache = first.past_key_values
        torch.testing.assert_close(
            model(SOURCE, **{**inputs, "decoder_input_ids": TARGET[:, 3:4]}, past_key_values=cache).logits[:, 0],
            expected[:, 3],
            rtol=1e-4,
            atol=1e-5,
        )


@needs_kernels
def test_the_search_in_pytorch_runs_during_training():
    """As at an evaluation, with a mode whose decoder has no kernels."""
    model = model_of("sub_ln", dropout=0.3).eval()
    options = {"attention_mask": SOURCE.ne(1), "max_new_tokens": 5, "num_beams": 2}
    expected = model.generate(SOURCE, **options)
    with accelerated(model):
        assert torch.equal(model.generate(SOURCE, **options), expected)


@needs_kernels
def test_dropout_is_random_and_repeats_with_the_seed():
    model = model_of("resi_dual", dropout=0.3, activation_dropout=0.2, attention_dropout=0.1)
    with accelerated(model):
        torch.manual_seed(1)
        first, second = step(model), step(model)
        torch.manual_seed(1)
        repeated = step(model)
        evaluated = [step(model.eval())[0] for _ in range(2)]
    torch.testing.assert_close(repeated, first, rtol=0, atol=0)
    assert first[0] != second[0]
    assert evaluated[0] == evaluated[1]
    torch.testing.assert_close(evaluated[0], step(model)[0])


@needs_kernels
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_repeats_the_masks(reentrant):
    model = model_of("resi_dual", dropout=0.3)
    with accelerated(model):
        torch.manual_seed(1)
        expected = step(model)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(1)
        torch.testing.assert_close(step(model), expected, rtol=1e-5, atol=1e-6)  # gradients add up in another order


@needs_bf16
def test_bf16_is_near_fp32_and_keeps_fp32_weights():
    model = make("resi_dual", d_model=64).train()  # its norms amplify nothing, unlike random ones
    model.criterion = LossMeter(0.1, "fairseq")
    loss, gradients = step(model)
    with accelerated(model, "bf16"):
        rounded_loss, rounded = step(model)
    assert rounded_loss != loss and abs(rounded_loss - loss) < 0.01 * loss
    for name, gradient in gradients.items():
        assert rounded[name].dtype == torch.float32
        assert (rounded[name] - gradient).norm() < 0.1 * gradient.norm() + 1e-4, name


def test_without_instructions_bf16_is_fp32_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(acceleration, "multiplies_bf16", lambda: False)
    model = model_of("post_ln")
    expected = step(model)
    with caplog.at_level(logging.WARNING), accelerated(model, "bf16"):
        torch.testing.assert_close(step(model), expected, rtol=1e-4, atol=1e-5)
    assert len(caplog.messages) == 1 and "fp32" in caplog.messages[0]


def test_other_precisions_of_a_cpu_are_fp32(caplog):
    assert [acceleration.cpu_precision(precision) for precision in ("fp32", "tf32", "fp16")] == ["fp32"] * 3
    assert [message.split(":")[0] for message in caplog.messages] == [
        f"precision {precision} needs a GPU" for precision in ("tf32", "fp16")
    ]
    caplog.clear()
    for precision in ("bf16", "tf32", "fp16"):
        with accelerated(model_of("post_ln").to("meta"), precision):  # on another device, which has them
            assert not caplog.messages


def test_without_kernels_the_model_is_untouched(monkeypatch):
    monkeypatch.setattr(acceleration, "library", lambda: None)
    model = model_of("resi_dual", dropout=0.3)
    torch.manual_seed(1)
    expected = step(model)
    with accelerated(model):
        torch.manual_seed(1)
        torch.testing.assert_close(step(model), expected, rtol=0, atol=0)


@needs_kernels
def test_the_model_is_its_own_again_afterwards():
    model = model_of("resi_dual", attention_dropout=0.1)
    criterion, before = model.criterion, {name: set(vars(module)) for name, module in model.named_modules()}
    with accelerated(model, "bf16"):
        twin = copy.deepcopy(model)
    assert model.criterion is criterion and model.config._attn_implementation == "sdpa"
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert step(twin)[1], "a copy has forwards of its own"


@needs_kernels
def test_plain_modules_run_where_kernels_cannot():
    model = model_of("post_ln")
    norm = model.model.encoder.layers[0].ffn_residual.norm
    calls = []
    with accelerated(model):
        with torch.autocast("cpu", torch.bfloat16):
            assert step(model)[0].isfinite()
        norm.register_forward_hook(lambda *_: calls.append(1))
        step(model)
        assert calls == [1]
        assert step(model.double())[0].dtype == torch.float64


@needs_kernels
@pytest.mark.parametrize(
    ("ln_mode", "place"), [("post_ln", "ffn_residual"), ("attention_residuals", "ffn_residual.depth_attention")]
)
def test_a_custom_norm_stays_in_use(ln_mode, place):
    model = model_of(ln_mode)
    module = model.model.encoder.layers[0].get_submodule(place)

    class Loud(type(module.norm)):
        def forward(self, values):
            return 2 * super().forward(values)

    module.norm = Loud(16)
    check_kernels(model)


class Half(nn.Dropout):
    def forward(self, values):
        return 0.5 * values


@needs_kernels
@pytest.mark.parametrize("ln_mode", ["post_ln", "pre_ln"])
@pytest.mark.parametrize("dropout", [nn.Identity(), Half(0.0)], ids=["identity", "half"])
def test_a_custom_dropout_stays_in_use(ln_mode, dropout):
    model = model_of(ln_mode)
    for layer in model.model.encoder.layers:
        layer.dropout = dropout
    check_kernels(model)


@needs_kernels
def test_a_custom_forward_of_one_module_stays_in_use():
    model = model_of("pre_ln")
    connection = model.model.encoder.layers[0].ffn_residual
    connection.forward = lambda stream, sublayer: (stream[0] + 0.5 * sublayer(connection.norm(stream[0])),)
    expected = step(model)
    with accelerated(model), accelerated(model):
        torch.testing.assert_close(step(model), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(step(model), expected)


@needs_kernels
def test_a_mode_that_does_something_else_in_training(monkeypatch):
    def forward(self, stream, sublayer):
        (x,) = stream
        return (self.norm(x + (0.5 if self.training else 2.0) * sublayer(x)),)

    monkeypatch.setattr(PostLN, "forward", forward)
    model = model_of("post_ln")
    expected, evaluated = step(model), step(model.eval())
    assert expected[0] != evaluated[0]
    with accelerated(model):
        torch.testing.assert_close(step(model), evaluated, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(step(model.train()), expected, rtol=1e-4, atol=1e-5)


@needs_kernels
def test_a_branch_without_effect(monkeypatch):
    def forward(self, stream, sublayer):
        sublayer(stream[0])
        return (self.norm(stream[0]),)

    monkeypatch.setattr(LN_MODES["post_ln"], "forward", forward)
    check_kernels(model_of("post_ln"))


@needs_kernels
def test_a_mode_that_counts_its_calls_and_one_with_noise(monkeypatch):
    def counting(self, stream, sublayer):
        self.calls = getattr(self, "calls", 0) + 1
        return (self.norm(stream[0] + sublayer(stream[0])),)

    def noisy(self, stream, sublayer):
        return (self.norm(stream[0] + sublayer(stream[0]) * torch.rand(())),)

    monkeypatch.setattr(PostLN, "forward", counting)
    model = model_of("post_ln")
    with accelerated(model):
        step(model), step(model)
    assert {m.calls for m in model.modules() if isinstance(m, PostLN)} == {2}
    monkeypatch.setattr(PostLN, "forward", noisy)
    with accelerated(model):
        torch.manual_seed(1)
        first = step(model)[0]  # with a trace, which draws no numbers
        torch.manual_seed(1)
        assert step(model)[0] == first != step(model)[0]


@needs_kernels
def test_what_a_mode_reads_may_change(monkeypatch):
    model = model_of("deep_norm")
    with accelerated(model):
        step(model)
        for connection in (m for m in model.modules() if isinstance(m, DeepNorm)):
            connection.alpha = 0.7
        actual = step(model)
    torch.testing.assert_close(actual, step(model), rtol=1e-4, atol=1e-5)
    model, batch = model_of("admin"), {"input_ids": SOURCE, "labels": TARGET}
    expected = copy.deepcopy(model).profile_admin(batch)
    with accelerated(model):
        step(model)
        assert model.profile_admin(batch) == pytest.approx(expected, rel=1e-4)


@needs_kernels
def test_a_model_that_is_saved_names_no_kernel(tmp_path):
    model = model_of("resi_dual")
    with accelerated(model):
        assert model.config._attn_implementation == "residual_native"
        model.save_pretrained(tmp_path)
    assert not [file.name for file in tmp_path.iterdir() if b"residual_native" in file.read_bytes()]
    assert model.config._attn_implementation == "sdpa"


@needs_kernels
def test_other_models_keep_the_attention_of_transformers(monkeypatch):
    """Their `attn_implementation` is not that of the kernel."""
    calls = []
    monkeypatch.setattr(acceleration, "fits", lambda *states: calls.append(1))
    model, other = model_of("pre_ln"), model_of("pre_ln")
    with accelerated(model):
        step(other)
        assert not calls
        step(model)
        assert calls


@needs_kernels
def test_members_of_a_stream_that_differ_in_shape(monkeypatch):
    """A mode of a user whose second stream starts at a number."""

    class ZeroStart(ResiDual.Boundary):
        def begin(self, hidden_states):
            return hidden_states, hidden_states.new_zeros(())

    monkeypatch.setattr(ResiDual, "Boundary", ZeroStart)
    model = model_of("resi_dual")
    check_kernels(model)


@needs_bf16
def test_a_criterion_that_is_a_module():
    class Criterion(nn.Module):
        def forward(self, hidden_states, weight, labels, num_items=None, bias=None):
            return (hidden_states @ weight.T).square().mean()

    model = model_of("pre_ln")
    del model.criterion
    model.criterion = Criterion()
    exact, _ = step(model)
    with accelerated(model, "bf16"):
        torch.testing.assert_close(step(model)[0], exact, rtol=0.05, atol=0.0)
    assert "forward" not in vars(model.criterion)
