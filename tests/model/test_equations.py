"""Every mode as a whole model against its equation in `support/equations.py`: outputs and all gradients, in fp64."""

from functools import partial

import pytest
from support.equations import EQUATIONS
from support.models import OURS
from support.plain_models import run_decoder, run_encoder
from support.random_models import HEADS, SOURCE, STACK, TARGET, assert_same, build, embed, outputs_of

from residual_hf import ResidualForCausalLM, ResidualForConditionalGeneration, ResidualForMaskedLM

OPTIONS = [
    ("resi_dual", {"dual_scale": 0.3, "main_scale": 0.7, "dual_layer_norm_eps": 1e-2}),
    ("b2t", {"around": "all"}),
    ("b2t_no_ln", {"stack_norm": True}),
    ("dense_former", {"dilation": 2}),
    ("dense_former", {"period": 2}),
    ("dense_former", {"dilation": 3, "period": 3}),
    ("dense_former", {"dynamic": True}),
    ("dense_former", {"dynamic": True, "dilation": 2}),
    ("siamese_norm", {"hybrid": True}),
    ("attention_residuals", {"block_size": 2}),
    ("attention_residuals", {"block_size": 4}),
    ("attention_residuals", {"delta": True}),
    ("attention_residuals", {"delta": True, "block_size": 3}),
    ("admin_torch", {"target": "constant"}),
    ("admin_torch", {"target": "linear"}),
    ("admin_torch", {"learned": True}),
    ("xskip", {"skip_scale": 1.7}),
    ("xskip_ln", {"skip_scale": 0.6, "branch_scale": 2.0}),
    ("rskip_ln", {"skip_order": 1}),
    ("rskip_ln", {"skip_order": 3}),
    ("keel", {"alpha": 2.5}),
    ("scaled_branch", {"tau": 2.0, "exponent": 1.0}),
    ("rezero", {"gate": "sublayer"}),
    ("rezero_post_ln", {"gate": "sublayer"}),
    ("mix_ln", {"fraction": 0.4}),
    ("mix_ln_gpas", {"fraction": 0.7}),
    ("hybrid_norm", {"star": True}),
    ("normformer", {"scale_residual": True}),
    ("normformer", {"head_scale_position": "pre_out"}),
    ("realformer", {"running_mean": True}),
    ("hyper_connections", {"streams": 2}),
    ("hyper_connections", {"streams": 1}),
    ("hyper_connections", {"dynamic": False}),
    ("mhc", {"streams": 3}),
    ("mhc", {"learned_end": True}),
    ("mhc", {"mixing": "kronecker"}),
    ("mhc", {"mixing": "kronecker", "streams": 2}),
    ("mhc", {"mixing": "kronecker", "streams": 8}),
]
CASES = [(mode, {}) for mode in OURS] + OPTIONS
cases = pytest.mark.parametrize(
    ("mode", "options"), CASES, ids=["-".join([mode, *(f"{k}={v}" for k, v in o.items())]) for mode, o in CASES]
)
WARMED = ("post_ln", "sandwich_ln", "peri_ln", "output_ln", "realformer", "fixup", "mhc", "sandwich_ln_gpas")


@cases
def test_encoder_and_decoder(mode, options):
    model, p = build(ResidualForConditionalGeneration, mode, options)
    assert_same(model, *outputs_of(model, p, partial(EQUATIONS[mode], **options)))


@cases
def test_decoder_alone(mode, options):
    model, p = build(ResidualForCausalLM, mode, options)
    embeddings = embed(p.decoder.embed_tokens.weight, TARGET)
    expected = run_decoder(p.decoder, partial(EQUATIONS[mode], **options), HEADS, embeddings, **STACK)
    assert_same(model, [model.model(TARGET, use_cache=False).last_hidden_state], [expected])


@pytest.mark.parametrize("mode", ["deep_norm", "admin_torch", "keel", "scaled_branch", "fixup", "siamese_norm"])
def test_encoder_alone(mode):
    """Modes with constants of the depth, or with another end of an encoder."""
    model, p = build(ResidualForMaskedLM, mode, {})
    embeddings, real = embed(p.encoder.embed_tokens.weight, SOURCE), SOURCE.ne(1)
    expected = run_encoder(p.encoder, EQUATIONS[mode], HEADS, embeddings, real, **STACK)
    assert_same(model, [model.model(SOURCE, attention_mask=real).last_hidden_state], [expected])


@pytest.mark.parametrize("mode", WARMED)
def test_branch_warmup_multiplies_what_is_added(mode):
    settings = {"schedule": "linear", "updates": 1000}
    model, p = build(ResidualForConditionalGeneration, mode, {}, branch_warmup=settings)
    outputs = outputs_of(model, p, EQUATIONS[mode], warmup=lambda layer, t: min(t / (1000 * layer), 1))
    assert_same(model, *outputs)


def test_every_mode_has_an_equation():
    assert sorted(EQUATIONS) == OURS
