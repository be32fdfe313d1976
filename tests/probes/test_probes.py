"""Probes against published and official values, and against plain computations."""

import math

import ablation
import dependency
import paper_probes
import pytest
import stability
import stream_mixing as mixing
import torch
from support import small_sizes
from support.probed_models import model_of, random_batch
from support.single_stacks import disturbed
from torch import nn

from residual_hf import ResidualConfig, ResidualForCausalLM
from residual_hf.base.errors import InputError
from residual_hf.losses.label_smoothing import LossMeter
from residual_hf.model.branch_warmup import advance_branch_warmup
from residual_hf.probes import gradients, representations
from residual_hf.probes.sites import sublayers


def test_gradient_norms_are_those_of_autograd():
    model, batch = model_of("post_ln"), random_batch(4, 6)
    rows = {(r.stack, r.layer, r.sublayer, r.location): r.norm for r in gradients.gradient_norms(model, batch)}
    states = model.get_encoder()(input_ids=batch["input_ids"], output_hidden_states=True)
    output = model(encoder_outputs=states, labels=batch["labels"], output_hidden_states=True)
    (expected,) = torch.autograd.grad(output.loss, output.decoder_hidden_states[1], retain_graph=True)
    assert rows["decoder", 1, "feed_forward", "output"] == pytest.approx(float(expected.norm()), rel=1e-5)
    branch = list(model.model.encoder.layers[1].ffn.parameters())
    expected = torch.autograd.grad(output.loss, branch)
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected))
    assert rows["encoder", 2, "feed_forward", "weights"] == pytest.approx(norm, rel=1e-5)


def test_norms_of_gradients_are_beyond_the_squares_of_fp32():
    model, batch = model_of("xskip", 6, ln_mode_options={"skip_scale": 2.0}), random_batch(4, 6)
    largest = max(row.norm for row in gradients.gradient_norms(model, batch))
    assert 1e20 < largest < math.inf


OFFICIAL_GRADIENTS = {  # self-attention of the first and feed-forward of the last decoder layer, one seed
    18: {"post_ln": (0.0255, 0.879), "pre_ln": (0.363, 0.204), "resi_dual": (0.309, 1.69)},
    36: {"post_ln": (6.0e-4, 0.946), "pre_ln": (0.269, 0.138), "resi_dual": (0.219, 1.96)},
}


@pytest.mark.slow
@pytest.mark.parametrize("depth, seed, tolerance", [(18, 2, 0.25), (36, 3, 0.2)])
def test_gradients_vanish_only_in_a_post_ln_decoder(depth, seed, tolerance):
    """Between our seeds these values differ by 10 to 40 %, those of the first Post-LN layer by a factor of two."""
    for mode, (first, last) in OFFICIAL_GRADIENTS[depth].items():
        rows = gradients.gradient_norms(model_of(mode, depth, width=256, seed=seed), random_batch(seed=seed))
        norms = {(r.stack, r.layer, r.sublayer): r.norm for r in rows if r.location == "weights"}
        found = norms["decoder", 1, "self_attention"], norms["decoder", depth, "feed_forward"]
        assert found[0] == pytest.approx(first, rel=0.9 if mode == "post_ln" else tolerance)
        assert found[1] == pytest.approx(last, rel=tolerance)
        assert norms["encoder", 1, "self_attention"] > norms["encoder", depth, "feed_forward"]


def test_parts_of_a_gradient_return_through_one_stream_each():
    """Equation 4 of ResiDual, against autograd on an output of which one summand is cut off."""
    model, batch = model_of("resi_dual"), random_batch(4, 6)
    total, rows = gradients.gradient_norms(model, batch), paper_probes.gradient_split(model, batch)
    weights = {row.place: row.norm for row in total if row.location == "weights"}
    assert {row.place: row.total for row in rows} == pytest.approx(weights, rel=1e-5)
    for stack in (model.model.encoder, model.model.decoder):
        branch, parts = list(stack.layers[0].ffn.parameters()), []
        for kept in ((1.0, 0.0), (0.0, 1.0)):

            def end(stream, boundary=stack.boundary, kept=kept):
                (x, r), (of_x, of_r) = stream, kept
                return of_x * x + (1 - of_x) * x.detach() + boundary.norm(of_r * r + (1 - of_r) * r.detach())

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stack.boundary, "end", end)
                parts.append(torch.cat([g.flatten() for g in torch.autograd.grad(model(**batch).loss, branch)]))
        row = next(r for r in rows if r.place == (stack.stack, 1, "feed_forward"))
        assert row.parts == pytest.approx([float(part.norm()) for part in parts], rel=1e-5)
        assert row.total == pytest.approx(float(sum(parts).norm()), rel=1e-5)


def test_in_a_deep_decoder_the_dual_stream_alone_returns_a_gradient():
    """Equation 5: where one part vanishes, the gradient is the other one; 36 layers of width 256: 2e-7 and 0.24."""
    rows = paper_probes.gradient_split(model_of("resi_dual", 1, decoder_depth=24), random_batch(4, 6))
    first = next(row for row in rows if row.place == ("decoder", 1, "self_attention"))
    assert first.parts[0] < 0.03 * first.parts[1] and first.total == pytest.approx(first.parts[1], rel=0.03)
    assert {len(row.parts) for row in paper_probes.gradient_split(model_of("pre_ln"), random_batch(2, 5))} == {1}


@pytest.mark.parametrize("mode", ["normformer", "hybrid_norm", "fixup"])
def test_weights_of_a_branch_are_those_of_its_linear_maps(mode):
    for part in sublayers(model_of(mode)):
        maps = [module for module in part.branch[0].modules() if isinstance(module, nn.Linear)]
        assert {*part.branch_parameters()} == {p for module in maps for p in module.parameters()}


def site(row):
    return row.stack, row.layer, row.sublayer, row.location


def test_accumulation_and_checkpointing_change_nothing():
    model, batch = model_of("resi_dual"), random_batch(4, 6)
    whole = {site(row): row.norm for row in gradients.gradient_norms(model, batch)}
    halves = [{name: tensor[part] for name, tensor in batch.items()} for part in (slice(0, 1), slice(1, 4))]
    assert {site(row): row.norm for row in gradients.gradient_norms(model, halves)} == pytest.approx(whole, rel=1e-4)
    model.gradient_checkpointing_enable()
    again = gradients.gradient_norms(model, batch, training=True)
    assert {site(row): row.norm for row in again} == pytest.approx(whole, rel=1e-5)


def test_probes_leave_the_model_untouched():
    model, batch = model_of("admin").train(), random_batch(2, 5)
    model.model.decoder.eval()
    model(**batch).loss.backward()
    weights = {name: p.clone() for name, p in model.named_parameters()}
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    modes, random = [m.training for m in model.modules()], torch.get_rng_state()
    gradients.gradient_norms(model, batch)
    paper_probes.gradient_split(model, batch)
    stability.output_change(model, batch, "update")
    dependency.dependency_matrix(model, batch)
    ablation.layer_removal(model, batch)
    representations.activation_ranges(model, batch)
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    assert all(torch.equal(p.grad, before[name]) for name, p in model.named_parameters())
    assert [m.training for m in model.modules()] == modes and torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.slow
def test_representation_change_of_post_ln_is_flat_and_equals_resi_dual():
    """Theorem 3.6 with the variance of fairseq's feed-forward, .0585, predicts .189; Pre-LN falls as 1/sqrt(k)."""
    batch, change = random_batch(), {}
    for mode in ("post_ln", "resi_dual", "pre_ln"):
        rows = paper_probes.representation_change(model_of(mode, 36, 1, width=256), batch)
        change[mode] = [r.change for r in rows if r.stack == "encoder"]
    assert change["post_ln"] == change["resi_dual"]
    steps = change["post_ln"][1::2]
    assert sum(steps) / len(steps) == pytest.approx(0.189, rel=0.03)
    assert steps == pytest.approx([0.189] * 35, rel=0.2)
    official = {0: 0.204, 8: 0.240, 1: 0.153, 9: 0.121, 17: 0.099, 35: 0.074, 69: 0.049}
    assert {k: change["pre_ln"][k] for k in official} == pytest.approx(official, rel=0.2)


def test_pre_ln_representations_collapse():
    cosine = {}
    for mode in ("post_ln", "pre_ln"):
        rows = paper_probes.layer_cosines(model_of(mode, 18, 1, width=64), random_batch())
        cosine[mode] = next(r.cosine for r in rows if (r.stack, r.layer, r.other) == ("encoder", 17, 18))
    assert cosine["pre_ln"] > 0.97 > cosine["post_ln"]


@pytest.mark.parametrize("mode", ["attention_residuals", "hyper_connections"])
def test_padding_does_not_count_in_mixing_weights(mode):
    model, batch = disturbed(model_of(mode)), random_batch(2, 5)
    padding = {"input_ids": model.config.pad_token_id, "attention_mask": 0, "labels": -100}
    padded = {name: nn.functional.pad(values, (0, 4), value=padding[name]) for name, values in batch.items()}
    plain, others = (mixing.mixing_weights(model, batches) for batches in (batch, [padded, batch]))
    assert [row.weight for row in others] == pytest.approx([row.weight for row in plain], abs=1e-5)


def test_branch_share_counts_the_factor_of_the_shortcut():
    batch = random_batch(2, 5)
    plain, doubled = (
        representations.branch_share(model_of("xskip_ln", 1, ln_mode_options={"skip_scale": scale}), batch)[0].share
        for scale in (1.0, 2.0)
    )
    assert doubled / (1 - doubled) == pytest.approx(plain / (1 - plain) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("mode", "options", "kind", "total"),
    [
        ("sandwich_ln", {}, "feed_forward", "output"),
        ("output_ln", {}, "feed_forward", "output"),
        ("branch_norm", {}, "feed_forward", "norm.input"),
        ("keel", {}, "feed_forward", "norm.input"),
        ("deep_norm_gpas", {}, "feed_forward", "norm.input"),
        ("fixup", {}, "feed_forward", "output"),
        ("xskip", {"skip_scale": 2.0}, "feed_forward", "output"),
        ("normformer", {"scale_residual": True}, "feed_forward", "output"),
        ("hybrid_norm", {}, "feed_forward", "output"),
        ("hybrid_norm", {}, "self_attention", "output"),
        ("siamese_norm", {}, "self_attention", "output"),
        ("dlcl_post", {}, "self_attention", "norm.input"),
        ("dlcl_pre", {}, "self_attention", "output"),
    ],
)
def test_shares_are_those_of_the_sum(mode, options, kind, total):
    model, batch = disturbed(model_of(mode, ln_mode_options=options)), random_batch(2, 5)
    for _ in range(1000):
        advance_branch_warmup(model)
    part = next(p for p in sublayers(model) if p.place == ("encoder", 2, kind))
    states = paper_probes.record(model, batch, part.joins, total)
    branch = states[part.site(part.joins)] * part.factor("branch")
    shortcut = states[part.site(total)] - branch
    b, r = (float(x.std(-1, correction=0).mean()) for x in (branch, shortcut))
    rows = representations.branch_share(model, batch)
    (share,) = [row.share for row in rows if (row.stack, row.layer, row.sublayer) == part.place]
    assert share == pytest.approx(b / (b + r), rel=1e-3)


@pytest.mark.parametrize("mode", ["hyper_connections", "mhc", "attention_residuals", "span_norm"])
def test_a_branch_has_no_share_where_the_first_stream_is_not_what_it_is_added_to(mode):
    attention = {"self_attention", "cross_attention"} if mode == "span_norm" else set()
    rows = representations.branch_share(model_of(mode), random_batch(2, 5))
    assert {row.sublayer for row in rows} == attention


def test_range_and_rank():
    model, batch = model_of("pre_ln"), random_batch()
    rows = representations.activation_ranges(model, batch)
    assert all(row.largest >= row.rms and 2**row.fp16_headroom * row.largest == pytest.approx(65504) for row in rows)
    assert all(1 < row.rank <= 32 for row in paper_probes.effective_rank(model, batch))


def test_the_range_includes_the_dual_stream():
    model, batch = model_of("resi_dual"), random_batch()
    for layer in model.model.encoder.layers:
        nn.init.constant_(layer.ffn.fc2.bias, 5000.0)
    rows = {(r.stack, r.layer, r.location): r for r in representations.activation_ranges(model, batch)}
    assert rows["encoder", 2, "boundary.norm.input"].largest > 9990 > rows["encoder", 2, "norm.input"].largest


def test_padding_is_not_measured():
    model, batch = model_of("post_ln"), random_batch(2, 6)
    batch["attention_mask"][1, 3:] = 0
    batch["labels"][1, 2:] = -100
    shares = [row.share for row in representations.branch_share(model, batch)]
    batch["input_ids"][1, 3:] = 7
    batch["labels"] = torch.cat([batch["labels"], torch.full((2, 3), -100)], dim=1)
    assert [row.share for row in representations.branch_share(model, batch)] == pytest.approx(shares, rel=1e-5)
    states = paper_probes.record(model, batch, "output")
    assert {len(tensor) for site, tensor in states.items() if site.stack == "encoder"} == {9}
    assert {len(tensor) for site, tensor in states.items() if site.stack == "decoder"} == {8}


def test_removed_layer():
    model, batch = model_of("pre_ln"), random_batch(2, 5)
    rows = ablation.layer_removal(model, batch, score=lambda model: float(len(model.model.decoder.layers)))
    assert [(r.stack, r.layer) for r in rows] == [("encoder", i) for i in range(3)] + [("decoder", i) for i in (1, 2)]
    assert rows[0].loss == pytest.approx(model.eval()(**batch).loss.item())
    assert [r.score for r in rows] == [2, 2, 2, 1, 1]
    counting = model_of("realformer", ln_mode_options={"running_mean": True})
    with pytest.raises(InputError, match="realformer: its layers cannot be removed"):
        ablation.layer_removal(counting, batch)
    silence(model.model.decoder.layers[1])
    unused = ablation.layer_removal(model, batch)[-1]
    assert unused.loss == pytest.approx(model(**batch).loss.item(), rel=1e-5)


def silence(layer):
    """Make a Pre-LN layer the identity."""
    for module in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.ffn.fc2):
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)


def test_translations_without_the_first_layer():
    """In the loop of Transformers, whose cache counts the tokens in its first layer."""
    model, batch = disturbed(model_of("pre_ln", tie_word_embeddings=False)), random_batch(2, 5)
    silence(model.model.decoder.layers[0])
    model.generation_config.fast_decoding = False

    def translations(model):
        return model.generate(batch["input_ids"], max_new_tokens=8).tolist()

    rows = {(row.stack, row.layer): row.score for row in ablation.layer_removal(model, batch, translations)}
    assert rows["decoder", 1] == rows["encoder", 0] == translations(model)
    assert rows["decoder", 2] != rows["encoder", 0]


def language_model():
    sizes = {"d_model": 16, "decoder_layers": 2, "decoder_ffn_dim": 16, "decoder_attention_heads": 2, "dropout": 0.0}
    return ResidualForCausalLM(ResidualConfig(is_decoder_only=True, vocab_size=1000, **sizes)).eval()


def test_padding_before_a_text_is_not_measured():
    model, text = language_model(), random_batch(2, 6)["labels"]
    mask = nn.functional.pad(torch.ones_like(text), (3, 0))
    padded = {"input_ids": nn.functional.pad(text, (3, 0), value=1), "attention_mask": mask}
    plain, others = (representations.branch_share(model, batch) for batch in ({"input_ids": text}, padded))
    assert [row.share for row in others] == pytest.approx([row.share for row in plain], rel=1e-4)


def test_losses_of_a_language_model_are_means_over_predicted_tokens():
    model = language_model()
    texts = [random_batch(2, length)["labels"] for length in (9, 2)]
    rows = ablation.layer_removal(model, [{"input_ids": text, "labels": text} for text in texts])
    nll = [model(input_ids=text).logits[:, :-1].log_softmax(-1).gather(-1, text[:, 1:, None]) for text in texts]
    assert [(row.stack, row.layer) for row in rows] == [("decoder", 0), ("decoder", 1), ("decoder", 2)]
    assert rows[0].loss == pytest.approx(-torch.cat([part.flatten() for part in nll]).mean().item(), rel=1e-5)


def test_losses_are_those_without_the_criterion_of_a_trainer():
    model, batch = model_of("pre_ln"), random_batch(2, 5)
    before, norms = ablation.layer_removal(model, batch), gradients.gradient_norms(model, batch)
    model.criterion = LossMeter(0.1, "fairseq")
    assert [row.loss for row in ablation.layer_removal(model, batch)] == [row.loss for row in before]
    assert [row.norm for row in gradients.gradient_norms(model, batch)] == [row.norm for row in norms]
    assert isinstance(model.criterion, LossMeter) and model.criterion.read() == {}


def test_mixing_weights_of_a_new_model():
    batch = random_batch(2, 5)
    rows = mixing.mixing_weights(model_of("dlcl_pre"), batch)
    assert [r.weight for r in rows if r.module == "model.encoder.boundary.mix"] == pytest.approx([1 / 3] * 3)
    rows = mixing.mixing_weights(model_of("dense_former", ln_mode_options={"dilation": 2}), batch)
    assert [r.weight for r in rows if r.module == "model.encoder.boundary.average"] == [0.0, 0.0, 1.0]
    rows = mixing.mixing_weights(model_of("attention_residuals"), batch)
    assert [r.weight for r in rows if r.module.startswith("model.encoder.boundary")] == pytest.approx([1 / 5] * 5)
    with pytest.raises(InputError, match="mixing weights"):
        mixing.mixing_weights(model_of("post_ln"), batch)


def test_mixing_weights_that_depend_on_the_token_are_means():
    model, batch = model_of("dense_former", ln_mode_options={"dynamic": True}), random_batch(2, 5)
    average, seen = model.model.encoder.layers[1].self_attn_residual.average, []
    with torch.no_grad():
        average.outer_weight.normal_()
    average.register_forward_pre_hook(lambda module, inputs: seen.append(module.weights(inputs[0])))
    rows = [r.weight for r in mixing.mixing_weights(model, batch) if "encoder.layers.1." in r.module]
    assert rows == pytest.approx(seen[0].flatten(0, 1).mean(0).tolist(), rel=1e-4)
    assert rows != pytest.approx([0.0, 1.0], abs=1e-3)


def test_models_of_transformers():
    from transformers import MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 1000, "d_model": 32, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    batch = random_batch(2, 5)
    for model in (
        MarianMTModel(MarianConfig(**small_sizes(32, 2, 32, 4) | sizes)),
        T5ForConditionalGeneration(T5Config(**sizes, d_kv=8, d_ff=32, num_layers=2, num_heads=4)),
    ):
        rows = gradients.gradient_norms(model, batch)
        assert {(r.stack, r.sublayer) for r in rows} == {
            ("encoder", "self_attention"),
            ("encoder", "feed_forward"),
            ("decoder", "self_attention"),
            ("decoder", "cross_attention"),
            ("decoder", "feed_forward"),
        }
        assert all(r.norm > 0 for r in rows if r.location == "weights")
        assert len(paper_probes.layer_cosines(model, batch)) == 8
        assert len(paper_probes.representation_change(model, batch)) == 3 + 5


def test_a_model_without_known_layers_is_refused():
    with pytest.raises(InputError, match="Linear: probes need"):
        gradients.gradient_norms(nn.Linear(2, 2), {"labels": torch.ones(1, 1)})
