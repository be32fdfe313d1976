import itertools

import pytest
import torch
from support.models import SOURCE, logits_of, make
from support.single_stacks import SIZES, disturbed

from residual_hf import ResidualConfig, ResidualForCausalLM, ResidualForMaskedLM, ResidualForSequenceClassification
from residual_hf.conversion import fold, foldable_modes
from residual_hf.model.branch_warmup import branch_warmups
from residual_hf.model.connections import LN_MODES
from residual_hf.model.modeling_residual import ResidualForConditionalGeneration

PLAIN = {
    "admin": "post_ln",
    "admin_torch": "post_ln",
    "branch_norm": "post_ln",
    "deep_norm": "post_ln",
    "layer_scale": "pre_ln",
    "ln_scaling": "pre_ln",
    "rezero": "xskip",
    "rezero_post_ln": "post_ln",
    "scaled_branch": "pre_ln",
    "skip_init": "xskip",
    "wskip_ln": "post_ln",
    "xskip_ln": "post_ln",
}
TIED = (True, True)
UNTIED = [(True, False), (False, True), (False, False)]
FIRST_SHORTCUT = ("admin", "deep_norm", "xskip_ln")  # its scale goes into the tables, which may be one or several


def build(mode, **fields):
    """A model whose scales are random, and its norms and biases too; gates of stacks without norms are small."""
    model = make(mode, **fields)
    low, high = (0.05, 0.4) if PLAIN.get(mode) == "xskip" else (0.5, 3.5)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "residual" in name and "norm" not in name:
                parameter.uniform_(low, high, generator=generator)
            else:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def test_the_list_of_modes():
    ours = [name for name in foldable_modes() if LN_MODES[name].__module__.startswith("residual_hf.")]
    assert {name: LN_MODES[name].folds_into for name in ours} == PLAIN


@pytest.mark.parametrize(
    ("mode", "positions", "tables"),
    [
        *((mode, "sinusoidal", TIED) for mode in PLAIN),
        *itertools.product(("admin", "rezero_post_ln"), ("learned", "none"), [TIED, (False, False)]),
        *itertools.product((*FIRST_SHORTCUT, "layer_scale"), ("sinusoidal",), UNTIED),
    ],
)
def test_folded_model_has_the_same_logits(mode, positions, tables):
    share, tie = tables
    fields = {"share_encoder_decoder_embeddings": share, "tie_word_embeddings": tie}
    model = build(mode, position_embedding_type=positions, scale_embedding=True, **fields)
    folded = fold(model)
    assert folded.config.of("encoder").ln_mode == folded.config.of("decoder").ln_mode == PLAIN[mode]
    expected = logits_of(model)
    assert (logits_of(folded) - expected).abs().max() / expected.abs().max().clamp(min=1) < 5e-6
    exact = model.double()
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.mul_(1 + 1e-9)  # no longer a number of fp32
    expected = logits_of(exact)
    assert (logits_of(fold(exact)) - expected).abs().max() / expected.abs().max().clamp(min=1) < 1e-12


@pytest.mark.parametrize("mode", PLAIN)
def test_original_is_not_touched_and_the_folded_model_lives(mode, tmp_path):
    model = build(mode)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    folded = fold(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    folded.save_pretrained(tmp_path)
    loaded = ResidualForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded), logits_of(folded))
    settings = {"attention_mask": SOURCE.ne(1), "max_new_tokens": 6, "num_beams": 2}
    assert torch.equal(loaded.generate(SOURCE, **settings), model.generate(SOURCE, **settings))
    extra = set(folded.state_dict()) - set(make(PLAIN[mode]).state_dict())
    assert extra <= {f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}


OPTIONS = {
    "plain": {},
    "modern": {"position_embedding_type": "rotary", "gated_ffn": True, "activation_function": "silu"},
    "warming": {"branch_warmup": {"updates": 8}},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("mode", ["admin", "rezero", "layer_scale", "branch_norm", "deep_norm"])
def test_models_of_one_stack_fold(mode, options):
    text = torch.arange(4, 12)[None]
    for cls, stack in (
        (ResidualForCausalLM, "decoder"),
        (ResidualForMaskedLM, "encoder"),
        (ResidualForSequenceClassification, "encoder"),
    ):
        model = disturbed(cls(ResidualConfig(ln_mode=mode, **SIZES, **options, **{f"is_{stack}_only": True})))
        for warmup in branch_warmups(model):
            warmup.updates.fill_(warmup.duration // 2)
        folded = fold(model.double())
        assert type(folded) is cls and folded.config.of(stack).ln_mode == PLAIN[mode]
        with torch.no_grad():
            torch.testing.assert_close(folded(text).logits, model(text).logits, rtol=1e-10, atol=1e-10)


def test_adaptive_embeddings_do_not_take_a_scale():
    fields = {"adaptive_cutoffs": [10, 25], "adaptive_factor": 2, "is_decoder_only": True}
    model = disturbed(ResidualForCausalLM(ResidualConfig(ln_mode="admin", **SIZES, **fields)))
    with pytest.raises(ValueError, match="adaptive_cutoffs: a scale on the first shortcut cannot be moved"):
        fold(model)


def test_tables_stay_one_where_no_first_shortcut_is_scaled():
    folded = fold(build("rezero_post_ln"))
    assert folded.config.share_encoder_decoder_embeddings and folded.config.tie_word_embeddings
    assert folded.get_input_embeddings().weight is folded.lm_head.weight


@pytest.mark.parametrize(
    ("encoder", "fields", "plain"),
    [
        ("admin", {"decoder_ln_mode": "pre_ln"}, ["post_ln", "pre_ln"]),  # stacks fold by themselves
        ("xskip", {"ln_mode_options": {"skip_scale": 0.7}, "decoder_ln_mode": "admin"}, ["xskip", "post_ln"]),
        ("admin", {"norm_type": "rms_norm"}, ["post_ln", "post_ln"]),
        ("admin", {"norm_type": "dynamic_erf"}, ["post_ln", "post_ln"]),
    ],
)
def test_stacks_options_and_other_norms_with_gains(encoder, fields, plain):
    folded = fold(model := build(encoder, **fields))
    assert [folded.config.of(stack).ln_mode for stack in ("encoder", "decoder")] == plain
    torch.testing.assert_close(logits_of(folded), logits_of(model), rtol=1e-5, atol=5e-6)


def test_norms_without_a_gain_per_dimension_say_so():
    for norm_type in ("scale_norm", "ada_norm"):
        with pytest.raises(ValueError, match="has no gain per dimension"):
            fold(build("admin", norm_type=norm_type))


@pytest.mark.parametrize("mode", ["resi_dual", "b2t", "dlcl_post", "rskip_ln", "normformer"])
def test_other_modes_say_why_not(mode):
    with pytest.raises(ValueError, match=f"'{mode}' .* cannot be folded: .*Modes that fold: admin"):
        fold(make(mode))


def test_a_shortcut_that_is_cut_cannot_be_folded():
    model = build("admin")
    with torch.no_grad():
        model.model.decoder.layers[1].ffn_residual.omega[3] = 0
    with pytest.raises(ValueError, match="decoder layer 1, feed_forward: a shortcut scale of 0"):
        fold(model)
