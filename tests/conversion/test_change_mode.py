import pytest
import torch
from conversion.test_fold import build
from support.models import OURS, SOURCE, TARGET, logits_of, make

from residual_hf.base.errors import InputError
from residual_hf.conversion import change_ln_mode, modes_from
from residual_hf.conversion.change_mode import base_of
from residual_hf.model.connections import LN_MODES, ResidualConnection, register_ln_mode
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

ONE = {"skip_scale": 1.0}
# new mode, options, may the logits differ in the last digits: scales move from one weight to another
FROM_PLAIN = {
    "post_ln": [
        ("admin", {}, False),
        ("admin_torch", {}, True),
        ("admin_torch", {"learned": True}, False),
        ("admin_torch", {"target": "linear"}, False),
        ("branch_norm", {}, False),
        ("deep_norm", {}, True),
        ("resi_dual", {}, False),
        ("resi_dual", {"dual_scale": 0.05}, False),
        ("rezero_post_ln", {}, False),
        ("rezero_post_ln", {"gate": "sublayer"}, False),
        ("wskip_ln", {"skip_init": 2.0}, False),
        ("xskip_ln", {}, True),
        ("xskip_ln", ONE, False),
    ],
    "pre_ln": [
        ("dense_former", {}, False),
        ("dense_former", {"dilation": 2, "period": 2}, True),
        ("hyper_connections", {}, False),
        ("hyper_connections", {"streams": 3}, True),
        ("hyper_connections", {"streams": 1, "dynamic": False}, False),
        ("layer_scale", {}, False),
        ("ln_scaling", {}, True),
        ("mix_ln", {"fraction": 0.0}, False),
        ("pre_ln_gpas", {}, False),
        ("scaled_branch", {}, True),
        ("scaled_branch", {"exponent": 0.0}, False),
    ],
    "ln_scaling": [("ln_scaling_gpas", {}, False)],
    "sandwich_ln": [("sandwich_ln_gpas", {}, False)],
    "deep_norm": [("deep_norm_gpas", {}, False)],
    "mix_ln": [("mix_ln_gpas", {}, False)],
    "xskip": [
        ("rezero", {}, False),
        ("rezero", {"gate": "sublayer"}, False),
        ("skip_init", {}, False),
        ("t_fixup", {}, False),
    ],
}
CASES = [(old, *case) for old, cases in FROM_PLAIN.items() for case in cases]
WITHOUT_NEW_PARAMETERS = ("admin_torch", "branch_norm", "deep_norm", "ln_scaling", "mix_ln", "scaled_branch")
WITHOUT_NEW_PARAMETERS += ("t_fixup", "xskip_ln")
WITH_NEW_PARAMETERS = [case for case in CASES if case[1] not in WITHOUT_NEW_PARAMETERS or case[2].get("learned")]
names = [f"{old}-{new}-{'-'.join(map(str, options.values()))}".rstrip("-") for old, new, options, _ in CASES]
every_case = pytest.mark.parametrize(("old", "new", "options", "rounded"), CASES, ids=names)


def assert_equal(changed, model, rounded=True):
    found, expected = logits_of(changed), logits_of(model)
    assert found.abs().max() > 0.1
    if rounded:
        assert (found - expected).abs().max() / expected.abs().max().clamp(min=1) < 2e-6
    else:
        assert torch.equal(found, expected)


@every_case
def test_logits_stay_and_the_model_too(old, new, options, rounded):
    model = build(old)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    changed = change_ln_mode(model, new, options)
    assert [changed.config.of(stack).ln_mode for stack in ("encoder", "decoder")] == [new, new]
    assert vars(changed.config.of("decoder").options).items() >= options.items()
    assert_equal(changed, model, rounded)
    exact = model.double()
    expected = logits_of(exact)
    difference = (logits_of(change_ln_mode(exact, new, options)) - expected).abs().max()
    assert difference / expected.abs().max().clamp(min=1) < 1e-12
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.float().state_dict().items())


def test_every_declared_mode_is_among_them():
    declared = {
        name for name, mode in LN_MODES.items() if mode.__module__.startswith("residual_hf.") and base_of(mode) != name
    }
    assert declared == {new for _, new, _, _ in CASES}
    for old in FROM_PLAIN:
        found = [name for name in modes_from(old) if LN_MODES[name].__module__.startswith("residual_hf.")]
        bases = {old, LN_MODES[old].folds_into or old}
        assert set(found) == (bases | {new for _, new, _, _ in CASES if base_of(LN_MODES[new]) in bases}) - {old}


@pytest.mark.parametrize(("old", "new", "options", "rounded"), WITH_NEW_PARAMETERS)
def test_training_leaves_the_start(old, new, options, rounded):
    model = build(old)
    changed = change_ln_mode(model, new, options).train()
    fresh = {name: p.detach().clone() for name, p in changed.named_parameters() if name not in model.state_dict()}
    assert fresh
    optimizer = torch.optim.Adam(changed.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        loss = changed(SOURCE, attention_mask=SOURCE.ne(1), labels=TARGET).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    still = [name for name, p in changed.named_parameters() if name in fresh and torch.equal(p, fresh[name])]
    assert still == []


@pytest.mark.parametrize("norm_type", ["dynamic_tanh", "dynamic_erf"])
def test_a_dual_norm_that_is_no_layer_norm_learns(norm_type):
    changed = change_ln_mode(make("post_ln", norm_type=norm_type), "resi_dual").train()
    optimizer = torch.optim.SGD(changed.parameters(), lr=0.1)
    for _ in range(2):
        changed(SOURCE, attention_mask=SOURCE.ne(1), labels=TARGET).loss.backward()
        optimizer.step()
    assert changed.model.encoder.boundary.norm.weight.abs().max() > 0


@pytest.mark.parametrize(
    ("old", "new", "options"),
    [
        ("admin", "resi_dual", {}),
        ("deep_norm", "wskip_ln", {}),
        ("xskip_ln", "deep_norm", {}),
        ("deep_norm", "post_ln", {}),
        ("layer_scale", "hyper_connections", {}),
        ("ln_scaling", "layer_scale", {}),
        ("rezero", "skip_init", {}),
        ("skip_init", "rezero", {"gate": "sublayer"}),
        ("rezero_post_ln", "admin", {}),
    ],
)
def test_a_mode_that_folds_goes_where_its_plain_mode_goes(old, new, options):
    model = build(old)
    assert_equal(change_ln_mode(model, new, options), model)


@pytest.mark.parametrize("embedding_norm", [True, False])
@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal_marian", "learned", "none"])
def test_a_constant_on_the_first_shortcut_goes_into_the_embeddings(positions, embedding_norm, tmp_path):
    fields = {"position_counting": "all_tokens", "output_bias": True, "embedding_norm": embedding_norm}
    model = build("post_ln", position_embedding_type=positions, **fields)
    changed = change_ln_mode(model, "deep_norm")
    assert changed.config.share_encoder_decoder_embeddings is embedding_norm  # a norm takes the scale over
    assert_equal(changed, model)
    assert_equal(change_ln_mode(changed, "post_ln"), model)
    changed.save_pretrained(tmp_path)
    assert torch.equal(logits_of(ResidualForConditionalGeneration.from_pretrained(tmp_path)), logits_of(changed))


def test_what_is_still_at_its_start_goes_back():
    model = build("post_ln")
    dual = change_ln_mode(model, "resi_dual")
    assert torch.equal(logits_of(change_ln_mode(dual, "post_ln")), logits_of(model))
    assert torch.equal(logits_of(change_ln_mode(dual, "admin")), logits_of(model))
    with torch.no_grad():
        dual.model.decoder.boundary.norm.weight[3] = 0.1
    with pytest.raises(InputError, match="the decoder is 'resi_dual'"):
        change_ln_mode(dual, "post_ln")


def test_one_stack_can_change_alone():
    model = build("post_ln", decoder_ln_mode="pre_ln")
    changed = change_ln_mode(model, "resi_dual", stack="encoder")
    changed = change_ln_mode(changed, "layer_scale", {"initial_scale": 0.5}, stack="decoder")
    assert [changed.config.of(stack).ln_mode for stack in ("encoder", "decoder")] == ["resi_dual", "layer_scale"]
    assert changed.config.of("decoder").options.initial_scale == 0.5
    assert torch.equal(logits_of(changed), logits_of(model))
    with pytest.raises(InputError, match="the decoder is 'pre_ln'"):
        change_ln_mode(model, "resi_dual")


def test_the_same_mode_is_a_copy():
    model = build("resi_dual", ln_mode_options={"dual_scale": 0.3})
    copied = change_ln_mode(model, "resi_dual", {"dual_scale": 0.3})
    assert torch.equal(logits_of(copied), logits_of(model))
    assert copied.lm_head.weight is not model.lm_head.weight


def test_norm_type_generation_settings_and_precision_stay():
    model = build("post_ln", norm_type="rms_norm", init_style="xavier_normal").to(torch.bfloat16)
    model.generation_config.num_beams = 7
    changed = change_ln_mode(model, "resi_dual")
    assert (changed.config.norm_type, changed.config.init_style, changed.dtype) == (
        "rms_norm",
        "xavier_normal",
        torch.bfloat16,
    )
    assert changed.generation_config.num_beams == 7
    assert torch.equal(logits_of(changed), logits_of(model))


@pytest.mark.parametrize("new", ["b2t", "rskip_ln", "dlcl_post", "realformer", "pre_ln", "sandwich_ln"])
def test_a_mode_that_computes_something_else_is_refused(new):
    equation = LN_MODES[new].equation.split(" ")[0]
    with pytest.raises(InputError) as refusal:
        change_ln_mode(make("post_ln"), new)
    message = str(refusal.value)
    assert message.startswith(f"ln_mode: the encoder is 'post_ln' (x <- LN(x + a)), which '{new}' ({equation}")
    named = message.partition("Modes that contain 'post_ln': ")[2].split(", ")
    ours = ["admin", "admin_torch", "branch_norm", "deep_norm", "resi_dual", "rezero_post_ln", "wskip_ln", "xskip_ln"]
    assert [name for name in named if name in OURS] == ours  # a test may have registered more


@pytest.mark.parametrize(
    ("old", "arguments", "message"),
    [
        ("post_ln", ("resi_duel",), "unknown ln_mode 'resi_duel'; did you mean 'resi_dual'\\? "),
        ("post_ln", ("resi_dual", {"scale": 1}), "options of ln_mode 'resi_dual': scale: unknown field"),
        ("post_ln", ("resi_dual", {"main_scale": 0.5}), "options: .* with main_scale=1.0, not with main_scale=0.5"),
        ("pre_ln", ("mix_ln",), "options: .* with fraction=0.0, not with fraction=0.25"),
        ("t_fixup", ("xskip", {"skip_scale": 0.5}), "options: .* with skip_scale=1.0, not with skip_scale=0.5"),
        (
            "pre_ln",
            ("post_ln",),
            "the encoder is 'pre_ln' .*Modes that contain 'pre_ln': dense_former, hyper_connections, ",
        ),
        ("b2t", ("post_ln",), "the encoder is 'b2t' with .* Modes that contain 'b2t': none"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_other_refusals(old, arguments, message):
    with pytest.raises(InputError, match=message):
        change_ln_mode(make(old), *arguments)


def test_what_weights_cannot_take_over_is_refused():
    with pytest.raises(InputError, match="fix_norm: a scale on the first shortcut cannot be moved"):
        change_ln_mode(make("post_ln", fix_norm=True), "deep_norm")
    with pytest.raises(InputError, match="AdaNorm has no gain to set to 0"):
        change_ln_mode(make("post_ln", norm_type="ada_norm"), "resi_dual")
    with pytest.raises(InputError, match="the encoder is 'xskip' with {'skip_scale': 0.5}"):
        change_ln_mode(make("xskip", ln_mode_options={"skip_scale": 0.5}), "rezero")


def test_tables_that_were_untied_are_not_merged():
    model = make("post_ln")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight + 1)
    with pytest.raises(InputError, match="lm_head.weight differs from .*set tie_word_embeddings to false"):
        change_ln_mode(model, "resi_dual")


def test_a_mode_of_a_user_takes_part():
    @register_ln_mode("test_gated_pre_ln")
    class GatedPreLN(ResidualConnection):
        equation = "x <- x + g * f(LN(x))"
        Boundary = LN_MODES["pre_ln"].Boundary
        starts_from = "pre_ln"

        def __init__(self, config, place):
            super().__init__(config, place)
            self.norm = torch.nn.LayerNorm(config.d_model)
            self.gate = torch.nn.Parameter(torch.zeros(1))

        def starting_values(self):
            return {"gate": 1.0}

        def forward(self, stream, sublayer):
            (x,) = stream
            return (x + self.gate * sublayer(self.norm(x)),)

    try:
        model = build("pre_ln")
        assert torch.equal(logits_of(change_ln_mode(model, "test_gated_pre_ln")), logits_of(model))
    finally:
        del LN_MODES["test_gated_pre_ln"]
